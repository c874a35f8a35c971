// Discrete-event simulation of training steps: the same task order, credits and links as the workers have.
//
// A stage has one compute thread. Its tasks are forward(sub-DAG, m) and backward(sub-DAG, m), each in
// micro-batch order.
// - A forward may start when everything that the sub-DAG reads is there for m and its forwards done minus
// backwards done
//   are below its depth.
// - A backward may start when its forward is done and every gradient of what the sub-DAG provides is there
// (GPipe: and all
//   forwards of the stage's step are done).
// - Of the ready tasks: a backward first, of the lowest micro-batch, then of the later sub-DAG; else a
// forward of the lowest
//   micro-batch, then of the earlier sub-DAG.
// - A sub-DAG that neither computes the loss nor provides anything differentiable has no backward. Its depth
// bounds what it
//   may send before the reader took it: the send waits, the compute thread does not.
// - After a step's last task: update, once the gradients of lent variables are there, then the next step's
// forwards, once
//   the borrowed variables are there.
//
// Messages of one pair of stages leave in the order of (step, micro-batch), in pieces; each piece reserves
// time on all resources of its way, first come, first served. Encoding, decoding and sending overlap with
// compute.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/problem.h"

namespace fusion::scheduler {

/// Bytes that each frame of a message costs beside its payload: length, FrameHeader, gRPC and HTTP/2 framing.
inline constexpr int64_t kFrameHeaderBytes = 100;

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
  std::vector<SimulatedLink>
      links;  ///< by from, to, forward first; those that carry something each micro-batch
  std::vector<double> resource_seconds;  ///< by Network::resources: busy in a step
};

/// REQUIRES: a valid partition (see CheckPartition).
Simulation Simulate(const Problem& problem, const Partition& partition,
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
/// simulated step (under `options`) falls by what is worth it. GPipe: M. Where even the least depths do not
/// fit they are set, and CheckPartition says why.
void ChooseDepths(const Problem& problem, Partition& partition, const SimulationOptions& options = {});

}  // namespace fusion::scheduler
