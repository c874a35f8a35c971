#include "scheduler/partition/local_search.h"

#include <algorithm>
#include <set>
#include <string>

namespace fusion::scheduler {
namespace {

constexpr int kAllPlaces = 16;
constexpr size_t kClusters = 8;

// A move must gain this share: smaller gains are rounding.
constexpr double kGain = 1e-9;

std::vector<int> Targets(const StepCost& cost, const Assignment& assignment) {
  const Places& places = cost.places();
  std::vector<int> targets;
  if (places.size() <= kAllPlaces) {
    for (int place = 0; place < places.size(); ++place) targets.push_back(place);
    return targets;
  }
  const std::vector<Node>& nodes = cost.problem().nodes;
  std::set<int> used(assignment.begin(), assignment.end());
  std::vector<int> unused;
  for (int place = 0; place < places.size(); ++place) {
    if (!used.contains(place)) unused.push_back(place);
  }
  std::stable_sort(unused.begin(), unused.end(),
                   [&](int a, int b) { return nodes[places.node[a]].flops > nodes[places.node[b]].flops; });
  targets.assign(used.begin(), used.end());
  std::set<std::string> clusters;
  for (int place : unused) {
    if (clusters.size() == kClusters) break;
    if (clusters.insert(nodes[places.node[place]].cluster).second) targets.push_back(place);
  }
  return targets;
}

// Free operators of the place of `op` that it can reach by `next` without leaving the place, itself included.
std::vector<int> Cone(const Problem& problem, const Assignment& assignment, int op,
                      const std::vector<std::vector<int>>& next) {
  std::vector<int> cone = {op};
  std::vector<char> seen(assignment.size(), 0);
  seen[op] = 1;
  for (size_t i = 0; i < cone.size(); ++i) {
    for (int other : next[cone[i]]) {
      if (seen[other] || assignment[other] != assignment[op] || problem.operators[other].pinned_node >= 0)
        continue;
      seen[other] = 1;
      cone.push_back(other);
    }
  }
  return cone;
}

class Neighbourhood {
 public:
  Neighbourhood(const StepCost& cost, const Assignment& assignment,
                const std::function<bool(const Move&)>& visit)
      : cost_(cost), assignment_(assignment), visit_(visit), targets_(Targets(cost, assignment)) {}

  void Visit() {
    for (size_t op = 0; op < assignment_.size(); ++op) {
      if (!Free(static_cast<int>(op))) continue;
      if (!VisitOperator(static_cast<int>(op))) return;
    }
    VisitPlaces();
  }

 private:
  bool Free(int op) const { return cost_.problem().operators[op].pinned_node < 0; }

  bool VisitOperator(int op) {
    const std::vector<int> after = Cone(cost_.problem(), assignment_, op, cost_.links().readers);
    const std::vector<int> before = Cone(cost_.problem(), assignment_, op, cost_.links().sources);
    for (int target : targets_) {
      if (target == assignment_[op]) continue;
      if (!visit_({{op, target}})) return false;
      for (const std::vector<int>* cone : {&after, &before}) {
        if (cone->size() < 2) continue;
        Move move;
        for (int other : *cone) move.emplace_back(other, target);
        if (!visit_(move)) return false;
      }
    }
    return true;
  }

  void VisitPlaces() {
    std::vector<std::vector<int>> free_operators(cost_.places().size());
    for (size_t op = 0; op < assignment_.size(); ++op) {
      if (Free(static_cast<int>(op))) free_operators[assignment_[op]].push_back(static_cast<int>(op));
    }
    for (int a : targets_) {
      if (free_operators[a].empty()) continue;
      for (int b : targets_) {
        if (a == b) continue;
        Move move;
        for (int op : free_operators[a]) move.emplace_back(op, b);
        if (!visit_(move)) return;
        if (a > b || free_operators[b].empty()) continue;
        for (int op : free_operators[b]) move.emplace_back(op, a);
        if (!visit_(move)) return;
      }
    }
  }

  const StepCost& cost_;
  const Assignment assignment_;
  const std::function<bool(const Move&)>& visit_;
  const std::vector<int> targets_;
};

}  // namespace

void VisitMoves(const StepCost& cost, const Assignment& assignment,
                const std::function<bool(const Move&)>& visit) {
  Neighbourhood(cost, assignment, visit).Visit();
}

void Apply(const Move& move, Assignment& assignment) {
  for (const auto& [op, place] : move) assignment[op] = place;
}

Cost Descend(StepCost& cost, Assignment& assignment, int64_t& evaluations) {
  Cost best = cost.Of(assignment);
  for (bool improved = true; improved && evaluations > 0;) {
    improved = false;
    Assignment candidate;
    VisitMoves(cost, assignment, [&](const Move& move) {
      candidate = assignment;
      Apply(move, candidate);
      const Cost found = cost.Of(candidate);
      Cost bar = best;
      bar.seconds *= 1 - kGain;
      if (found < bar) {
        best = found;
        assignment = candidate;
        improved = true;
      }
      return --evaluations > 0;
    });
  }
  return best;
}

}  // namespace fusion::scheduler
