#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/quantity.h"
#include "scheduler/memory.h"
#include "scheduler/quotient.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {
namespace {

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts...));
}

absl::Status CheckPlacement(const Problem& problem, const Partition& partition) {
  const int operators = static_cast<int>(problem.operators.size());
  std::vector<int> stage_of(operators, -1);
  for (size_t s = 0; s < partition.stages.size(); ++s) {
    const PlacedStage& stage = partition.stages[s];
    if (stage.node < 0 || stage.node >= static_cast<int>(problem.nodes.size())) {
      return Refuse("stage ", s, " is on node ", stage.node, " of ", problem.nodes.size());
    }
    if (stage.sub_dags.empty()) return Refuse("stage ", s, " has no sub-DAG");
    for (const PlacedSubDag& sub_dag : stage.sub_dags) {
      if (sub_dag.operators.empty()) return Refuse("stage ", s, " has an empty sub-DAG");
      if (sub_dag.depth < 1) return Refuse("stage ", s, " has a sub-DAG of depth ", sub_dag.depth);
      int previous = -1;
      for (const int op : sub_dag.operators) {
        if (op < 0 || op >= operators) return Refuse("stage ", s, " has operator ", op, " of ", operators);
        const std::string& name = problem.operators[op].name;
        if (op <= previous) return Refuse("operator ", name, " of stage ", s, " is not in ascending order");
        if (stage_of[op] >= 0) return Refuse("operator ", name, " is in stages ", stage_of[op], " and ", s);
        stage_of[op] = static_cast<int>(s);
        previous = op;
      }
    }
  }
  for (int op = 0; op < operators; ++op) {
    const OperatorWork& work = problem.operators[op];
    if (stage_of[op] < 0) return Refuse("operator ", work.name, " is in no stage");
    const int node = partition.stages[stage_of[op]].node;
    if (work.pinned_node >= 0 && work.pinned_node != node) {
      return Refuse("operator ", work.name, " is pinned to compnode ", problem.nodes[work.pinned_node].name,
                    ", but placed on ", problem.nodes[node].name);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSlots(const Problem& problem, const Partition& partition) {
  if (static_cast<int>(partition.stages.size()) > problem.max_stages) {
    return Refuse(partition.stages.size(), " stages, at most ", problem.max_stages, " are allowed");
  }
  std::vector<int> stages(problem.nodes.size(), 0);
  for (const PlacedStage& stage : partition.stages) {
    const Node& node = problem.nodes[stage.node];
    if (++stages[stage.node] > node.slots) {
      return Refuse("compnode ", node.name, " takes ", node.slots, " stages, not ", stages[stage.node]);
    }
  }
  return absl::OkStatus();
}

std::string Describe(const Problem& problem, const Partition& partition, const Quotient& quotient,
                     int index) {
  const int stage = quotient.sub_dags[index].stage;
  const PlacedSubDag& sub_dag = partition.stages[stage].sub_dags[index - quotient.first_sub_dag[stage]];
  return absl::StrCat("{", problem.operators[sub_dag.operators.front()].name, " … ",
                      problem.operators[sub_dag.operators.back()].name, "} of stage ", stage);
}

/// Sub-DAGs on a cycle of the quotient graph: every one left over has a predecessor left over.
std::vector<int> Cycle(const Quotient& quotient, const std::vector<int>& order) {
  std::vector<bool> done(quotient.sub_dags.size(), false);
  for (const int s : order) done[s] = true;
  const auto predecessor = [&](int s) {
    for (const int source : quotient.sub_dags[s].reads_from) {
      if (!done[source]) return source;
    }
    for (const int edge : quotient.sub_dags[s].incoming) {
      if (!done[quotient.edges[edge].from_sub_dag]) return quotient.edges[edge].from_sub_dag;
    }
    return -1;
  };
  int at = static_cast<int>(std::find(done.begin(), done.end(), false) - done.begin());
  std::vector<int> step_of(quotient.sub_dags.size(), -1);
  std::vector<int> walk;
  while (step_of[at] < 0) {
    step_of[at] = static_cast<int>(walk.size());
    walk.push_back(at);
    at = predecessor(at);
  }
  return {walk.begin() + step_of[at], walk.end()};
}

absl::Status CheckOrder(const Problem& problem, const Partition& partition, const Quotient& quotient) {
  const std::vector<int> order = TopologicalOrder(quotient);
  if (order.size() < quotient.sub_dags.size()) {
    const auto describe = [&](std::string* out, int s) {
      out->append(Describe(problem, partition, quotient, s));
    };
    return Refuse("these sub-DAGs wait for each other: ",
                  absl::StrJoin(Cycle(quotient, order), " <- ", describe));
  }
  // reaches[s]: the first sub-DAG of each stage, in run order, that comes before s in the quotient graph must
  // be before s in the run order too. Walking in topological order, `last[s][stage]` is the latest one of
  // `stage` before s.
  std::vector<std::vector<int>> last(order.size(), std::vector<int>(quotient.stages(), -1));
  for (const int s : order) {
    const auto merge = [&](int source) {
      for (int stage = 0; stage < quotient.stages(); ++stage) {
        last[s][stage] = std::max(last[s][stage], last[source][stage]);
      }
      const int stage = quotient.sub_dags[source].stage;
      last[s][stage] = std::max(last[s][stage], source);
    };
    for (const int source : quotient.sub_dags[s].reads_from) merge(source);
    for (const int edge : quotient.sub_dags[s].incoming) merge(quotient.edges[edge].from_sub_dag);
    const int before = last[s][quotient.sub_dags[s].stage];
    if (before > s) {
      return Refuse("the run order of stage ", quotient.sub_dags[s].stage, " has ",
                    Describe(problem, partition, quotient, s), " before ",
                    Describe(problem, partition, quotient, before), ", on which it waits");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(const Problem& problem, const Partition& partition, const Quotient& quotient) {
  const std::vector<MemoryParts> parts = MemoryOfStages(problem, partition, quotient);
  for (size_t s = 0; s < parts.size(); ++s) {
    const Node& node = problem.nodes[partition.stages[s].node];
    if (parts[s].total() > node.memory_bytes) {
      return Refuse("stage ", s, " needs ", api::FormatBytes(parts[s].total()), " (", parts[s].ToString(),
                    "), compnode ", node.name, " has ", api::FormatBytes(node.memory_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPartition(const Problem& problem, const Partition& partition) {
  if (absl::Status status = CheckPlacement(problem, partition); !status.ok()) return status;
  if (absl::Status status = CheckSlots(problem, partition); !status.ok()) return status;
  const Quotient quotient = MakeQuotient(problem, partition);
  if (absl::Status status = CheckOrder(problem, partition, quotient); !status.ok()) return status;
  return CheckMemory(problem, partition, quotient);
}

}  // namespace fusion::scheduler
