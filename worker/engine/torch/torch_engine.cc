#include "worker/engine/torch/torch_engine.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/engine/random.h"
#include "worker/engine/torch/border.h"
#include "worker/engine/torch/host_tensor.h"

namespace fusion::worker::engine {
namespace {

std::string PassName(const Pass& pass) {
  return absl::StrCat("step ", pass.step, ", micro-batch ", pass.micro_batch);
}

// In fp64, in a fixed order; eight sums so that additions need not wait for each other.
template <class T>
double SquaredNorm(const T* data, int64_t count) {
  constexpr int kSums = 8;
  std::array<double, kSums> sums{};
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int k = 0; k < kSums; ++k) {
      sums[k] += static_cast<double>(data[i + k]) * static_cast<double>(data[i + k]);
    }
  }
  for (int k = 0; i < count; ++i, ++k) {
    sums[k] += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  }
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  return total;
}

double SquaredNorm(const at::Tensor& gradient) {
  return gradient.scalar_type() == at::kDouble
             ? SquaredNorm(gradient.const_data_ptr<double>(), gradient.numel())
             : SquaredNorm(gradient.const_data_ptr<float>(), gradient.numel());
}

}  // namespace

void PrepareThread(int threads) {
  thread_local int prepared = 0;
  const int wanted = std::max(threads, 1);
  if (prepared != wanted) {
    at::set_num_threads(wanted);
    prepared = wanted;
  }
}

void PrepareProcess(int threads) {
  InstallCountingAllocator();
  PrepareThread(threads);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  // Else the line above makes every at::empty write its memory.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

absl::Status TorchEngine::Load(const graph::v1::StageProgram& program, const EngineOptions& options) {
  if (stage_ != nullptr) {
    return absl::FailedPreconditionError("the engine is already loaded");
  }
  return Guarded("loading the stage", [&]() -> absl::Status {
    PrepareProcess(options.threads);
    options_ = options;
    account_ = std::make_shared<MemoryAccount>(options.memory_limit_bytes);
    const MemoryScope memory(account_);
    const at::NoGradGuard no_gradients;
    absl::StatusOr<std::unique_ptr<const StageGraph>> stage = ResolveStage(program);
    if (!stage.ok()) {
      return stage.status();
    }
    auto variables = std::make_unique<VariableStore>(**stage);
    if (absl::Status status = variables->Create(options.seed); !status.ok()) {
      return status;
    }
    std::vector<Parameter> parameters;
    std::vector<int> owned;
    for (size_t i = 0; i < (*stage)->variables.size(); ++i) {
      const StageVariable& variable = (*stage)->variables[i];
      if (!variable.borrowed && variable.op->variable().trainable()) {
        owned.push_back(static_cast<int>(i));
        parameters.push_back({variable.op->variable().tensor_name(), variables->value(static_cast<int>(i))});
      }
    }
    if (options.task_train) {
      absl::StatusOr<Optimizers> optimizers = Optimizers::Create(options.training, parameters);
      if (!optimizers.ok()) {
        return optimizers.status();
      }
      optimizers_ = *std::move(optimizers);
    }
    autograd_ = std::make_unique<RemoteAutograd>(**stage, *variables);
    last_backward_.assign((*stage)->sub_dags.size(), PassKey{0, -1});
    for (const graph::v1::SharedVariable& lent : (*stage)->program.lent()) {
      lent_arrived_.emplace_back(static_cast<size_t>(lent.consumers_size()), false);
    }
    owned_ = std::move(owned);
    variables_ = std::move(variables);
    stage_ = *std::move(stage);
    return absl::OkStatus();
  });
}

std::vector<VariableInfo> TorchEngine::Variables() const {
  std::vector<VariableInfo> result;
  if (stage_ == nullptr) {
    return result;
  }
  for (const StageVariable& variable : stage_->variables) {
    result.push_back({.name = variable.op->name(),
                      .tensor_name = variable.op->variable().tensor_name(),
                      .spec = variable.op->outputs(0),
                      .trainable = variable.op->variable().trainable(),
                      .borrowed = variable.borrowed});
  }
  return result;
}

absl::StatusOr<Tensor> TorchEngine::ReadVariable(const std::string& name) const {
  const absl::StatusOr<int> variable = VariableIndex(name);
  if (!variable.ok()) {
    return variable.status();
  }
  return Guarded(absl::StrCat("reading variable '", name, "'"),
                 [&]() -> absl::StatusOr<Tensor> { return Copy(variables_->value(*variable)); });
}

absl::Status TorchEngine::WriteVariable(const std::string& name, const Tensor& value) {
  const absl::StatusOr<int> variable = VariableIndex(name);
  if (!variable.ok()) {
    return variable.status();
  }
  const std::string what = absl::StrCat("the new value of variable '", name, "'");
  return Guarded(what, [&]() -> absl::Status {
    const at::NoGradGuard no_gradients;
    const at::Tensor view = Borrow(value, account_);
    const StageVariable& target = stage_->variables[static_cast<size_t>(*variable)];
    if (absl::Status status = CheckSpec(what, target.op->outputs(0), 0, view); !status.ok()) {
      return status;
    }
    variables_->value(*variable).copy_(view);
    return absl::OkStatus();
  });
}

absl::Status TorchEngine::Feed(const Pass& pass, const std::string& placeholder, const Tensor& value) {
  if (absl::Status status = CheckLoaded(); !status.ok()) {
    return status;
  }
  for (const StageSubDag& sub_dag : stage_->sub_dags) {
    for (const StageOperator& op : sub_dag.operators) {
      if (!op.call.has_value() && op.op->name() == placeholder) {
        return Place(pass, op.outputs.front(), absl::StrCat("data for placeholder '", placeholder, "'"),
                     value);
      }
    }
  }
  return absl::NotFoundError(
      absl::StrCat("stage ", stage_->program.stage(), " has no placeholder '", placeholder, "'"));
}

absl::Status TorchEngine::Receive(const Pass& pass, int32_t edge, const Tensor& value) {
  if (absl::Status status = CheckLoaded(); !status.ok()) {
    return status;
  }
  const StageEdge* incoming = stage_->FindIncoming(edge);
  if (incoming == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("stage ", stage_->program.stage(), " has no incoming edge ", edge));
  }
  return Place(pass, incoming->slot, absl::StrCat("edge ", edge), value);
}

absl::Status TorchEngine::Place(const Pass& pass, int slot, const std::string& what, const Tensor& value) {
  return Guarded(absl::StrCat(what, " of ", PassName(pass)), [&]() -> absl::Status {
    const MemoryScope memory(account_);
    const at::NoGradGuard no_gradients;
    at::Tensor view = Borrow(value, account_);
    if (absl::Status status =
            CheckSpec(what, stage_->slots[static_cast<size_t>(slot)].spec, pass.samples, view);
        !status.ok()) {
      return status;
    }
    PassState& state = StateOf(pass);
    if (state.values[static_cast<size_t>(slot)].defined()) {
      return absl::AlreadyExistsError(absl::StrCat(what, " of ", PassName(pass), " is already there"));
    }
    state.values[static_cast<size_t>(slot)] = std::move(view);
    return absl::OkStatus();
  });
}

absl::StatusOr<ForwardResult> TorchEngine::Forward(const Pass& pass, int sub_dag) {
  if (absl::Status status = CheckSubDag(sub_dag); !status.ok()) {
    return status;
  }
  return Guarded(absl::StrCat("forward of ", PassName(pass)), [&] { return RunForward(pass, sub_dag); });
}

ContextOf TorchEngine::ContextsOf(const Pass& pass, bool again) const {
  return [this, pass, again](const graph::v1::Operator& op) {
    return CallContext{.samples = pass.samples,
                       .random_key = OperatorKey(options_.seed, pass.step, pass.micro_batch, op.name()),
                       .training = pass.training,
                       .updates_variables = !again};
  };
}

absl::StatusOr<ForwardResult> TorchEngine::RunForward(const Pass& pass, int sub_dag) {
  PrepareThread(options_.threads);
  const MemoryScope memory(account_);
  const at::NoGradGuard no_gradients;
  PassState& state = StateOf(pass);
  if (state.forward_done[static_cast<size_t>(sub_dag)]) {
    return absl::FailedPreconditionError(
        absl::StrCat("sub-DAG ", sub_dag, " has already run forward for ", PassName(pass)));
  }
  if (pass.training && pass.step != step_) {
    RememberWritten(pass.step);
  }
  const Keep keep_to_train = options_.training.recompute() ? Keep::kInputs : Keep::kTapes;
  const Keep keep = pass.training ? keep_to_train : Keep::kNothing;
  if (absl::Status status = autograd_->Forward(state, sub_dag, keep, ContextsOf(pass, /*again=*/false));
      !status.ok()) {
    return status;
  }

  ForwardResult result;
  const StageSubDag& stage_sub_dag = stage_->sub_dags[static_cast<size_t>(sub_dag)];
  for (const StageEdge& edge : stage_sub_dag.outgoing) {
    result.outputs.push_back({.edge = edge.edge->id(),
                              .consumer = -1,
                              .tensor = Lend(state.values[static_cast<size_t>(edge.slot)])});
    state.CountRead(edge.slot);
  }
  for (const StageOperator& op : stage_sub_dag.operators) {
    for (const int slot : op.outputs) {
      if (slot == stage_->loss_slot) {
        const at::Tensor& loss = state.values[static_cast<size_t>(slot)];
        if (loss.numel() != 1) {
          return absl::InvalidArgumentError(
              absl::StrCat(op.what, ": the loss is ", DescribeTensor(loss), ", not a scalar"));
        }
        result.loss = loss.item().toDouble();
        state.CountRead(slot);
        result.correct = CountCorrect(state, pass.training);
      }
    }
  }
  if (!pass.training &&
      std::find(state.forward_done.begin(), state.forward_done.end(), false) == state.forward_done.end()) {
    Release(pass);
  }
  return result;
}

std::optional<int64_t> TorchEngine::CountCorrect(PassState& state, bool training) const {
  if (stage_->scores_slot < 0) {
    return std::nullopt;
  }
  std::optional<int64_t> correct;
  if (!training) {
    const at::Tensor& scores = state.values[static_cast<size_t>(stage_->scores_slot)];
    const at::Tensor& classes = state.values[static_cast<size_t>(stage_->classes_slot)];
    correct = at::argmax(scores, 1).eq(classes).sum().item().toLong();
  }
  state.CountRead(stage_->scores_slot);
  state.CountRead(stage_->classes_slot);
  return correct;
}

absl::Status TorchEngine::ReceiveGradient(const Pass& pass, const EdgeTensor& gradient) {
  if (absl::Status status = CheckLoaded(); !status.ok()) {
    return status;
  }
  const std::string what = absl::StrCat("gradient of edge ", gradient.edge, " of ", PassName(pass));
  const StageEdge* outgoing = stage_->FindOutgoing(gradient.edge);
  if (outgoing == nullptr || !outgoing->edge->differentiable()) {
    return absl::NotFoundError(absl::StrCat("stage ", stage_->program.stage(),
                                            " has no outgoing differentiable edge ", gradient.edge));
  }
  const auto pass_state = passes_.find({pass.step, pass.micro_batch});
  if (pass_state == passes_.end()) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": this stage has not run it forward"));
  }
  const bool each = outgoing->edge->cotangent_per_consumer();
  if (each ? (gradient.consumer < 0 || gradient.consumer >= outgoing->edge->consumers_size())
           : gradient.consumer != -1) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": consumer ", gradient.consumer, " does not fit; the edge has ",
        each ? absl::StrCat("one gradient for each of ", outgoing->edge->consumers_size(), " consumers")
             : std::string("one gradient, with consumer -1")));
  }
  return Guarded(what, [&]() -> absl::Status {
    const MemoryScope memory(account_);
    const at::NoGradGuard no_gradients;
    // A sum takes the place of the first of its consumers (graph.proto).
    Cotangent cotangent;
    cotangent.position = outgoing->positions[each ? static_cast<size_t>(gradient.consumer) : 0];
    if (gradient.tensor.has_value()) {
      cotangent.tensor = Borrow(*gradient.tensor, account_);
      absl::Status status = CheckSpec(what, stage_->slots[static_cast<size_t>(outgoing->slot)].spec,
                                      pass.samples, cotangent.tensor);
      if (!status.ok()) {
        return status;
      }
    }
    std::vector<Cotangent>& there = pass_state->second.cotangents[static_cast<size_t>(outgoing->slot)];
    there.push_back(std::move(cotangent));
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<EdgeTensor>> TorchEngine::Backward(const Pass& pass, int sub_dag) {
  if (absl::Status status = CheckSubDag(sub_dag); !status.ok()) {
    return status;
  }
  return Guarded(absl::StrCat("backward of ", PassName(pass)), [&] { return RunBackward(pass, sub_dag); });
}

absl::StatusOr<std::vector<EdgeTensor>> TorchEngine::RunBackward(const Pass& pass, int sub_dag) {
  const auto index = static_cast<size_t>(sub_dag);
  const PassKey key{pass.step, pass.micro_batch};
  const auto found = passes_.find(key);
  if (!pass.training || found == passes_.end() || !found->second.forward_done[index] ||
      found->second.backward_done[index]) {
    return absl::FailedPreconditionError(
        absl::StrCat("sub-DAG ", sub_dag, " has no forward of ", PassName(pass), " to go back through"));
  }
  if (key <= last_backward_[index]) {
    return absl::FailedPreconditionError(
        absl::StrCat("backward of sub-DAG ", sub_dag, " for ", PassName(pass), " comes after that of step ",
                     last_backward_[index].first, ", micro-batch ", last_backward_[index].second,
                     "; gradients are summed in micro-batch order"));
  }
  PrepareThread(options_.threads);
  const MemoryScope memory(account_);
  const at::NoGradGuard no_gradients;
  PassState& state = found->second;
  if (options_.training.recompute()) {
    if (absl::Status status = autograd_->Recompute(state, sub_dag, ContextsOf(pass, /*again=*/true));
        !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = autograd_->Backward(state, sub_dag, pass.weight); !status.ok()) {
    return status;
  }
  last_backward_[index] = key;
  squared_norms_.clear();

  std::vector<EdgeTensor> result;
  for (const StageEdge& edge : stage_->sub_dags[index].returned) {
    std::vector<Cotangent> cotangents = std::move(state.cotangents[static_cast<size_t>(edge.slot)]);
    state.cotangents[static_cast<size_t>(edge.slot)].clear();
    const Slot& slot = stage_->slots[static_cast<size_t>(edge.slot)];
    if (static_cast<int>(cotangents.size()) != slot.cotangents) {
      return absl::FailedPreconditionError(
          absl::StrCat("edge ", edge.edge->id(), " (", slot.name, "): ", cotangents.size(), " of its ",
                       slot.cotangents, " cotangents are there; sub-DAGs run backward in reverse order"));
    }
    const auto send = [&](int32_t consumer, const at::Tensor& tensor) {
      result.push_back({.edge = edge.edge->id(),
                        .consumer = consumer,
                        .tensor = tensor.defined() ? std::optional(Lend(tensor)) : std::nullopt});
    };
    if (!edge.edge->cotangent_per_consumer()) {
      send(-1, RemoteAutograd::Sum(std::move(cotangents)));
      continue;
    }
    for (size_t i = 0; i < edge.positions.size(); ++i) {
      const auto cotangent =
          std::find_if(cotangents.begin(), cotangents.end(),
                       [&](const Cotangent& candidate) { return candidate.position == edge.positions[i]; });
      send(static_cast<int32_t>(i), cotangent == cotangents.end() ? at::Tensor() : cotangent->tensor);
    }
  }
  if (std::find(state.backward_done.begin(), state.backward_done.end(), false) == state.backward_done.end()) {
    Release(pass);
  }
  return result;
}

void TorchEngine::Release(const Pass& pass) { passes_.erase({pass.step, pass.micro_batch}); }

absl::StatusOr<int> TorchEngine::UseOf(const StageVariable& variable, const graph::v1::SharedVariable& shared,
                                       int32_t consumer) {
  if (consumer >= 0 && consumer < shared.consumers_size()) {
    for (size_t i = 0; i < variable.uses.size(); ++i) {
      if (variable.uses[i].second == shared.consumers(consumer)) {
        return static_cast<int>(i);
      }
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("shared variable ", shared.id(), " ('", shared.variable(),
                                                 "') has no consumer ", consumer));
}

absl::StatusOr<std::vector<VariableGradient>> TorchEngine::TakeBorrowedGradients() {
  if (absl::Status status = CheckLoaded(); !status.ok()) {
    return status;
  }
  std::vector<VariableGradient> result;
  for (const graph::v1::SharedVariable& shared : stage_->program.borrowed()) {
    const absl::StatusOr<int> variable = VariableIndex(shared.variable());
    if (!variable.ok()) {
      return variable.status();
    }
    for (int32_t consumer = 0; consumer < shared.consumers_size(); ++consumer) {
      const absl::StatusOr<int> use =
          UseOf(stage_->variables[static_cast<size_t>(*variable)], shared, consumer);
      if (!use.ok()) {
        return use.status();
      }
      const at::Tensor& gradient = variables_->use(*variable, *use);
      result.push_back({.shared = shared.id(),
                        .consumer = consumer,
                        .tensor = gradient.defined() ? std::optional(Lend(gradient)) : std::nullopt});
    }
    variables_->ResetGradients(*variable);
  }
  return result;
}

absl::Status TorchEngine::ReceiveLentGradient(const VariableGradient& gradient) {
  if (absl::Status status = CheckLoaded(); !status.ok()) {
    return status;
  }
  for (int i = 0; i < stage_->program.lent_size(); ++i) {
    const graph::v1::SharedVariable& shared = stage_->program.lent(i);
    if (shared.id() != gradient.shared) {
      continue;
    }
    const absl::StatusOr<int> variable = VariableIndex(shared.variable());
    if (!variable.ok()) {
      return variable.status();
    }
    const StageVariable& target = stage_->variables[static_cast<size_t>(*variable)];
    const absl::StatusOr<int> use = UseOf(target, shared, gradient.consumer);
    if (!use.ok()) {
      return use.status();
    }
    const std::string what =
        absl::StrCat("gradient of shared variable ", shared.id(), " ('", shared.variable(), "')");
    return Guarded(what, [&]() -> absl::Status {
      const MemoryScope memory(account_);
      const at::NoGradGuard no_gradients;
      at::Tensor tensor;
      if (gradient.tensor.has_value()) {
        tensor = Borrow(*gradient.tensor, account_);
        if (absl::Status status = CheckSpec(what, target.op->outputs(0), 0, tensor); !status.ok()) {
          return status;
        }
      }
      std::vector<bool>& arrived = lent_arrived_[static_cast<size_t>(i)];
      if (arrived[static_cast<size_t>(gradient.consumer)]) {
        return absl::AlreadyExistsError(
            absl::StrCat(what, " from consumer ", gradient.consumer, " came twice"));
      }
      arrived[static_cast<size_t>(gradient.consumer)] = true;
      squared_norms_.clear();
      variables_->SetUse(*variable, *use, tensor);
      return absl::OkStatus();
    });
  }
  return absl::NotFoundError(
      absl::StrCat("stage ", stage_->program.stage(), " lends no variable with id ", gradient.shared));
}

absl::Status TorchEngine::CheckGradientsAreThere() const {
  if (absl::Status status = CheckLoaded(); !status.ok()) {
    return status;
  }
  if (!optimizers_.has_value()) {
    return absl::FailedPreconditionError("the engine was loaded to evaluate; it has no optimizer");
  }
  for (int i = 0; i < stage_->program.lent_size(); ++i) {
    const std::vector<bool>& arrived = lent_arrived_[static_cast<size_t>(i)];
    if (std::find(arrived.begin(), arrived.end(), false) != arrived.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("a gradient of variable '", stage_->program.lent(i).variable(), "' from stage ",
                       stage_->program.lent(i).user_stage(), " has not come"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GradientNorm>> TorchEngine::GradientNorms() {
  if (absl::Status status = CheckGradientsAreThere(); !status.ok()) {
    return status;
  }
  return Guarded("norms of the gradients", [&]() -> absl::StatusOr<std::vector<GradientNorm>> {
    const MemoryScope memory(account_);
    const at::NoGradGuard no_gradients;
    std::vector<GradientNorm> result;
    squared_norms_.clear();
    for (const int variable : owned_) {
      const at::Tensor gradient = variables_->Gradient(variable);
      squared_norms_.push_back(gradient.defined() ? SquaredNorm(gradient) : 0);
      const std::string& name = stage_->variables[static_cast<size_t>(variable)].op->name();
      const auto position = stage_->program.positions().find(name);
      if (position == stage_->program.positions().end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the program does not say the position of variable '", name, "'"));
      }
      result.push_back({.position = position->second, .squared = squared_norms_.back()});
    }
    return result;
  });
}

absl::StatusOr<UpdateResult> TorchEngine::Update(int64_t step, const UpdateOptions& options) {
  const std::string what = absl::StrCat("update of step ", step);
  if (absl::Status status = CheckGradientsAreThere(); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
  }
  return Guarded(what, [&] { return RunUpdate(options); });
}

void TorchEngine::RememberWritten(int64_t step) {
  step_ = step;
  written_before_.clear();
  for (const int variable : stage_->written) {
    written_before_.push_back(variables_->value(variable).clone());
  }
}

void TorchEngine::RestoreWritten() {
  for (size_t i = 0; i < written_before_.size(); ++i) {
    variables_->value(stage_->written[i]).copy_(written_before_[i]);
  }
}

absl::StatusOr<UpdateResult> TorchEngine::RunUpdate(const UpdateOptions& options) {
  PrepareThread(options_.threads);
  const MemoryScope memory(account_);
  const at::NoGradGuard no_gradients;
  UpdateResult result;
  for (size_t i = 0; i < owned_.size(); ++i) {
    at::Tensor gradient = variables_->Gradient(owned_[i]);
    variables_->ResetGradients(owned_[i]);
    if (gradient.defined()) {
      result.squared_gradient_norm += squared_norms_.empty() ? SquaredNorm(gradient) : squared_norms_[i];
      variables_->value(owned_[i]).mutable_grad() = std::move(gradient);
    }
  }
  squared_norms_.clear();
  result.finite = std::isfinite(result.squared_gradient_norm);
  if (result.finite && !options.skip) {
    for (const int variable : owned_) {
      at::Tensor& gradient = variables_->value(variable).mutable_grad();
      if (options.gradient_scale != 1 && gradient.defined()) {
        gradient.mul_(options.gradient_scale);
      }
    }
    optimizers_->Step(options.learning_rate_factor);
  } else {
    RestoreWritten();
  }
  for (const int variable : owned_) {
    variables_->value(variable).mutable_grad().reset();
  }
  for (std::vector<bool>& arrived : lent_arrived_) {
    std::fill(arrived.begin(), arrived.end(), false);
  }
  return result;
}

absl::StatusOr<std::vector<NamedTensor>> TorchEngine::ReadOptimizerState() const {
  if (!optimizers_.has_value()) {
    return absl::FailedPreconditionError("the engine has no optimizer");
  }
  return Guarded("reading the optimizer's state", [&]() -> absl::StatusOr<std::vector<NamedTensor>> {
    std::vector<NamedTensor> result;
    for (const NamedState& state : optimizers_->ReadState()) {
      result.push_back({.name = state.name, .tensor = Copy(state.value)});
    }
    return result;
  });
}

absl::Status TorchEngine::WriteOptimizerState(const std::vector<NamedTensor>& state) {
  if (!optimizers_.has_value()) {
    return absl::FailedPreconditionError("the engine has no optimizer");
  }
  return Guarded("writing the optimizer's state", [&] {
    const MemoryScope memory(account_);
    const at::NoGradGuard no_gradients;
    std::vector<NamedState> views;
    views.reserve(state.size());
    for (const NamedTensor& entry : state) {
      views.push_back({entry.name, Borrow(entry.tensor, account_)});
    }
    return optimizers_->WriteState(views);
  });
}

absl::StatusOr<std::optional<Tensor>> TorchEngine::ReadGradient(const std::string& name) const {
  const absl::StatusOr<int> variable = VariableIndex(name);
  if (!variable.ok()) {
    return variable.status();
  }
  return Guarded(absl::StrCat("reading the gradient of '", name, "'"),
                 [&]() -> absl::StatusOr<std::optional<Tensor>> {
                   const at::NoGradGuard no_gradients;
                   const at::Tensor gradient = variables_->Gradient(*variable);
                   return gradient.defined() ? std::optional(Copy(gradient)) : std::nullopt;
                 });
}

absl::Status TorchEngine::CheckLoaded() const {
  return stage_ != nullptr ? absl::OkStatus() : absl::FailedPreconditionError("the engine is not loaded");
}

absl::Status TorchEngine::CheckSubDag(int sub_dag) const {
  if (absl::Status status = CheckLoaded(); !status.ok()) {
    return status;
  }
  if (sub_dag < 0 || sub_dag >= static_cast<int>(stage_->sub_dags.size())) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", stage_->program.stage(), " has no sub-DAG ",
                                                   sub_dag, ", only ", stage_->sub_dags.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> TorchEngine::VariableIndex(const std::string& name) const {
  if (absl::Status status = CheckLoaded(); !status.ok()) {
    return status;
  }
  const int index = variables_->Find(name);
  if (index < 0) {
    return absl::NotFoundError(
        absl::StrCat("stage ", stage_->program.stage(), " has no variable '", name, "'"));
  }
  return index;
}

PassState& TorchEngine::StateOf(const Pass& pass) {
  return passes_.try_emplace({pass.step, pass.micro_batch}, *stage_).first->second;
}

}  // namespace fusion::worker::engine

extern "C" fusion::worker::Engine* fusion_create_engine() {
  return new fusion::worker::engine::TorchEngine;  // NOLINT: LoadEngine owns it
}
