#include "scheduler/partition/feasibility.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/quantity.h"
#include "scheduler/partition/step_cost.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {
namespace {

std::string Bytes(double bytes) { return api::FormatBytes(bytes); }

absl::Status CheckPins(const Problem& problem) {
  std::map<int, std::vector<std::string>> pinned;
  for (const OperatorWork& op : problem.operators) {
    if (op.pinned_node >= 0) pinned[op.pinned_node].push_back(op.name);
  }
  if (static_cast<int>(pinned.size()) <= problem.max_stages) return absl::OkStatus();
  const auto name = [&problem](std::string* out, const auto& entry) {
    absl::StrAppend(out, problem.nodes[entry.first].name, " (", absl::StrJoin(entry.second, ", "), ")");
  };
  return absl::FailedPreconditionError(absl::StrCat(
      "operators are pinned to ", pinned.size(), " compnodes: ", absl::StrJoin(pinned, ", ", name),
      "; at most ", problem.max_stages, " stages are allowed (placement.stages.max)"));
}

int LargestNode(const Problem& problem) {
  const auto largest =
      std::max_element(problem.nodes.begin(), problem.nodes.end(),
                       [](const Node& a, const Node& b) { return a.memory_bytes < b.memory_bytes; });
  return static_cast<int>(largest - problem.nodes.begin());
}

// Each operator alone, and pinned ones together, at the least: variables, optimizer state and the working
// set.
absl::Status CheckOperators(const StepCost& cost) {
  const Problem& problem = cost.problem();
  std::vector<double> pinned(problem.nodes.size(), 0);
  for (size_t i = 0; i < problem.operators.size(); ++i) {
    const OperatorWork& op = problem.operators[i];
    const auto fixed = static_cast<double>(cost.FixedBytes(static_cast<int>(i)));
    const double alone = fixed + static_cast<double>(cost.WorkingBytes(static_cast<int>(i)));
    const Node& node = problem.nodes[op.pinned_node >= 0 ? op.pinned_node : LargestNode(problem)];
    if (alone > static_cast<double>(node.memory_bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("operator ", op.name, " alone needs ", Bytes(alone), ", ",
                       op.pinned_node >= 0 ? "the compnode it is pinned to, " : "the largest compnode, ",
                       node.name, ", has ", Bytes(static_cast<double>(node.memory_bytes))));
    }
    if (op.pinned_node < 0) continue;
    pinned[op.pinned_node] += fixed;
    if (pinned[op.pinned_node] > static_cast<double>(node.memory_bytes)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the operators pinned to compnode ", node.name, " need at least ", Bytes(pinned[op.pinned_node]),
          ", it has ", Bytes(static_cast<double>(node.memory_bytes))));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTotal(const StepCost& cost) {
  const Problem& problem = cost.problem();
  double needed = 0;
  for (size_t i = 0; i < problem.operators.size(); ++i)
    needed += static_cast<double>(cost.FixedBytes(static_cast<int>(i)));
  std::vector<double> memory;
  for (int node : cost.places().node) memory.push_back(static_cast<double>(problem.nodes[node].memory_bytes));
  std::sort(memory.rbegin(), memory.rend());
  if (static_cast<int>(memory.size()) > problem.max_stages) memory.resize(problem.max_stages);
  double offered = 0;
  for (double bytes : memory) offered += bytes;
  if (needed <= offered) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("variables, gradients and optimizer state need ", Bytes(needed), " in all, the ",
                   memory.size(), " largest compnodes that the job may use have ", Bytes(offered)));
}

// The stage that exceeds its compnode's memory most, or OK.
absl::Status CheckMemory(const Problem& problem, const Partition& partition) {
  const std::vector<int64_t> bytes = StageMemory(problem, partition);
  double worst = 0;
  size_t stage = 0;
  for (size_t s = 0; s < bytes.size(); ++s) {
    const double limit = static_cast<double>(problem.nodes[partition.stages[s].node].memory_bytes);
    if (static_cast<double>(bytes[s]) - limit <= worst) continue;
    worst = static_cast<double>(bytes[s]) - limit;
    stage = s;
  }
  if (worst <= 0) return absl::OkStatus();
  const PlacedStage& placed = partition.stages[stage];
  const Node& node = problem.nodes[placed.node];
  const Node& largest = problem.nodes[LargestNode(problem)];
  return absl::ResourceExhaustedError(
      absl::StrCat("needs ", Bytes(static_cast<double>(bytes[stage])), " for stage ", stage, " (",
                   problem.operators[placed.sub_dags.front().operators.front()].name, " … ",
                   problem.operators[placed.sub_dags.back().operators.back()].name, "), compnode ", node.name,
                   " has ", Bytes(static_cast<double>(node.memory_bytes)), ", the largest one, ",
                   largest.name, ", ", Bytes(static_cast<double>(largest.memory_bytes))));
}

class FittingSearch {
 public:
  FittingSearch(StepCost& cost, int64_t tries)
      : cost_(cost),
        problem_(cost.problem()),
        tries_(tries),
        bytes_(cost.places().size(), 0),
        operators_(cost.places().size(), 0),
        assignment_(problem_.operators.size(), 0) {}

  std::optional<Assignment> Run() {
    if (!Place(0)) return std::nullopt;
    return assignment_;
  }

 private:
  bool Place(size_t op) {
    if (op == assignment_.size()) {
      --tries_;
      return cost_.Of(assignment_).fits();
    }
    const int pinned = problem_.operators[op].pinned_node;
    if (pinned >= 0) return Try(op, cost_.places().first[pinned]);
    const int before = op > 0 ? assignment_[op - 1] : -1;
    if (before >= 0 && Try(op, before)) return true;
    for (int place = 0; place < cost_.places().size(); ++place) {
      if (place != before && Try(op, place)) return true;
    }
    return false;
  }

  bool Try(size_t op, int place) {
    if (tries_ <= 0) return false;
    const auto fixed = static_cast<double>(cost_.FixedBytes(static_cast<int>(op)));
    const auto working = static_cast<double>(cost_.WorkingBytes(static_cast<int>(op)));
    const auto limit = static_cast<double>(problem_.nodes[cost_.places().node[place]].memory_bytes);
    const bool new_stage = operators_[place] == 0;
    if (bytes_[place] + fixed + working > limit || (new_stage && stages_ == problem_.max_stages)) {
      --tries_;
      return false;
    }
    bytes_[place] += fixed;
    ++operators_[place];
    stages_ += new_stage ? 1 : 0;
    assignment_[op] = place;
    const bool found = Place(op + 1);
    if (found) return true;
    bytes_[place] -= fixed;
    --operators_[place];
    stages_ -= new_stage ? 1 : 0;
    return false;
  }

  StepCost& cost_;
  const Problem& problem_;
  int64_t tries_;
  int stages_ = 0;
  std::vector<double> bytes_;   ///< by place: fixed
  std::vector<int> operators_;  ///< by place
  Assignment assignment_;
};

}  // namespace

absl::Status CheckNeeds(const Problem& problem) {
  if (problem.operators.empty()) return absl::FailedPreconditionError("the graph has no operators");
  if (problem.nodes.empty()) return absl::FailedPreconditionError("no compnode may be used by the job");
  if (problem.max_stages < 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("placement.stages.max is ", problem.max_stages, ", at least 1 is needed"));
  }
  if (absl::Status status = CheckPins(problem); !status.ok()) return status;
  const StepCost cost(problem, 1);
  if (absl::Status status = CheckOperators(cost); !status.ok()) return status;
  return CheckTotal(cost);
}

absl::StatusOr<Partition> FinishPartition(const Problem& problem, const Places& places,
                                          const Assignment& assignment) {
  Partition partition =
      MakePartition(problem, places, GroupOperators(OperatorLinks(problem), assignment, places.size()));
  if (absl::Status status = CheckMemory(problem, partition); !status.ok()) return status;
  ChooseDepths(problem, partition);
  if (absl::Status status = CheckPartition(problem, partition); !status.ok()) return status;
  return partition;
}

std::optional<Assignment> FindFitting(StepCost& cost, int64_t tries) {
  return FittingSearch(cost, tries).Run();
}

}  // namespace fusion::scheduler
