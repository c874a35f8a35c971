#include "worker/engine/torch/optimizers.h"

#include <ATen/Functions.h>
#include <fnmatch.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fusion::worker::engine {
namespace {

using v1alpha1::Optimizer;

constexpr double kSgdLearningRate = 1e-3;  // PyTorch's; LibTorch's SGDOptions has none

template <class Options>
Options AdamLike(const Optimizer& settings) {
  Options options;
  if (settings.has_learning_rate()) options.lr(settings.learning_rate());
  if (settings.has_weight_decay()) options.weight_decay(settings.weight_decay());
  if (settings.has_epsilon()) options.eps(settings.epsilon());
  auto [beta1, beta2] = options.betas();
  if (settings.has_beta1()) beta1 = settings.beta1();
  if (settings.has_beta2()) beta2 = settings.beta2();
  options.betas(std::make_tuple(beta1, beta2));
  return options;
}

std::unique_ptr<torch::optim::Optimizer> MakeOptimizer(const Optimizer& settings,
                                                       std::vector<at::Tensor> tensors) {
  switch (settings.type()) {
    case Optimizer::Adam:
      return std::make_unique<torch::optim::Adam>(std::move(tensors),
                                                  AdamLike<torch::optim::AdamOptions>(settings));
    case Optimizer::AdamW:
      return std::make_unique<torch::optim::AdamW>(std::move(tensors),
                                                   AdamLike<torch::optim::AdamWOptions>(settings));
    default: {
      torch::optim::SGDOptions options(settings.has_learning_rate() ? settings.learning_rate()
                                                                    : kSgdLearningRate);
      options.momentum(settings.momentum())
          .weight_decay(settings.weight_decay())
          .nesterov(settings.nesterov());
      return std::make_unique<torch::optim::SGD>(std::move(tensors), options);
    }
  }
}

// The fields of a parameter's state, by the names that checkpoints give them: `step` apart, the others are
// tensors.
struct StateFields {
  std::function<int64_t()> step;  // empty: none
  std::function<void(int64_t)> set_step;
  std::map<std::string, at::Tensor*> tensors;
};

template <class State>
StateFields AdamFields(State& state) {
  return {.step = [&state] { return state.step(); },
          .set_step = [&state](int64_t step) { state.step(step); },
          .tensors = {{"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}}};
}

StateFields FieldsOf(Optimizer::Type type, torch::optim::OptimizerParamState& state) {
  switch (type) {
    case Optimizer::Adam:
      return AdamFields(static_cast<torch::optim::AdamParamState&>(state));
    case Optimizer::AdamW:
      return AdamFields(static_cast<torch::optim::AdamWParamState&>(state));
    default:
      return {.step = nullptr,
              .set_step = nullptr,
              .tensors = {
                  {"momentum_buffer", &static_cast<torch::optim::SGDParamState&>(state).momentum_buffer()}}};
  }
}

std::unique_ptr<torch::optim::OptimizerParamState> MakeState(Optimizer::Type type) {
  switch (type) {
    case Optimizer::Adam:
      return std::make_unique<torch::optim::AdamParamState>();
    case Optimizer::AdamW:
      return std::make_unique<torch::optim::AdamWParamState>();
    default:
      return std::make_unique<torch::optim::SGDParamState>();
  }
}

}  // namespace

bool GlobMatches(absl::string_view text, const std::string& name) {
  for (const absl::string_view alternative : absl::StrSplit(text, '|')) {
    if (fnmatch(std::string(alternative).c_str(), name.c_str(), 0) == 0) {
      return true;
    }
  }
  return false;
}

Optimizer SettingsFor(const v1alpha1::Training& training, const std::string& tensor_name) {
  Optimizer settings = training.optimizer();
  for (const v1alpha1::ParameterGroup& group : training.parameter_groups()) {
    if (GlobMatches(group.match(), tensor_name)) {
      settings.MergeFrom(group.optimizer());
      break;
    }
  }
  return settings;
}

absl::StatusOr<Optimizers> Optimizers::Create(const v1alpha1::Training& training,
                                              const std::vector<Parameter>& parameters) {
  std::map<std::string, Group> groups;  // by settings, so that the order does not hang on the cut
  for (const Parameter& parameter : parameters) {
    const Optimizer settings = SettingsFor(training, parameter.tensor_name);
    if (settings.nesterov() && settings.momentum() == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "training: optimizer of parameter '", parameter.tensor_name, "' has nesterov without momentum"));
    }
    Group& group = groups[settings.SerializeAsString()];
    group.settings = settings;
    group.parameters.push_back(parameter);
  }
  Optimizers optimizers;
  for (auto& [key, group] : groups) {
    std::vector<at::Tensor> tensors;
    tensors.reserve(group.parameters.size());
    for (const Parameter& parameter : group.parameters) {
      tensors.push_back(parameter.value);
    }
    group.optimizer = MakeOptimizer(group.settings, std::move(tensors));
    optimizers.groups_.push_back(std::move(group));
  }
  return optimizers;
}

void Optimizers::Step(double learning_rate_factor) {
  for (Group& group : groups_) {
    torch::optim::OptimizerOptions& options = group.optimizer->param_groups().front().options();
    const double learning_rate = options.get_lr();
    options.set_lr(learning_rate * learning_rate_factor);
    group.optimizer->step();
    options.set_lr(learning_rate);
  }
}

std::vector<NamedState> Optimizers::ReadState() const {
  std::vector<NamedState> result;
  for (const Group& group : groups_) {
    for (const Parameter& parameter : group.parameters) {
      const auto state = group.optimizer->state().find(parameter.value.unsafeGetTensorImpl());
      if (state == group.optimizer->state().end()) {
        continue;
      }
      const StateFields fields = FieldsOf(group.settings.type(), *state->second);
      if (fields.step != nullptr) {
        result.push_back({absl::StrCat(parameter.tensor_name, ".step"),
                          at::scalar_tensor(fields.step(), at::TensorOptions().dtype(at::kLong))});
      }
      for (const auto& [name, tensor] : fields.tensors) {
        if (tensor->defined()) {
          result.push_back({absl::StrCat(parameter.tensor_name, ".", name), *tensor});
        }
      }
    }
  }
  return result;
}

absl::Status Optimizers::WriteState(const std::vector<NamedState>& state) {
  std::map<std::string, at::Tensor> given;
  for (const NamedState& entry : state) {
    given[entry.name] = entry.value;
  }
  using States =
      std::vector<std::pair<Group*, std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>>>;
  States states;
  for (Group& group : groups_) {
    for (const Parameter& parameter : group.parameters) {
      std::unique_ptr<torch::optim::OptimizerParamState> made = MakeState(group.settings.type());
      const StateFields fields = FieldsOf(group.settings.type(), *made);
      bool present = false;
      if (fields.step != nullptr) {
        const auto step = given.find(absl::StrCat(parameter.tensor_name, ".step"));
        if (step == given.end()) {
          continue;
        }
        if (step->second.numel() != 1) {
          return absl::InvalidArgumentError(
              absl::StrCat("optimizer state '", step->first, "' is not one number"));
        }
        fields.set_step(step->second.item().toLong());
        given.erase(step);
        present = true;
      }
      for (const auto& [name, tensor] : fields.tensors) {
        const std::string full = absl::StrCat(parameter.tensor_name, ".", name);
        const auto value = given.find(full);
        if (value == given.end()) {
          if (present) {
            return absl::InvalidArgumentError(absl::StrCat("optimizer state '", full, "' is missing"));
          }
          continue;
        }
        if (value->second.sizes() != parameter.value.sizes() ||
            value->second.scalar_type() != parameter.value.scalar_type()) {
          return absl::InvalidArgumentError(
              absl::StrCat("optimizer state '", full, "' has not the dtype and shape of its parameter"));
        }
        *tensor = value->second.clone();
        given.erase(value);
        present = true;
      }
      if (present) {
        states.emplace_back(&group, std::pair(parameter.value.unsafeGetTensorImpl(), std::move(made)));
      }
    }
  }
  if (!given.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer state '", given.begin()->first, "' belongs to no parameter of this stage"));
  }
  for (auto& [group, entry] : states) {
    group->optimizer->state()[entry.first] = std::move(entry.second);
  }
  return absl::OkStatus();
}

}  // namespace fusion::worker::engine
