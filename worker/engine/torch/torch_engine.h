// The engine that runs sub-DAGs with LibTorch on CPU.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/engine.h"
#include "worker/engine/torch/memory_account.h"
#include "worker/engine/torch/optimizers.h"
#include "worker/engine/torch/remote_autograd.h"
#include "worker/engine/torch/stage_graph.h"
#include "worker/engine/torch/variable_store.h"

namespace fusion::worker::engine {

/// Threads, determinism and the counting allocator of this process; before anything is computed.
void PrepareProcess(int threads);

/// Number of threads that kernels called from this thread use: MKL keeps it by thread. Cheap when it is set
/// already.
void PrepareThread(int threads);

class TorchEngine final : public Engine {
 public:
  std::string Name() const override { return "torch"; }

  absl::Status Load(const graph::v1::StageProgram& program, const EngineOptions& options) override;

  std::vector<VariableInfo> Variables() const override;
  absl::StatusOr<Tensor> ReadVariable(const std::string& name) const override;
  absl::Status WriteVariable(const std::string& name, const Tensor& value) override;

  absl::Status Feed(const Pass& pass, const std::string& placeholder, const Tensor& value) override;
  absl::Status Receive(const Pass& pass, int32_t edge, const Tensor& value) override;
  absl::StatusOr<ForwardResult> Forward(const Pass& pass, int sub_dag) override;

  absl::Status ReceiveGradient(const Pass& pass, const EdgeTensor& gradient) override;
  absl::StatusOr<std::vector<EdgeTensor>> Backward(const Pass& pass, int sub_dag) override;
  void Release(const Pass& pass) override;

  absl::StatusOr<std::vector<VariableGradient>> TakeBorrowedGradients() override;
  absl::Status ReceiveLentGradient(const VariableGradient& gradient) override;

  absl::StatusOr<std::vector<GradientNorm>> GradientNorms() override;
  absl::StatusOr<UpdateResult> Update(int64_t step, const UpdateOptions& options) override;

  absl::StatusOr<std::vector<NamedTensor>> ReadOptimizerState() const override;
  absl::Status WriteOptimizerState(const std::vector<NamedTensor>& state) override;

  int64_t PeakMemoryBytes() const override { return account_ == nullptr ? 0 : account_->peak(); }
  int64_t MemoryBytes() const override { return account_ == nullptr ? 0 : account_->current(); }

  absl::StatusOr<std::optional<Tensor>> ReadGradient(const std::string& name) const override;
  absl::StatusOr<MachineMeasurement> Measure(const graph::v1::Graph& graph, int64_t samples) override;

  /// For profiles: sees each operator that Forward and Backward run.
  void set_observer(OperatorObserver observer) { autograd_->set_observer(std::move(observer)); }

 private:
  using PassKey = std::pair<int64_t, int32_t>;  ///< step, micro-batch

  absl::Status CheckLoaded() const;
  absl::Status CheckSubDag(int sub_dag) const;
  absl::StatusOr<int> VariableIndex(const std::string& name) const;
  PassState& StateOf(const Pass& pass);
  /// Puts a value that comes from outside into its slot.
  absl::Status Place(const Pass& pass, int slot, const std::string& what, const Tensor& value);
  /// `again`: for a second forward of the pass.
  ContextOf ContextsOf(const Pass& pass, bool again) const;
  absl::StatusOr<ForwardResult> RunForward(const Pass& pass, int sub_dag);
  /// Of an evaluation whose loss ranks classes; drops what was kept for it.
  std::optional<int64_t> CountCorrect(PassState& state, bool training) const;
  absl::StatusOr<std::vector<EdgeTensor>> RunBackward(const Pass& pass, int sub_dag);
  absl::Status CheckGradientsAreThere() const;
  /// BatchNorm's statistics follow the forwards; a step that is not taken must leave them as they were.
  void RememberWritten(int64_t step);
  void RestoreWritten();
  absl::StatusOr<UpdateResult> RunUpdate(const UpdateOptions& options);
  /// Index in StageVariable.uses of the consumer-th reader of a shared variable.
  static absl::StatusOr<int> UseOf(const StageVariable& variable, const graph::v1::SharedVariable& shared,
                                   int32_t consumer);

  EngineOptions options_;
  std::shared_ptr<MemoryAccount> account_;
  std::unique_ptr<const StageGraph> stage_;
  std::unique_ptr<VariableStore> variables_;
  std::unique_ptr<RemoteAutograd> autograd_;
  std::vector<int> owned_;                  ///< trainable variables that are updated here
  int64_t step_ = 0;                        ///< the last one whose training passes have begun
  std::vector<at::Tensor> written_before_;  ///< values of stage_->written before that step
  std::optional<Optimizers> optimizers_;
  std::map<PassKey, PassState> passes_;
  std::vector<PassKey> last_backward_;           ///< by sub-DAG
  std::vector<std::vector<bool>> lent_arrived_;  ///< by lent variable and consumer, since the last update
  std::vector<double> squared_norms_;  ///< by owned_, of the gradients as they are; empty: not known
};

}  // namespace fusion::worker::engine
