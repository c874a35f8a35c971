#include "worker/testing/fake_engine.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

using graph::v1::Edge;
using graph::v1::Operator;
using graph::v1::SharedVariable;

constexpr float kLearningRate = 1e-3F;

const int64_t* Ids(const Tensor& tensor) { return reinterpret_cast<const int64_t*>(tensor.data.get()); }

std::vector<int64_t> Shape(const graph::v1::TensorSpec& spec) {
  return {spec.shape().begin(), spec.shape().end()};
}

float Coefficient(size_t k) { return 0.5F + 0.25F * static_cast<float>(k); }

Tensor Filled(std::vector<int64_t> shape, float value) {
  Tensor tensor = AllocateTensor(graph::v1::FLOAT32, std::move(shape));
  for (float& x : tensor.mutable_floats()) {
    x = value;
  }
  return tensor;
}

// Sum in the map's order.
template <typename Map>
std::optional<Tensor> Sum(const Map& parts) {
  if (parts.empty()) {
    return std::nullopt;
  }
  auto part = parts.begin();
  if (parts.size() == 1) {
    return part->second;
  }
  Tensor total = Filled(part->second.shape, 0);
  absl::Span<float> out = total.mutable_floats();
  std::copy(part->second.floats().begin(), part->second.floats().end(), out.begin());
  for (++part; part != parts.end(); ++part) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] += part->second.floats()[i];
    }
  }
  return total;
}

}  // namespace

absl::Status FakeEngine::Load(const graph::v1::StageProgram& program, const EngineOptions&) {
  program_ = program;
  std::set<std::string> borrowed;
  for (const SharedVariable& shared : program_.borrowed()) {
    borrowed.insert(shared.variable());
  }
  for (const Edge& edge : program_.incoming()) {
    if (edge.differentiable()) {
      differentiable_.insert(edge.value().operator_());
    }
  }
  for (const graph::v1::SubDag& sub_dag : program_.sub_dags()) {
    bool backward = false;
    for (const Operator& op : sub_dag.operators()) {
      if (op.kind() == Operator::VARIABLE) {
        const float first = 1.0F / (2.0F + static_cast<float>(op.variable().tensor_name().size() % 7));
        variables_[op.name()] = {.definition = &op,
                                 .borrowed = borrowed.count(op.name()) > 0,
                                 .value = Filled(Shape(op.outputs(0)), first),
                                 .gradients = {},
                                 .last_gradient = Filled(Shape(op.outputs(0)), 0)};
        differentiable_.insert(op.name());
        continue;
      }
      for (const graph::v1::Argument& argument : op.args()) {
        if (op.outputs(0).dtype() == graph::v1::FLOAT32 &&
            differentiable_.count(argument.value().operator_()) > 0) {
          differentiable_.insert(op.name());
          backward = true;
        }
      }
    }
    backward_sub_dags_ += backward ? 1 : 0;
  }
  return absl::OkStatus();
}

std::vector<VariableInfo> FakeEngine::Variables() const {
  std::vector<VariableInfo> infos;
  for (const auto& [name, state] : variables_) {
    infos.push_back({.name = name,
                     .tensor_name = state.definition->variable().tensor_name(),
                     .spec = state.definition->outputs(0),
                     .trainable = true,
                     .borrowed = state.borrowed});
  }
  return infos;
}

absl::StatusOr<Tensor> FakeEngine::ReadVariable(const std::string& name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end()) {
    return absl::NotFoundError(absl::StrCat("no variable ", name));
  }
  return found->second.value;
}

absl::Status FakeEngine::WriteVariable(const std::string& name, const Tensor& value) {
  variables_.at(name).value = value;
  return absl::OkStatus();
}

absl::Status FakeEngine::Feed(const Pass& pass, const std::string& placeholder, const Tensor& value) {
  passes_[pass.micro_batch].values[placeholder] = value;
  return absl::OkStatus();
}

absl::Status FakeEngine::Receive(const Pass& pass, int32_t edge, const Tensor& value) {
  for (const Edge& incoming : program_.incoming()) {
    if (incoming.id() == edge) {
      passes_[pass.micro_batch].values[incoming.value().operator_()] = value;
      return absl::OkStatus();
    }
  }
  return absl::NotFoundError(absl::StrCat("no incoming edge ", edge));
}

absl::StatusOr<Tensor> FakeEngine::Evaluate(const Operator& op, const Passing& passing) const {
  std::vector<const Tensor*> inputs;
  const Tensor* variable = nullptr;
  for (const graph::v1::Argument& argument : op.args()) {
    const std::string& name = argument.value().operator_();
    if (const auto found = variables_.find(name); found != variables_.end()) {
      variable = &found->second.value;
    } else if (const auto value = passing.values.find(name); value != passing.values.end()) {
      inputs.push_back(&value->second);
    } else {
      return absl::FailedPreconditionError(absl::StrCat(op.name(), " needs ", name, ", which is not there"));
    }
  }
  const Tensor& x = *inputs[0];
  const int64_t columns = x.shape.back();
  if (op.type() == "fake.shift") {
    Tensor y = AllocateTensor(graph::v1::INT64, x.shape);
    for (int64_t i = 0; i < x.elements(); ++i) {
      reinterpret_cast<int64_t*>(y.data.get())[i] = Ids(x)[i] + 1;
    }
    return y;
  }
  if (op.type() == "fake.loss") {
    float sum = 0;
    for (int64_t i = 0; i < x.elements(); ++i) {
      const float difference = x.floats()[i] - static_cast<float>(Ids(*inputs[1])[i]);
      sum += difference * difference;
    }
    return Filled({}, sum / static_cast<float>(x.elements()));
  }
  Tensor y = AllocateTensor(graph::v1::FLOAT32, x.shape);
  for (int64_t i = 0; i < x.elements(); ++i) {
    const float weight = variable == nullptr ? 1 : variable->floats()[i % columns];
    if (op.type() == "fake.embed") {
      y.mutable_floats()[i] = weight * static_cast<float>(Ids(x)[i]);
      continue;
    }
    float s = 0;
    for (size_t k = 0; k < inputs.size(); ++k) {
      s += Coefficient(k) * inputs[k]->floats()[i];
    }
    y.mutable_floats()[i] = weight * s - s * s / 8;
  }
  return y;
}

absl::StatusOr<ForwardResult> FakeEngine::Forward(const Pass& pass, int sub_dag) {
  if (hook_) {
    if (const absl::Status status = hook_(pass, sub_dag, true); !status.ok()) {
      return status;
    }
  }
  Passing& passing = passes_[pass.micro_batch];
  ForwardResult result;
  for (const Operator& op : program_.sub_dags(sub_dag).operators()) {
    if (op.kind() == Operator::VARIABLE || op.kind() == Operator::PLACEHOLDER) {
      continue;
    }
    auto value = Evaluate(op, passing);
    if (!value.ok()) {
      return value.status();
    }
    if (op.name() == program_.loss().operator_()) {
      result.loss = value->floats()[0];
    }
    passing.values[op.name()] = *std::move(value);
  }
  for (const Edge& edge : program_.outgoing()) {
    if (edge.from_sub_dag() == sub_dag) {
      result.outputs.push_back({edge.id(), -1, passing.values.at(edge.value().operator_())});
    }
  }
  return result;
}

absl::Status FakeEngine::ReceiveGradient(const Pass& pass, const EdgeTensor& gradient) {
  for (const Edge& edge : program_.outgoing()) {
    if (edge.id() == gradient.edge && gradient.tensor.has_value()) {
      const int position = Position(edge.consumers(std::max(gradient.consumer, 0)));
      passes_[pass.micro_batch].cotangents[edge.value().operator_()][position] = *gradient.tensor;
    }
  }
  return absl::OkStatus();
}

void FakeEngine::AddVariableGradient(const std::string& variable, int position,
                                     const std::vector<float>& gradient) {
  VariableState& state = variables_.at(variable);
  auto [entry, inserted] = state.gradients.try_emplace(position, Filled(state.value.shape, 0));
  for (size_t i = 0; i < gradient.size(); ++i) {
    entry->second.mutable_floats()[i] += gradient[i];
  }
}

void FakeEngine::Differentiate(const Operator& op, const Pass& pass, Passing& passing) {
  std::optional<Tensor> cotangent = Sum(passing.cotangents[op.name()]);
  if (op.name() == program_.loss().operator_()) {
    cotangent = Filled({}, static_cast<float>(pass.weight));
  }
  if (!cotangent.has_value()) {
    return;
  }
  std::vector<std::string> inputs;
  std::string variable;
  for (const graph::v1::Argument& argument : op.args()) {
    const std::string& name = argument.value().operator_();
    if (variables_.count(name) > 0) {
      variable = name;
    } else {
      inputs.push_back(name);
    }
  }
  const Tensor& x = passing.values.at(inputs[0]);
  const auto columns = static_cast<size_t>(x.shape.back());
  const size_t elements = static_cast<size_t>(x.elements());
  const int position = Position(op.name());
  std::vector<float> variable_gradient(variable.empty() ? 0 : columns);
  std::map<std::string, Tensor> gradients;
  for (const std::string& name : inputs) {
    if (differentiable_.count(name) > 0) {
      gradients.emplace(name, Filled(x.shape, 0));
    }
  }
  for (size_t i = 0; i < elements; ++i) {
    if (op.type() == "fake.loss") {
      const float difference = x.floats()[i] - static_cast<float>(Ids(passing.values.at(inputs[1]))[i]);
      for (auto& [name, gradient] : gradients) {
        gradient.mutable_floats()[i] = cotangent->floats()[0] * 2 * difference / static_cast<float>(elements);
      }
      continue;
    }
    const float g = cotangent->floats()[i];
    if (op.type() == "fake.embed") {
      variable_gradient[i % columns] += g * static_cast<float>(Ids(x)[i]);
      continue;
    }
    float s = 0;
    for (size_t k = 0; k < inputs.size(); ++k) {
      s += Coefficient(k) * passing.values.at(inputs[k]).floats()[i];
    }
    const float weight = variable.empty() ? 1 : variables_.at(variable).value.floats()[i % columns];
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (const auto found = gradients.find(inputs[k]); found != gradients.end()) {
        found->second.mutable_floats()[i] += Coefficient(k) * g * (weight - s / 4);
      }
    }
    if (!variable.empty()) {
      variable_gradient[i % columns] += g * s;
    }
  }
  for (auto& [name, gradient] : gradients) {
    passing.cotangents[name][position] = std::move(gradient);
  }
  if (!variable.empty()) {
    AddVariableGradient(variable, position, variable_gradient);
  }
}

absl::StatusOr<std::vector<EdgeTensor>> FakeEngine::Backward(const Pass& pass, int sub_dag) {
  if (hook_) {
    if (const absl::Status status = hook_(pass, sub_dag, false); !status.ok()) {
      return status;
    }
  }
  Passing& passing = passes_[pass.micro_batch];
  const auto& operators = program_.sub_dags(sub_dag).operators();
  for (auto op = operators.rbegin(); op != operators.rend(); ++op) {
    if (op->kind() != Operator::VARIABLE && differentiable_.count(op->name()) > 0) {
      Differentiate(*op, pass, passing);
    }
  }
  std::vector<EdgeTensor> results;
  for (const Edge& edge : program_.incoming()) {
    if (!edge.differentiable() || edge.to_sub_dags(0) != sub_dag) {
      continue;
    }
    Cotangents& cotangents = passing.cotangents[edge.value().operator_()];
    if (!edge.cotangent_per_consumer()) {
      results.push_back({edge.id(), -1, Sum(cotangents)});
      continue;
    }
    for (int i = 0; i < edge.consumers_size(); ++i) {
      const auto found = cotangents.find(Position(edge.consumers(i)));
      results.push_back(
          {edge.id(), i, found == cotangents.end() ? std::nullopt : std::optional<Tensor>(found->second)});
    }
  }
  if (++passing.backwards == backward_sub_dags_) {
    Release(pass);
  }
  return results;
}

absl::StatusOr<std::vector<VariableGradient>> FakeEngine::TakeBorrowedGradients() {
  std::vector<VariableGradient> gradients;
  for (const SharedVariable& shared : program_.borrowed()) {
    VariableState& state = variables_.at(shared.variable());
    for (int i = 0; i < shared.consumers_size(); ++i) {
      const auto found = state.gradients.find(Position(shared.consumers(i)));
      gradients.push_back(
          {shared.id(), i,
           found == state.gradients.end() ? std::nullopt : std::optional<Tensor>(found->second)});
    }
    state.gradients.clear();
  }
  return gradients;
}

absl::Status FakeEngine::ReceiveLentGradient(const VariableGradient& gradient) {
  for (const SharedVariable& shared : program_.lent()) {
    if (shared.id() == gradient.shared && gradient.tensor.has_value()) {
      variables_.at(shared.variable()).gradients[Position(shared.consumers(gradient.consumer))] =
          *gradient.tensor;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GradientNorm>> FakeEngine::GradientNorms() {
  std::vector<GradientNorm> norms;
  for (auto& [name, state] : variables_) {
    if (state.borrowed) {
      continue;
    }
    GradientNorm norm{.position = Position(name)};
    if (const auto sum = Sum(state.gradients); sum.has_value()) {
      for (const float g : sum->floats()) {
        norm.squared += static_cast<double>(g) * g;
      }
    }
    norms.push_back(norm);
  }
  return norms;
}

absl::StatusOr<UpdateResult> FakeEngine::Update(int64_t, const UpdateOptions& options) {
  UpdateResult result;
  std::map<std::string, Tensor> sums;
  for (auto& [name, state] : variables_) {
    if (const auto sum = Sum(state.gradients); sum.has_value() && !state.borrowed) {
      for (const float g : sum->floats()) {
        result.squared_gradient_norm += static_cast<double>(g) * g;
      }
      sums[name] = *sum;
    }
    state.gradients.clear();
  }
  result.finite = std::isfinite(result.squared_gradient_norm);
  for (auto sum = sums.begin(); !options.skip && result.finite && sum != sums.end(); ++sum) {
    VariableState& state = variables_.at(sum->first);
    state.last_gradient = sum->second;
    Tensor next = Filled(state.value.shape, 0);  // the old value may be on its way to a user
    for (size_t i = 0; i < next.floats().size(); ++i) {
      next.mutable_floats()[i] =
          state.value.floats()[i] -
          kLearningRate * static_cast<float>(options.learning_rate_factor * options.gradient_scale) *
              sum->second.floats()[i];
    }
    state.value = next;
  }
  return result;
}

absl::StatusOr<std::vector<NamedTensor>> FakeEngine::ReadOptimizerState() const {
  std::vector<NamedTensor> state;
  for (const auto& [name, variable] : variables_) {
    if (!variable.borrowed) {
      state.push_back(
          {absl::StrCat(variable.definition->variable().tensor_name(), ".exp_avg"), variable.last_gradient});
    }
  }
  return state;
}

absl::Status FakeEngine::WriteOptimizerState(const std::vector<NamedTensor>& state) {
  for (const NamedTensor& named : state) {
    for (auto& [name, variable] : variables_) {
      if (absl::StrCat(variable.definition->variable().tensor_name(), ".exp_avg") == named.name) {
        variable.last_gradient = named.tensor;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace fusion::worker
