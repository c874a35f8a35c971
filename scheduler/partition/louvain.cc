#include "scheduler/partition/louvain.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace fusion::scheduler {
namespace {

// Gains below this share of the total weight are rounding: without it, equal links could make nodes
// oscillate.
constexpr double kRounding = 1e-12;

// A split inside a community must raise its modularity by this much to count.
constexpr double kLeastSplit = 1e-6;

constexpr std::array kResolutions = {0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0};

std::vector<double> Degrees(const WeightedGraph& graph) {
  std::vector<double> degrees(graph.size(), 0);
  for (int node = 0; node < graph.size(); ++node) {
    for (const auto& [other, weight] : graph.neighbours(node)) {
      degrees[node] += other == node ? 2 * weight : weight;
    }
  }
  return degrees;
}

Communities Renumbered(const Communities& communities) {
  std::vector<int> number(communities.size(), -1);
  Communities result(communities.size());
  int next = 0;
  for (size_t i = 0; i < communities.size(); ++i) {
    int& assigned = number[communities[i]];
    if (assigned < 0) assigned = next++;
    result[i] = assigned;
  }
  return result;
}

// Moves nodes to the neighbouring community that gains most until no move gains.
Communities MoveNodes(const WeightedGraph& graph, double resolution) {
  const int nodes = graph.size();
  const std::vector<double> degrees = Degrees(graph);
  const double total = std::accumulate(degrees.begin(), degrees.end(), 0.0);
  Communities community(nodes);
  std::iota(community.begin(), community.end(), 0);
  if (total <= 0) return community;

  std::vector<double> community_degree = degrees;
  std::vector<double> weight_to(nodes, 0);
  std::vector<int> touched;
  for (bool moved = true; moved;) {
    moved = false;
    for (int node = 0; node < nodes; ++node) {
      const int home = community[node];
      touched.assign(1, home);
      for (const auto& [other, weight] : graph.neighbours(node)) {
        if (other == node) continue;
        const int c = community[other];
        if (weight_to[c] == 0 && c != home) touched.push_back(c);
        weight_to[c] += weight;
      }
      std::sort(touched.begin() + 1, touched.end());
      community_degree[home] -= degrees[node];
      auto gain = [&](int c) {
        return weight_to[c] - resolution * degrees[node] * community_degree[c] / total;
      };
      int best = home;
      double best_gain = gain(home);
      for (int c : touched) {
        if (gain(c) > best_gain + kRounding * total) {
          best = c;
          best_gain = gain(c);
        }
      }
      community_degree[best] += degrees[node];
      community[node] = best;
      moved = moved || best != home;
      for (int c : touched) weight_to[c] = 0;
    }
  }
  return Renumbered(community);
}

WeightedGraph Aggregated(const WeightedGraph& graph, const Communities& communities) {
  const int count = 1 + *std::max_element(communities.begin(), communities.end());
  std::vector<std::vector<int>> members(count);
  for (int node = 0; node < graph.size(); ++node) members[communities[node]].push_back(node);
  WeightedGraph result(count);
  std::vector<double> weight_to(count, 0);
  for (int c = 0; c < count; ++c) {
    std::fill(weight_to.begin(), weight_to.end(), 0);
    for (int node : members[c]) {
      for (const auto& [other, weight] : graph.neighbours(node)) {
        // An edge inside a community is seen from both of its ends, a self-loop once.
        const bool halved = communities[other] == c && other != node;
        weight_to[communities[other]] += halved ? weight / 2 : weight;
      }
    }
    for (int d = c; d < count; ++d) {
      if (weight_to[d] > 0) result.AddEdge(c, d, weight_to[d]);
    }
  }
  return result;
}

WeightedGraph Induced(const WeightedGraph& graph, const std::vector<int>& members) {
  std::vector<int> index(graph.size(), -1);
  for (size_t i = 0; i < members.size(); ++i) index[members[i]] = static_cast<int>(i);
  WeightedGraph result(static_cast<int>(members.size()));
  for (int node : members) {
    for (const auto& [other, weight] : graph.neighbours(node)) {
      if (index[other] >= index[node]) result.AddEdge(index[node], index[other], weight);
    }
  }
  return result;
}

// Louvain inside each community; unchanged where no split raises the modularity of the community's own graph.
Communities SplitOnce(const WeightedGraph& graph, const Communities& communities) {
  Communities result(graph.size(), -1);
  int next = 0;
  for (const std::vector<int>& members : MembersOf(communities)) {
    const WeightedGraph inside = Induced(graph, members);
    Communities parts = Louvain(inside, 1.0);
    const Communities whole(members.size(), 0);
    if (Modularity(inside, parts, 1.0) < Modularity(inside, whole, 1.0) + kLeastSplit) parts = whole;
    for (size_t i = 0; i < members.size(); ++i) result[members[i]] = next + parts[i];
    next += 1 + *std::max_element(parts.begin(), parts.end());
  }
  return Renumbered(result);
}

}  // namespace

void WeightedGraph::AddEdge(int a, int b, double weight) {
  neighbours_[a].emplace_back(b, weight);
  if (a != b) neighbours_[b].emplace_back(a, weight);
}

double Modularity(const WeightedGraph& graph, const Communities& communities, double resolution) {
  const std::vector<double> degrees = Degrees(graph);
  const double total = std::accumulate(degrees.begin(), degrees.end(), 0.0);
  if (total <= 0) return 0;
  std::vector<double> inside(graph.size(), 0);
  std::vector<double> degree(graph.size(), 0);
  for (int node = 0; node < graph.size(); ++node) {
    degree[communities[node]] += degrees[node];
    for (const auto& [other, weight] : graph.neighbours(node)) {
      if (communities[other] == communities[node])
        inside[communities[node]] += other == node ? 2 * weight : weight;
    }
  }
  double result = 0;
  for (int c = 0; c < graph.size(); ++c) {
    result += inside[c] / total - resolution * (degree[c] / total) * (degree[c] / total);
  }
  return result;
}

Communities Louvain(const WeightedGraph& graph, double resolution) {
  Communities result(graph.size());
  std::iota(result.begin(), result.end(), 0);
  WeightedGraph level = graph;
  while (level.size() > 1) {
    const Communities moved = MoveNodes(level, resolution);
    for (int& community : result) community = moved[community];
    WeightedGraph next = Aggregated(level, moved);
    if (next.size() == level.size()) break;
    level = std::move(next);
  }
  return Renumbered(result);
}

std::vector<Communities> CandidateClusterings(const WeightedGraph& graph) {
  std::vector<Communities> result;
  if (graph.size() == 0) return result;
  auto add = [&result](Communities communities) {
    if (std::find(result.begin(), result.end(), communities) == result.end())
      result.push_back(std::move(communities));
  };
  add(Communities(graph.size(), 0));
  for (double resolution : kResolutions) add(Louvain(graph, resolution));
  Communities level = Louvain(graph, 1.0);
  for (;;) {
    Communities next = SplitOnce(graph, level);
    if (next == level) break;
    level = std::move(next);
    add(level);
  }
  Communities alone(graph.size());
  std::iota(alone.begin(), alone.end(), 0);
  add(alone);
  return result;
}

std::vector<std::vector<int>> MembersOf(const Communities& communities) {
  std::vector<std::vector<int>> members;
  for (size_t node = 0; node < communities.size(); ++node) {
    if (communities[node] >= static_cast<int>(members.size())) members.resize(communities[node] + 1);
    members[communities[node]].push_back(static_cast<int>(node));
  }
  return members;
}

}  // namespace fusion::scheduler
