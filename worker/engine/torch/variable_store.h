// The variables of a stage and the gradients gathered for them during a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/engine/torch/stage_graph.h"

namespace fusion::worker::engine {

/// First value of a variable: a function of (seed, tensor name) only (engine/random.h). NORMAL takes number i
/// of the normal stream for element i, UNIFORM takes low + (high - low) x Uniform(Bits(key, i)), both in
/// double, then rounded.
absl::Status Initialize(const graph::v1::Operator& variable, int64_t seed, at::Tensor& tensor);

/// Gradients are kept apart for each operator that reads a variable: each is a sum over micro-batches in the
/// order they come, in fp32 (fp64 for an fp64 variable); a variable's gradient is their sum in ascending
/// topological order of the readers. So a shared variable's gradient has the same bits wherever its readers
/// run.
class VariableStore {
 public:
  /// `stage` must outlive the store.
  explicit VariableStore(const StageGraph& stage);

  /// Allocates and initialises all. INVALID_ARGUMENT names the variable.
  absl::Status Create(int64_t seed);

  /// -1 where there is no variable of this operator name.
  int Find(absl::string_view name) const;

  at::Tensor& value(int variable) { return values_[static_cast<size_t>(variable)]; }
  const at::Tensor& value(int variable) const { return values_[static_cast<size_t>(variable)]; }

  /// Adds a micro-batch's gradient from one of the variable's uses.
  void Accumulate(int variable, int use, at::Tensor gradient);
  /// Sets what a use on another stage has accumulated; undefined: no gradient reaches it.
  void SetUse(int variable, int use, const at::Tensor& gradient);
  const at::Tensor& use(int variable, int use) const;

  /// The whole gradient; undefined where none reached the variable.
  at::Tensor Gradient(int variable) const;

  void ResetGradients(int variable);

 private:
  const StageGraph& stage_;
  std::vector<at::Tensor> values_;
  std::vector<std::vector<at::Tensor>> gradients_;  ///< by variable and use
};

}  // namespace fusion::worker::engine
