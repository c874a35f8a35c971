// The scheduling problem in numbers: operators with their work, values with their bytes, compnodes with their
// speed and memory, and the network between them. Made from a graph and compnodes by `MakeProblem`; partition
// policies, the simulator and compression policies read nothing else.
//
// Bytes and seconds are of one micro-batch unless a name says otherwise.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "scheduler/network.h"
#include "scheduler/profile.h"

namespace fusion::scheduler {

/// Seconds are the scalar product of an operator's work with a node's seconds per work.
using Work = std::array<double, kOperatorClasses>;

struct OperatorWork {
  std::string name;
  Work forward{};
  Work backward{};
  double flops = 0;             ///< forward and backward
  int64_t parameters = 0;       ///< trainable elements of the variables it reads first (it owns them)
  int64_t variable_bytes = 0;   ///< of those variables, buffers included
  int64_t optimizer_bytes = 0;  ///< gradient and optimizer state of them
  int64_t saved_bytes = 0;      ///< kept per micro-batch in flight, outputs included that a gradient needs
  int64_t output_bytes = 0;
  int64_t internal_bytes = 0;  ///< of saved_bytes: neither input nor output; doubled while backward runs
  bool fed = false;            ///< a placeholder: its output is data
  int pinned_node = -1;        ///< index in Problem::nodes, or -1: anywhere
};

/// An output that other operators read. Dense fp32 size = layout.elements() x 4 for floating values.
struct Value {
  int producer = 0;            ///< index in Problem::operators
  std::vector<int> consumers;  ///< ascending; operators are in topological order
  int64_t bytes = 0;           ///< dense
  codec::Layout layout;        ///< rows x columns as codecs see it
  bool floating = true;        ///< codecs apply
  bool kept = true;            ///< a reader's gradient needs it: it stays until the backward pass
  bool differentiable = true;  ///< a gradient of the same size returns
};

/// A variable read by several operators; crossing stages costs its bytes once a step each way, lossless.
struct SharedValue {
  std::vector<int> consumers;  ///< ascending; the first one's stage owns it
  int64_t bytes = 0;
  bool trainable = true;  ///< each consumer has a gradient of its own until the update
};

struct Node {
  std::string name;
  std::string cluster;
  Work seconds_per_work{};
  double flops = 0;  ///< speed for EqualCompute and rho, lambda included
  double update_seconds_per_parameter = 0;
  double message_seconds = 0;  ///< of the compute thread, to take or to hand over one tensor
  int64_t memory_bytes = 0;    ///< limit of one stage; INT64_MAX: none declared
  int slots = 1;               ///< stages that it takes
};

struct Problem {
  std::vector<OperatorWork> operators;  ///< in topological order, variables left out
  std::vector<Value> values;
  std::vector<SharedValue> shared;
  std::vector<Node> nodes;  ///< those that the job may use, in file order
  Network network;
  int loss = -1;          ///< operator that computes the loss; -1: the last one
  int micro_batches = 1;  ///< M
  int max_stages = 1;     ///< from placement.stages.max
  bool gpipe = false;
  bool training = true;    ///< false: forward only
  bool recompute = false;  ///< sub-DAGs keep their inputs and run forward again before backward
};

/// Operators of one sub-DAG (indexes, ascending) and micro-batches in flight at most.
struct PlacedSubDag {
  std::vector<int> operators;
  int depth = 1;
};

struct PlacedStage {
  int node = 0;
  std::vector<PlacedSubDag> sub_dags;  ///< in run order
};

/// Codec of what travels from one stage to another, per direction.
struct LinkCodec {
  int from_stage = 0;  ///< of the value; the gradient goes the other way
  int to_stage = 0;
  codec::Codec codec;
};

struct Partition {
  std::vector<PlacedStage> stages;  ///< in order of the first sub-DAG's first operator
  std::vector<LinkCodec> codecs;    ///< links not listed are dense fp32
};

}  // namespace fusion::scheduler
