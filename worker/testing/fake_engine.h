// An engine for tests: a few operators on floats with exact rules of differentiation, summed in the order
// that engine.h demands, so that any cut gives the bits of the uncut graph. No LibTorch.
//
//   fake.embed(ids int64 [B, C], variable [C])     y = variable * ids
//   fake.shift(ids int64 [B, C])                   y = ids + 1, int64: a value without gradient
//   fake.mix(x_0 … x_n [B, C], variable [C])       s = sum_k (0.5 + 0.25 k) x_k;  y = variable * s - s * s /
//   8 fake.loss(x [B, C], label int64 [B, C])        mean of (x - label)^2
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/engine.h"

namespace fusion::worker {

/// SGD with rate 1e-3 on variables that start at 1 / (2 + position). Not thread-safe, as any engine.
class FakeEngine : public Engine {
 public:
  /// Called before each Forward and Backward; an error is returned from it. For faults and delays.
  using TaskHook = std::function<absl::Status(const Pass& pass, int sub_dag, bool forward)>;

  explicit FakeEngine(TaskHook hook = nullptr) : hook_(std::move(hook)) {}

  std::string Name() const override { return "fake"; }
  absl::Status Load(const graph::v1::StageProgram& program, const EngineOptions& options) override;
  std::vector<VariableInfo> Variables() const override;
  absl::StatusOr<Tensor> ReadVariable(const std::string& name) const override;
  absl::Status WriteVariable(const std::string& name, const Tensor& value) override;
  absl::Status Feed(const Pass& pass, const std::string& placeholder, const Tensor& value) override;
  absl::Status Receive(const Pass& pass, int32_t edge, const Tensor& value) override;
  absl::StatusOr<ForwardResult> Forward(const Pass& pass, int sub_dag) override;
  absl::Status ReceiveGradient(const Pass& pass, const EdgeTensor& gradient) override;
  absl::StatusOr<std::vector<EdgeTensor>> Backward(const Pass& pass, int sub_dag) override;
  void Release(const Pass& pass) override { passes_.erase(pass.micro_batch); }
  absl::StatusOr<std::vector<VariableGradient>> TakeBorrowedGradients() override;
  absl::Status ReceiveLentGradient(const VariableGradient& gradient) override;
  absl::StatusOr<std::vector<GradientNorm>> GradientNorms() override;
  absl::StatusOr<UpdateResult> Update(int64_t step, const UpdateOptions& options) override;
  absl::StatusOr<std::vector<NamedTensor>> ReadOptimizerState() const override;
  absl::Status WriteOptimizerState(const std::vector<NamedTensor>& state) override;
  int64_t PeakMemoryBytes() const override { return 0; }

  size_t passes_held() const { return passes_.size(); }

 private:
  /// Cotangents of a value by the consumer's position, highest first.
  using Cotangents = std::map<int, Tensor, std::greater<>>;
  struct Passing {
    std::map<std::string, Tensor> values;
    std::map<std::string, Cotangents> cotangents;
    int backwards = 0;
  };
  struct VariableState {
    const graph::v1::Operator* definition = nullptr;
    bool borrowed = false;
    Tensor value;
    std::map<int, Tensor> gradients;  ///< by the use's position, summed over micro-batches
    Tensor last_gradient;
  };

  int Position(const std::string& name) const { return program_.positions().at(name); }
  absl::StatusOr<Tensor> Evaluate(const graph::v1::Operator& op, const Passing& passing) const;
  void Differentiate(const graph::v1::Operator& op, const Pass& pass, Passing& passing);
  void AddVariableGradient(const std::string& variable, int position, const std::vector<float>& gradient);

  TaskHook hook_;
  graph::v1::StageProgram program_;
  std::map<std::string, VariableState> variables_;
  std::set<std::string> differentiable_;  ///< operators whose value needs a gradient
  std::map<int32_t, Passing> passes_;     ///< by micro-batch
  int backward_sub_dags_ = 0;
};

}  // namespace fusion::worker
