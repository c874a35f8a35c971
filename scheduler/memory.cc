#include "scheduler/memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/quantity.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {
namespace {

/// A received gradient is used while the next one arrives.
constexpr int64_t kGradientsOnTheWay = 2;

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
        if (sub_dag.backward) parts[s].saved += work.saved_bytes * sub_dag.depth;
        const int64_t again = inputs[op] + (problem.training ? work.variable_bytes : 0);
        parts[s].working = std::max(parts[s].working, work.output_bytes + again);
      }
    }
  }
}

void AddEdges(const Problem& problem, const Quotient& quotient, std::vector<MemoryParts>& parts) {
  for (const QuotientEdge& edge : quotient.edges) {
    const int64_t bytes = problem.values[edge.value].bytes;
    const QuotientSubDag& producer = quotient.sub_dags[edge.from_sub_dag];
    parts[edge.to_stage].links += bytes * producer.depth;
    if (edge.differentiable) {
      parts[edge.from_stage].links +=
          bytes * edge.cotangents * std::min<int64_t>(kGradientsOnTheWay, producer.depth);
    } else if (!producer.backward) {
      // Nothing bounds how far it runs ahead of its sends but the step.
      parts[edge.from_stage].links += bytes * (problem.training ? problem.micro_batches : producer.depth);
    }
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
  AddEdges(problem, quotient, parts);
  for (const QuotientLoan& loan : quotient.loans) {
    const int64_t bytes = problem.shared[loan.shared].bytes;
    const int64_t gradients = problem.training ? bytes * loan.consumers : 0;
    parts[loan.user_stage].borrowed += bytes + gradients;
    parts[loan.owner_stage].links += gradients;
  }
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
