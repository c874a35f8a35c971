#include "worker/engine/torch/remote_autograd.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/torch/border.h"
#include "worker/engine/torch/cpu_clock.h"
#include "worker/engine/torch/host_tensor.h"

namespace fusion::worker::engine {
namespace {

namespace autograd = torch::autograd;

// Where an operator's autograd graph ends: stands for "whatever produced this input". The autograd engine
// captures the gradient that arrives here and never runs it. Unlike a leaf tensor it does not keep the
// input's storage alive.
class Border final : public autograd::Node {
 public:
  autograd::variable_list apply(autograd::variable_list&& /*gradients*/) override { return {}; }
};

// The same data with a history that ends at a new Border.
at::Tensor CutOff(const at::Tensor& value, autograd::Edge& border) {
  at::Tensor input(value.variable_data());
  auto node = c10::make_intrusive<Border>();
  border = autograd::Edge(node, 0);
  autograd::create_gradient_edge(input, std::move(node));
  return input;
}

}  // namespace

PassState::PassState(const StageGraph& stage)
    : values(stage.slots.size()),
      cotangents(stage.slots.size()),
      tapes(stage.sub_dags.size()),
      kept_inputs(stage.sub_dags.size()),
      forward_done(stage.sub_dags.size(), false),
      backward_done(stage.sub_dags.size(), false) {
  reads_left.reserve(stage.slots.size());
  for (const Slot& slot : stage.slots) {
    reads_left.push_back(slot.reads);
  }
}

PassState::PassState(const StageGraph& stage, int sub_dag) : PassState(stage) {
  std::fill(reads_left.begin(), reads_left.end(), 0);
  for (const StageOperator& op : stage.sub_dags[static_cast<size_t>(sub_dag)].operators) {
    for (const StageInput& input : op.inputs) {
      if (!input.is_variable) {
        ++reads_left[static_cast<size_t>(input.index)];
      }
    }
  }
}

void PassState::CountRead(int slot) {
  if (--reads_left[static_cast<size_t>(slot)] <= 0) {
    values[static_cast<size_t>(slot)].reset();
  }
}

absl::Status RemoteAutograd::Forward(PassState& state, int sub_dag, Keep keep,
                                     const ContextOf& context_of) const {
  const StageSubDag& stage_sub_dag = stage_.sub_dags[static_cast<size_t>(sub_dag)];
  const std::vector<StageOperator>& operators = stage_sub_dag.operators;
  std::vector<Tape>& tapes = state.tapes[static_cast<size_t>(sub_dag)];
  if (keep == Keep::kTapes) {
    tapes.resize(operators.size());
  }
  if (keep == Keep::kInputs) {
    for (const int slot : stage_sub_dag.outer_inputs) {
      state.kept_inputs[static_cast<size_t>(sub_dag)].push_back(state.values[static_cast<size_t>(slot)]);
    }
  }
  for (size_t i = 0; i < operators.size(); ++i) {
    const StageOperator& op = operators[i];
    if (!op.call.has_value()) {
      if (!state.values[static_cast<size_t>(op.outputs.front())].defined()) {
        return absl::FailedPreconditionError(absl::StrCat(op.what, " was not fed"));
      }
      continue;
    }
    const double start = observer_ ? ThreadCpuSeconds() : 0;
    // With kInputs each operator is recorded as it will be the second time, so that kernels take the same
    // path.
    Tape dropped;
    absl::Status status = Guarded(op.what, [&] {
      return ForwardOperator(op, context_of(*op.op), keep != Keep::kNothing, state,
                             keep == Keep::kTapes ? tapes[i] : dropped);
    });
    if (!status.ok()) {
      return status;
    }
    if (observer_) {
      observer_(static_cast<int>(i), ThreadCpuSeconds() - start);
    }
  }
  state.forward_done[static_cast<size_t>(sub_dag)] = true;
  return absl::OkStatus();
}

absl::Status RemoteAutograd::Recompute(PassState& state, int sub_dag, const ContextOf& context_of) const {
  const auto index = static_cast<size_t>(sub_dag);
  const std::vector<int>& slots = stage_.sub_dags[index].outer_inputs;
  std::vector<at::Tensor> inputs = std::move(state.kept_inputs[index]);
  if (inputs.size() != slots.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("sub-DAG ", sub_dag, " has kept ", inputs.size(), " of its ", slots.size(), " inputs"));
  }
  PassState again(stage_, sub_dag);
  for (size_t i = 0; i < slots.size(); ++i) {
    again.values[static_cast<size_t>(slots[i])] = std::move(inputs[i]);
  }
  inputs.clear();
  absl::Status status = Forward(again, sub_dag, Keep::kTapes, context_of);
  state.tapes[index] = std::move(again.tapes[index]);
  return status;
}

absl::Status RemoteAutograd::ForwardOperator(const StageOperator& op, const CallContext& context, bool record,
                                             PassState& state, Tape& tape) const {
  record = record && op.differentiable;
  std::vector<at::Tensor> inputs;
  inputs.reserve(op.inputs.size());
  for (const StageInput& input : op.inputs) {
    const at::Tensor& value =
        input.is_variable ? variables_.value(input.index) : state.values[static_cast<size_t>(input.index)];
    if (!value.defined()) {
      return absl::FailedPreconditionError(absl::StrCat(op.what, " reads ",
                                                        stage_.slots[static_cast<size_t>(input.index)].name,
                                                        ", which is not there yet"));
    }
    if (record && input.differentiable) {
      inputs.push_back(CutOff(value, tape.inputs.emplace_back()));
    } else if (input.written && context.training && !context.updates_variables) {
      inputs.push_back(value.clone());  // what an operator does to it has been done
    } else {
      inputs.push_back(value);
    }
  }

  std::vector<at::Tensor> outputs;
  {
    const at::AutoGradMode gradients(record);
    outputs = op.call->Run(context, inputs);
  }
  inputs.clear();
  if (context.training && context.updates_variables) {
    for (const int counter : op.counters) {
      variables_.value(counter).add_(1);
    }
  }
  if (outputs.size() != op.outputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(op.what, " returns ", outputs.size(),
                                                   " tensors, but the graph says ", op.outputs.size()));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto slot = static_cast<size_t>(op.outputs[i]);
    at::Tensor& output = outputs[i];
    if (!output.defined()) {
      return absl::InvalidArgumentError(absl::StrCat(op.what, ": its result ", i, " is absent"));
    }
    absl::Status status = CheckSpec(absl::StrCat(op.what, ": its result ", i), stage_.slots[slot].spec,
                                    context.samples, output);
    if (!status.ok()) {
      return status;
    }
    if (record) {
      tape.outputs.push_back(output.requires_grad() ? autograd::impl::gradient_edge(output)
                                                    : autograd::Edge());
    }
    if (state.reads_left[slot] > 0) {
      state.values[slot] = Canonical(at::Tensor(output.variable_data()));
    }
    output.reset();
  }
  for (const StageInput& input : op.inputs) {
    if (!input.is_variable) {
      state.CountRead(input.index);
    }
  }
  return absl::OkStatus();
}

absl::Status RemoteAutograd::Backward(PassState& state, int sub_dag, double loss_weight) const {
  const std::vector<StageOperator>& operators = stage_.sub_dags[static_cast<size_t>(sub_dag)].operators;
  std::vector<Tape>& tapes = state.tapes[static_cast<size_t>(sub_dag)];
  const at::NoGradGuard no_gradients;
  for (size_t i = operators.size(); i-- > 0;) {
    const StageOperator& op = operators[i];
    if (!op.differentiable) {
      continue;
    }
    const double start = observer_ ? ThreadCpuSeconds() : 0;
    absl::Status status = Guarded(absl::StrCat(op.what, ", backward"),
                                  [&] { return BackwardOperator(op, loss_weight, state, tapes[i]); });
    if (!status.ok()) {
      return status;
    }
    if (observer_) {
      observer_(static_cast<int>(i), ThreadCpuSeconds() - start);
    }
  }
  tapes.clear();
  state.backward_done[static_cast<size_t>(sub_dag)] = true;
  return absl::OkStatus();
}

absl::Status RemoteAutograd::BackwardOperator(const StageOperator& op, double loss_weight, PassState& state,
                                              Tape& tape) const {
  autograd::edge_list roots;
  autograd::variable_list seeds;
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const auto slot = static_cast<size_t>(op.outputs[i]);
    std::vector<Cotangent> cotangents = std::move(state.cotangents[slot]);
    state.cotangents[slot].clear();
    if (op.outputs[i] == stage_.loss_slot) {
      const at::TensorOptions options =
          at::TensorOptions().dtype(ScalarTypeOf(stage_.slots[slot].spec.dtype()));
      cotangents.push_back({std::numeric_limits<int32_t>::max(), at::full({}, loss_weight, options)});
    }
    if (static_cast<int>(cotangents.size()) != stage_.slots[slot].cotangents) {
      return absl::FailedPreconditionError(
          absl::StrCat(op.what, ", backward: ", cotangents.size(), " of the ", stage_.slots[slot].cotangents,
                       " cotangents of ", stage_.slots[slot].name, " are there"));
    }
    at::Tensor sum = Sum(std::move(cotangents));
    if (sum.defined() && tape.outputs[i].is_valid()) {
      roots.push_back(tape.outputs[i]);
      seeds.push_back(std::move(sum));
    }
  }

  autograd::variable_list gradients(tape.inputs.size());
  if (!roots.empty()) {
    gradients = autograd::Engine::get_default_engine().execute(roots, seeds, /*keep_graph=*/false,
                                                               /*create_graph=*/false,
                                                               /*accumulate_grad=*/false, tape.inputs);
  }
  seeds.clear();
  tape = Tape();

  size_t next = 0;
  for (const StageInput& input : op.inputs) {
    if (!input.differentiable) {
      continue;
    }
    at::Tensor gradient = std::move(gradients[next++]);
    if (input.is_variable) {
      if (gradient.defined()) {
        variables_.Accumulate(input.index, input.use, std::move(gradient));
      }
      continue;
    }
    state.cotangents[static_cast<size_t>(input.index)].push_back(
        {op.position, gradient.defined() ? Canonical(gradient) : at::Tensor()});
  }
  return absl::OkStatus();
}

at::Tensor RemoteAutograd::Sum(std::vector<Cotangent> cotangents) {
  std::stable_sort(cotangents.begin(), cotangents.end(),
                   [](const Cotangent& a, const Cotangent& b) { return a.position > b.position; });
  at::Tensor sum;
  bool owned = false;
  for (Cotangent& cotangent : cotangents) {
    if (!cotangent.tensor.defined()) {
      continue;
    }
    if (!sum.defined()) {
      sum = std::move(cotangent.tensor);
    } else if (!owned) {
      sum = sum.add(cotangent.tensor);  // the first may be shared with another value's gradient
      owned = true;
    } else {
      sum.add_(cotangent.tensor);
    }
  }
  return sum;
}

}  // namespace fusion::worker::engine
