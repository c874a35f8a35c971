// A stage's program resolved for execution: values as slot numbers, operators bound to LibTorch, and for each
// value how often it is read and how many cotangents its gradient is the sum of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "worker/engine/torch/operator_call.h"

namespace fusion::worker::engine {

/// A value of a micro-batch: an operator's output, a placeholder's data, or what an edge brings.
struct Slot {
  std::string name;  ///< OPERATOR[INDEX]
  graph::v1::TensorSpec spec;
  bool differentiable = false;
  int reads = 0;       ///< by operators of this stage and by outgoing edges
  int cotangents = 0;  ///< by differentiable operators of this stage, and by remote consumers
};

/// A variable of the stage, owned or borrowed.
struct StageVariable {
  const graph::v1::Operator* op = nullptr;
  bool borrowed = false;
  /// Operators that read it, anywhere, in ascending topological position: (position, name). Its gradient is
  /// the sum of one gradient for each.
  std::vector<std::pair<int32_t, std::string>> uses;
};

struct StageInput {
  bool is_variable = false;
  int index = 0;  ///< of the slot or the variable
  int use = 0;    ///< of a variable: index in StageVariable.uses
  bool differentiable = false;
  bool written = false;  ///< the operator writes to it while training
};

struct StageOperator {
  const graph::v1::Operator* op = nullptr;
  std::string what;  ///< for messages
  int32_t position = 0;
  std::optional<OperatorCall> call;  ///< absent: a placeholder
  std::vector<StageInput> inputs;    ///< as call->inputs()
  std::vector<int> outputs;          ///< slots
  std::vector<int> counters;         ///< variables that count its training passes
  bool differentiable = false;       ///< an input is
};

struct StageEdge {
  const graph::v1::Edge* edge = nullptr;
  int slot = 0;
  std::vector<int32_t> positions;  ///< of edge->consumers
};

struct StageSubDag {
  std::vector<StageOperator> operators;  ///< in topological order, without variables
  std::vector<StageEdge> outgoing;       ///< produced here, by edge id
  std::vector<int> outer_inputs;         ///< slots that it reads or feeds and no operator of it computes
  std::vector<StageEdge>
      returned;  ///< differentiable incoming edges first read here: their gradients leave here
};

struct StageGraph {
  graph::v1::StageProgram program;  ///< what the pointers point into
  std::vector<Slot> slots;
  std::vector<StageVariable> variables;
  std::vector<StageSubDag> sub_dags;
  std::vector<StageEdge> incoming;  ///< all, by edge id
  int loss_slot = -1;               ///< -1: not computed here
  /// Where the loss is the cross entropy of one class a sample: slots of scores and classes, which have one
  /// read more, to count the samples that are ranked right. Else -1.
  int scores_slot = -1;
  int classes_slot = -1;
  std::vector<int> written;  ///< variables that training passes write to, counters among them

  const StageEdge* FindIncoming(int32_t edge) const;
  const StageEdge* FindOutgoing(int32_t edge) const;
};

/// Errors name the operator or edge: NOT_FOUND and INVALID_ARGUMENT of OperatorCall::Bind; INVALID_ARGUMENT
/// where the program contradicts itself.
absl::StatusOr<std::unique_ptr<const StageGraph>> ResolveStage(const graph::v1::StageProgram& program);

}  // namespace fusion::worker::engine
