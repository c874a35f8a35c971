// LibTorch's optimizers over the parameters that a stage owns, with parameter groups.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::worker::engine {

struct Parameter {
  std::string tensor_name;
  at::Tensor value;
};

struct NamedState {
  std::string name;  ///< TENSOR_NAME.exp_avg, .exp_avg_sq, .step (INT64 scalar) or .momentum_buffer
  at::Tensor value;
};

/// `text` is alternatives separated by |, each a glob whose * and ? match dots too.
bool GlobMatches(absl::string_view text, const std::string& name);

/// Settings of one parameter: training.optimizer, with the fields that its first matching group sets put over
/// it.
v1alpha1::Optimizer SettingsFor(const v1alpha1::Training& training, const std::string& tensor_name);

/// One optimizer for each distinct setting: inside one optimizer, LibTorch takes a group's option that equals
/// the constructor's default for "not set" and inherits it.
class Optimizers {
 public:
  static absl::StatusOr<Optimizers> Create(const v1alpha1::Training& training,
                                           const std::vector<Parameter>& parameters);

  /// One step with the gradients that the parameters' grad() hold; those without one stay as they are.
  void Step(double learning_rate_factor);

  std::vector<NamedState> ReadState() const;
  /// INVALID_ARGUMENT names what does not fit; nothing is changed then.
  absl::Status WriteState(const std::vector<NamedState>& state);

 private:
  struct Group {
    v1alpha1::Optimizer settings;
    std::vector<Parameter> parameters;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };
  std::vector<Group> groups_;
};

}  // namespace fusion::worker::engine
