// Automatic differentiation one operator at a time. Forward runs an operator over inputs that are cut off
// from the operators before it and keeps the small autograd graph of this one call; backward, when the
// cotangents of all consumers of its outputs are there, runs that graph and hands the cotangents of its
// inputs on. The consumers may be anywhere: a cotangent from another stage takes the same place in the sum as
// one computed here.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/engine/torch/operator_call.h"
#include "worker/engine/torch/stage_graph.h"
#include "worker/engine/torch/variable_store.h"

namespace fusion::worker::engine {

/// What one consumer contributes to the gradient of a value.
struct Cotangent {
  int32_t position = 0;  ///< topological position of the consumer
  at::Tensor tensor;     ///< undefined: no gradient comes back from it
};

/// What backward needs of one forward execution of an operator. It holds the tensors that the operator's
/// autograd formula saved, and neither inputs nor outputs beyond those.
struct Tape {
  torch::autograd::edge_list outputs;  ///< roots; invalid for an output without gradient
  torch::autograd::edge_list inputs;   ///< of the differentiable inputs, in their order
};

/// A micro-batch on this stage.
struct PassState {
  std::vector<at::Tensor> values;                  ///< by slot; freed after the last read
  std::vector<int> reads_left;                     ///< by slot
  std::vector<std::vector<Cotangent>> cotangents;  ///< by slot
  std::vector<std::vector<Tape>> tapes;            ///< by sub-DAG and operator
  std::vector<std::vector<at::Tensor>>
      kept_inputs;                  ///< by sub-DAG, as its outer_inputs, for a second forward
  std::vector<bool> forward_done;   ///< by sub-DAG
  std::vector<bool> backward_done;  ///< by sub-DAG

  explicit PassState(const StageGraph& stage);
  /// For one sub-DAG alone: nobody else reads its values.
  PassState(const StageGraph& stage, int sub_dag);

  /// Drops the value after its last read.
  void CountRead(int slot);
};

/// What a forward leaves for the backward.
enum class Keep {
  kNothing,  ///< there is none
  kTapes,
  kInputs,  ///< the sub-DAG's outer inputs, for a Recompute
};

/// Called with an operator's index in its sub-DAG and what it cost, in CPU seconds of this thread.
using OperatorObserver = std::function<void(int index, double cpu_seconds)>;

/// Random key, samples and the like of an operator's call.
using ContextOf = std::function<CallContext(const graph::v1::Operator&)>;

class RemoteAutograd {
 public:
  /// Both must outlive this.
  RemoteAutograd(const StageGraph& stage, VariableStore& variables) : stage_(stage), variables_(variables) {}

  /// Runs a sub-DAG; `context_of` gives each operator its random key. FAILED_PRECONDITION where a value is
  /// missing, INVALID_ARGUMENT where LibTorch refuses an operator or a result is not as the graph says,
  /// RESOURCE_EXHAUSTED at the memory limit; all name the operator.
  absl::Status Forward(PassState& state, int sub_dag, Keep keep, const ContextOf& context_of) const;

  /// The forward once more, from the inputs that a Forward with kInputs has kept: fills the tapes.
  absl::Status Recompute(PassState& state, int sub_dag, const ContextOf& context_of) const;

  /// Walks the sub-DAG's operators in descending order. `loss_weight` seeds the loss. FAILED_PRECONDITION
  /// names a value with missing cotangents. Gradients of variables go to the store.
  absl::Status Backward(PassState& state, int sub_dag, double loss_weight) const;

  /// Sum of a value's cotangents in descending order of their consumers; undefined where all are.
  static at::Tensor Sum(std::vector<Cotangent> cotangents);

  /// For profiles; empty: nothing is measured.
  void set_observer(OperatorObserver observer) { observer_ = std::move(observer); }

 private:
  absl::Status ForwardOperator(const StageOperator& op, const CallContext& context, bool record,
                               PassState& state, Tape& tape) const;
  absl::Status BackwardOperator(const StageOperator& op, double loss_weight, PassState& state,
                                Tape& tape) const;

  const StageGraph& stage_;
  VariableStore& variables_;
  OperatorObserver observer_;
};

}  // namespace fusion::worker::engine
