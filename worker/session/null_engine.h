// An engine that computes nothing: zeros of the right shape, at once. With it `fusion-worker --engine none`
// speaks every protocol where LibTorch is not, and what moves tensors can be measured alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "worker/engine/engine.h"

namespace fusion::worker {

/// The loss is 0, variables are zeros, gradients too.
class NullEngine : public Engine {
 public:
  std::string Name() const override { return "none"; }
  absl::Status Load(const graph::v1::StageProgram& program, const EngineOptions& options) override;
  std::vector<VariableInfo> Variables() const override;
  absl::StatusOr<Tensor> ReadVariable(const std::string& name) const override;
  absl::Status WriteVariable(const std::string& name, const Tensor& value) override;
  absl::Status Feed(const Pass&, const std::string&, const Tensor&) override { return absl::OkStatus(); }
  absl::Status Receive(const Pass&, int32_t, const Tensor&) override { return absl::OkStatus(); }
  absl::StatusOr<ForwardResult> Forward(const Pass& pass, int sub_dag) override;
  absl::Status ReceiveGradient(const Pass&, const EdgeTensor&) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<EdgeTensor>> Backward(const Pass& pass, int sub_dag) override;
  void Release(const Pass&) override {}
  absl::StatusOr<std::vector<VariableGradient>> TakeBorrowedGradients() override;
  absl::Status ReceiveLentGradient(const VariableGradient&) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<GradientNorm>> GradientNorms() override;
  absl::StatusOr<UpdateResult> Update(int64_t, const UpdateOptions&) override { return UpdateResult(); }
  absl::StatusOr<std::vector<NamedTensor>> ReadOptimizerState() const override {
    return std::vector<NamedTensor>();
  }
  absl::Status WriteOptimizerState(const std::vector<NamedTensor>&) override { return absl::OkStatus(); }
  int64_t PeakMemoryBytes() const override { return 0; }

 private:
  graph::v1::StageProgram program_;
  std::vector<VariableInfo> infos_;
  std::map<std::string, Tensor> variables_;
};

}  // namespace fusion::worker
