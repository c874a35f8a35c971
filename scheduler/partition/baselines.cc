#include "scheduler/partition/baselines.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/partition.h"
#include "scheduler/partition/feasibility.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {
namespace {

Assignment WithPins(const Problem& problem, const Places& places, Assignment assignment) {
  for (size_t op = 0; op < assignment.size(); ++op) {
    const int node = problem.operators[op].pinned_node;
    if (node >= 0) assignment[op] = places.first[node];
  }
  return assignment;
}

}  // namespace

std::vector<int> FileOrder(const Places& places) {
  std::vector<int> order(places.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int> UsedPlaces(const Problem& problem, const Places& places, const std::vector<int>& order) {
  std::set<int> chosen;
  for (const OperatorWork& op : problem.operators) {
    if (op.pinned_node >= 0) chosen.insert(places.first[op.pinned_node]);
  }
  for (int place : order) {
    if (static_cast<int>(chosen.size()) >= problem.max_stages) break;
    chosen.insert(place);
  }
  std::vector<int> used;
  std::copy_if(order.begin(), order.end(), std::back_inserter(used),
               [&chosen](int place) { return chosen.contains(place); });
  return used;
}

Assignment AssignEqualNumber(const Problem& problem, const Places& places, const std::vector<int>& order) {
  const std::vector<int> used = UsedPlaces(problem, places, order);
  const size_t operators = problem.operators.size();
  Assignment assignment;
  for (size_t op = 0; op < operators; ++op) assignment.push_back(used[op * used.size() / operators]);
  return WithPins(problem, places, std::move(assignment));
}

Assignment AssignEqualCompute(const Problem& problem, const Places& places, const std::vector<int>& order) {
  const std::vector<int> used = UsedPlaces(problem, places, order);
  double flops = 0;
  for (const OperatorWork& op : problem.operators) flops += op.flops;
  double speed = 0;
  for (int place : used) speed += problem.nodes[places.node[place]].flops;
  if (flops <= 0 || speed <= 0) return AssignEqualNumber(problem, places, order);

  Assignment assignment;
  double before = 0;  // FLOPs
  size_t segment = 0;
  double end = flops * problem.nodes[places.node[used[0]]].flops / speed;
  for (const OperatorWork& op : problem.operators) {
    // An operator belongs where its middle falls.
    while (before + op.flops / 2 > end && segment + 1 < used.size()) {
      ++segment;
      end += flops * problem.nodes[places.node[used[segment]]].flops / speed;
    }
    assignment.push_back(used[segment]);
    before += op.flops;
  }
  return WithPins(problem, places, std::move(assignment));
}

absl::StatusOr<Partition> PartitionEqualNumber(const Problem& problem) {
  if (absl::Status status = CheckNeeds(problem); !status.ok()) return status;
  const Places places(problem);
  return FinishPartition(problem, places, AssignEqualNumber(problem, places, FileOrder(places)));
}

absl::StatusOr<Partition> PartitionEqualCompute(const Problem& problem) {
  if (absl::Status status = CheckNeeds(problem); !status.ok()) return status;
  const Places places(problem);
  return FinishPartition(problem, places, AssignEqualCompute(problem, places, FileOrder(places)));
}

}  // namespace fusion::scheduler
