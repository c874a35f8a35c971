// Discrete-event simulation of training steps, by the rules that the workers follow
// (worker/pipeline/schedule.h).
//
// A stage has one compute thread. Its tasks are forward(sub-DAG, m) and backward(sub-DAG, m), each in the
// order of the micro-batches.
// - A forward may start when all that the sub-DAG reads for m is there and fewer than `depth` of its
//   micro-batches are in flight: forwards done minus backwards done, or, where it has no backward, not
//   yet taken by all its readers.
// - A backward may start when its forward is done and the gradients of all that the sub-DAG provides are
//   there. GPipe: when all forwards of the stage's step are done, too.
// - Of the ready tasks: a backward first (the lowest micro-batch, then the later sub-DAG), else a
//   forward (the lowest micro-batch, then the earlier sub-DAG).
// - A sub-DAG that computes the loss, or reads or provides something differentiable, has a backward.
// - After a step's last task: update, once the gradients of lent variables are there; then the forwards
//   of the next step, once the borrowed variables are there.
//
// Messages between two stages leave in the order of (step, micro-batch), variables first, in pieces; each
// piece reserves time on all resources of its way, first come, first served. Encoding, decoding and
// sending overlap with compute.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/problem.h"

namespace fusion::scheduler {

/// What worker/transport sends beside the payload: a descriptor for each message and a header for each of its
/// frames.
inline constexpr int64_t kDescriptorBytes = 72;
inline constexpr int64_t kFrameHeaderBytes = 16;

/// Payload of a frame: 20 ms of the link, within 4 KiB and 1 MiB.
int64_t FrameBytes(double bytes_per_second);

/// A message of `bytes` encoded, with the headers of its descriptor and of its frames.
int64_t MessageBytes(int64_t bytes, double bytes_per_second);

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
  double busy_seconds = 0;  ///< in a step: bytes / rate
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
  std::vector<SimulatedLink> links;  ///< that carry something each micro-batch, by from, to, forward first
  std::vector<double> resource_seconds;  ///< by Network::resources: busy in a step
};

/// REQUIRES: a valid partition (see CheckPartition).
Simulation Simulate(const Problem& problem, const Partition& partition,
                    const SimulationOptions& options = {});

/// The length of the step alone: what searches need.
double SimulateStepSeconds(const Problem& problem, const Partition& partition,
                           const SimulationOptions& options = {});

/// Closed form: the longest way of one micro-batch forward and back, plus M - 1 times the load of the busiest
/// stage or resource, plus update and shared variables. Depths are taken as sufficient. Cheap, for search.
double EstimateStepSeconds(const Problem& problem, const Partition& partition);

/// Predicted peak bytes of each stage: variables, gradients, optimizer state, saved tensors x depth, link
/// buffers.
std::vector<int64_t> StageMemory(const Problem& problem, const Partition& partition);

/// Every operator once, quotient graph acyclic, run orders consistent, pins, slots, memory.
/// FAILED_PRECONDITION says which with the numbers.
absl::Status CheckPartition(const Problem& problem, const Partition& partition);

/// Raises the depth of each sub-DAG from the longest path to the loss + 1 within M and memory, as long as the
/// simulated step (under `options`) falls by what is worth it, and where it rose adds some to spare. GPipe:
/// M. Where even the least depths do not fit they are set, and CheckPartition says why.
void ChooseDepths(const Problem& problem, Partition& partition, const SimulationOptions& options = {});

}  // namespace fusion::scheduler
