#include "scheduler/memory.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "proto/quantity.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {
namespace {

/// By operator: bytes of the values that it reads.
std::vector<int64_t> InputBytes(const Problem& problem) {
  std::vector<int64_t> bytes(problem.operators.size(), 0);
  for (const Value& value : problem.values) {
    for (const int consumer : value.consumers) bytes[consumer] += value.bytes;
  }
  return bytes;
}

void AddOperators(const Problem& problem, const Partition& partition, const Quotient& quotient,
                  std::vector<MemoryParts>& parts) {
  const std::vector<int64_t> inputs = InputBytes(problem);
  int index = 0;
  for (size_t s = 0; s < partition.stages.size(); ++s) {
    for (const PlacedSubDag& placed : partition.stages[s].sub_dags) {
      const QuotientSubDag& sub_dag = quotient.sub_dags[index++];
      for (const int op : placed.operators) {
        const OperatorWork& work = problem.operators[op];
        parts[s].variables += work.variable_bytes;
        if (problem.training) parts[s].optimizer += work.optimizer_bytes;
        if (sub_dag.backward && !problem.recompute) parts[s].saved += work.saved_bytes * sub_dag.depth;
        const int64_t again = inputs[op] + (problem.training ? work.variable_bytes + work.internal_bytes : 0);
        parts[s].working = std::max(parts[s].working, work.output_bytes + again);
      }
    }
  }
}

/// With recompute: of each sub-DAG with a backward the inputs that are made in the stage, for each
/// micro-batch in flight, and what one sub-DAG saves for the micro-batch that goes back. Inputs from other
/// stages are on links.
void AddRecomputed(const Problem& problem, const Quotient& quotient, std::vector<MemoryParts>& parts) {
  std::vector<int64_t> largest(parts.size(), 0);
  std::vector<int64_t> saved(quotient.sub_dags.size(), 0);
  for (size_t op = 0; op < problem.operators.size(); ++op) {
    const int index = quotient.sub_dag_of_operator[op];
    const QuotientSubDag& sub_dag = quotient.sub_dags[index];
    if (!sub_dag.backward) continue;
    const OperatorWork& work = problem.operators[op];
    if (work.fed) {
      parts[sub_dag.stage].saved += work.output_bytes * sub_dag.depth;
    } else {
      saved[index] += work.saved_bytes;
    }
    largest[sub_dag.stage] = std::max(largest[sub_dag.stage], saved[index]);
  }
  for (const Value& value : problem.values) {
    const int producer = quotient.sub_dag_of_operator[value.producer];
    std::set<int> readers;
    for (const int consumer : value.consumers) readers.insert(quotient.sub_dag_of_operator[consumer]);
    for (const int reader : readers) {
      const QuotientSubDag& sub_dag = quotient.sub_dags[reader];
      const bool inside = reader != producer && sub_dag.stage == quotient.sub_dags[producer].stage;
      if (inside && sub_dag.backward) parts[sub_dag.stage].saved += value.bytes * sub_dag.depth;
    }
  }
  for (size_t s = 0; s < parts.size(); ++s) parts[s].saved += largest[s];
}

/// A stage holds what its readers keep for backward, and what waits for them: as much as the producer may
/// have under way.
void AddEdges(const Problem& problem, const Quotient& quotient, std::vector<MemoryParts>& parts) {
  for (const QuotientEdge& edge : quotient.edges) {
    const Value& value = problem.values[edge.value];
    const QuotientSubDag& producer = quotient.sub_dags[edge.from_sub_dag];
    int kept = 1;
    bool backward = false;
    for (const int reader : edge.to_sub_dags) {
      backward = backward || quotient.sub_dags[reader].backward;
      kept = std::max(kept, quotient.sub_dags[reader].depth);
    }
    const int waiting = std::max(0, producer.depth - kept);
    parts[edge.to_stage].links +=
        value.bytes * (((value.kept || problem.recompute) && backward ? kept : 1) + waiting);
    if (edge.differentiable) {
      parts[edge.from_stage].links += value.bytes * edge.cotangents;
    } else if (!producer.backward) {
      parts[edge.from_stage].links += value.bytes * producer.depth;
    }
  }
}

/// Each use of a shared variable has a gradient of its own, summed at the update: the owner holds all of
/// them.
void AddShared(const Problem& problem, const Quotient& quotient, std::vector<MemoryParts>& parts) {
  for (const SharedValue& shared : problem.shared) {
    const int owner = quotient.sub_dags[quotient.sub_dag_of_operator[shared.consumers.front()]].stage;
    const auto more_uses = static_cast<int64_t>(shared.consumers.size()) - 1;
    if (problem.training && shared.trainable) parts[owner].optimizer += shared.bytes * more_uses;
  }
  for (const QuotientLoan& loan : quotient.loans) {
    parts[loan.user_stage].borrowed += problem.shared[loan.shared].bytes * (1 + loan.gradients);
  }
}

}  // namespace

std::string MemoryParts::ToString() const {
  return absl::StrCat("variables ", api::FormatBytes(variables), ", gradients and optimizer ",
                      api::FormatBytes(optimizer), ", saved tensors ", api::FormatBytes(saved),
                      ", link buffers ", api::FormatBytes(links), ", borrowed variables ",
                      api::FormatBytes(borrowed), ", working set ", api::FormatBytes(working));
}

std::vector<MemoryParts> MemoryOfStages(const Problem& problem, const Partition& partition,
                                        const Quotient& quotient) {
  std::vector<MemoryParts> parts(partition.stages.size());
  AddOperators(problem, partition, quotient, parts);
  if (problem.recompute) AddRecomputed(problem, quotient, parts);
  AddEdges(problem, quotient, parts);
  AddShared(problem, quotient, parts);
  return parts;
}

std::vector<int64_t> StageMemory(const Problem& problem, const Partition& partition) {
  std::vector<int64_t> bytes;
  for (const MemoryParts& parts : MemoryOfStages(problem, partition, MakeQuotient(problem, partition))) {
    bytes.push_back(parts.total());
  }
  return bytes;
}

}  // namespace fusion::scheduler
