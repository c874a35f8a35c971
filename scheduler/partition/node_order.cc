#include "scheduler/partition/node_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "scheduler/partition/louvain.h"

namespace fusion::scheduler {
namespace {

// All orders of so many islands (or places) are tried.
constexpr size_t kPermuted = 4;

enum class InnerOrder { kFile, kFastestFirst, kFastestLast, kNearest };

// Bytes of the value in the middle of all values by size: what a cut is likely to carry.
double TypicalBytes(const StepCost& cost) {
  std::vector<double> bytes = {1};
  for (const Value& value : cost.problem().values) bytes.push_back(cost.ForwardBytes(value));
  std::nth_element(bytes.begin(), bytes.begin() + bytes.size() / 2, bytes.end());
  return std::max(bytes[bytes.size() / 2], 1.0);
}

class Orders {
 public:
  Orders(const StepCost& cost, size_t limit)
      : cost_(cost), limit_(limit), nodes_(cost.problem().nodes.size()), bytes_(TypicalBytes(cost)) {}

  std::vector<std::vector<int>> Make() {
    WeightedGraph links(static_cast<int>(nodes_));
    for (size_t a = 0; a < nodes_; ++a) {
      for (size_t b = a + 1; b < nodes_; ++b) {
        links.AddEdge(static_cast<int>(a), static_cast<int>(b), 1 / std::max(Seconds(a, b), 1e-12));
      }
    }
    for (const Communities& communities : CandidateClusterings(links)) {
      const std::vector<std::vector<int>> islands = MembersOf(communities);
      for (const std::vector<int>& order : IslandOrders(islands)) {
        for (InnerOrder inner :
             {InnerOrder::kFastestFirst, InnerOrder::kFile, InnerOrder::kNearest, InnerOrder::kFastestLast}) {
          Add(islands, order, inner);
          if (orders_.size() >= limit_) return std::move(orders_);
        }
      }
    }
    return std::move(orders_);
  }

 private:
  // Both directions: activations one way, gradients the other.
  double Seconds(size_t a, size_t b) const {
    const Way out = cost_.WayBetween(static_cast<int>(a), static_cast<int>(b));
    const Way back = cost_.WayBetween(static_cast<int>(b), static_cast<int>(a));
    return out.latency_seconds + back.latency_seconds + bytes_ / out.bytes_per_second +
           bytes_ / back.bytes_per_second;
  }

  std::vector<std::vector<int>> IslandOrders(const std::vector<std::vector<int>>& islands) const {
    std::vector<int> order(islands.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<std::vector<int>> result;
    if (islands.size() <= kPermuted) {
      do {
        result.push_back(order);
      } while (std::next_permutation(order.begin(), order.end()));
      return result;
    }
    const size_t starts = std::min(islands.size(), limit_);
    for (size_t start = 0; start < starts; ++start) {
      std::vector<int> remaining = order;
      std::vector<int> chain = {static_cast<int>(start)};
      remaining.erase(remaining.begin() + static_cast<int>(start));
      while (!remaining.empty()) {
        const auto next = std::min_element(remaining.begin(), remaining.end(), [&](int a, int b) {
          return Nearest(islands[chain.back()], islands[a]) < Nearest(islands[chain.back()], islands[b]);
        });
        chain.push_back(*next);
        remaining.erase(next);
      }
      result.push_back(std::move(chain));
    }
    return result;
  }

  // Of the first members: the links between two islands are of one kind.
  double Nearest(const std::vector<int>& a, const std::vector<int>& b) const { return Seconds(a[0], b[0]); }

  void Add(const std::vector<std::vector<int>>& islands, const std::vector<int>& order, InnerOrder inner) {
    std::vector<int> nodes;
    for (int island : order) {
      std::vector<int> members = islands[island];
      Sort(members, inner, nodes.empty() ? -1 : nodes.back());
      nodes.insert(nodes.end(), members.begin(), members.end());
    }
    std::vector<int> places;
    for (int node : nodes) {
      for (int place = cost_.places().first[node];
           place < cost_.places().size() && cost_.places().node[place] == node; ++place) {
        places.push_back(place);
      }
    }
    if (seen_.insert(places).second) orders_.push_back(std::move(places));
  }

  void Sort(std::vector<int>& members, InnerOrder inner, int before) const {
    const std::vector<Node>& nodes = cost_.problem().nodes;
    switch (inner) {
      case InnerOrder::kFile:
        return;
      case InnerOrder::kFastestFirst:
        std::stable_sort(members.begin(), members.end(),
                         [&nodes](int a, int b) { return nodes[a].flops > nodes[b].flops; });
        return;
      case InnerOrder::kFastestLast:
        std::stable_sort(members.begin(), members.end(),
                         [&nodes](int a, int b) { return nodes[a].flops < nodes[b].flops; });
        return;
      case InnerOrder::kNearest:
        for (size_t i = 0; i < members.size(); ++i) {
          if (before < 0) before = members[0];
          const auto next =
              std::min_element(members.begin() + static_cast<int>(i), members.end(),
                               [&](int a, int b) { return Seconds(before, a) < Seconds(before, b); });
          before = *next;
          std::rotate(members.begin() + static_cast<int>(i), next, next + 1);
        }
        return;
    }
  }

  const StepCost& cost_;
  const size_t limit_;
  const size_t nodes_;
  const double bytes_;
  std::vector<std::vector<int>> orders_;
  std::set<std::vector<int>> seen_;
};

}  // namespace

std::vector<std::vector<int>> PlaceOrders(const StepCost& cost, int limit) {
  return Orders(cost, static_cast<size_t>(limit)).Make();
}

}  // namespace fusion::scheduler
