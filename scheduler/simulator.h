// Discrete-event simulation of one training step: the same task order, credits and links as the workers have.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/problem.h"

namespace fusion::scheduler {

struct SimulationOptions {
  bool free_links = false;  ///< infinite bandwidth, declared latency kept
  int steps = 3;            ///< simulated; the last one's length is the result (a step overlaps the next)
};

struct SimulatedLink {
  int from_stage = 0;  ///< direction of travel
  int to_stage = 0;
  bool forward = true;
  int64_t dense_bytes = 0;  ///< a micro-batch
  int64_t bytes = 0;        ///< a micro-batch, encoded, headers included
  double seconds = 0;       ///< one micro-batch alone: latency + bytes / rate
  double busy_seconds = 0;  ///< in a step
};

struct SimulatedStage {
  double forward_seconds = 0;  ///< one micro-batch
  double backward_seconds = 0;
  double busy_seconds = 0;  ///< in a step, update included
};

struct Simulation {
  double step_seconds = 0;
  double bubble_fraction = 0;  ///< 1 - largest busy / step
  std::vector<SimulatedStage> stages;
  std::vector<SimulatedLink> links;
};

/// REQUIRES: a valid partition (see CheckPartition).
Simulation Simulate(const Problem& problem, const Partition& partition,
                    const SimulationOptions& options = {});

/// Closed form sum(C + R) + (M - 1) max(C, R): cheap, for search.
double EstimateStepSeconds(const Problem& problem, const Partition& partition);

/// Predicted peak bytes of each stage: variables, gradients, optimizer state, saved tensors x depth, link
/// buffers.
std::vector<int64_t> StageMemory(const Problem& problem, const Partition& partition);

/// Every operator once, quotient graph acyclic, run orders consistent, pins, slots, memory.
/// FAILED_PRECONDITION says which with the numbers.
absl::Status CheckPartition(const Problem& problem, const Partition& partition);

/// Raises the depth of each sub-DAG from the longest path to the loss + 1 within M and memory, until the
/// simulated step stops falling. GPipe: M.
void ChooseDepths(const Problem& problem, Partition& partition);

}  // namespace fusion::scheduler
