// What the engine's tests share: small graphs written by hand, tensors of numbers, and a run of several
// engines in one process that carries tensors between them as workers do.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "worker/engine/engine.h"
#include "worker/tensor.h"

namespace fusion::worker {

/// A graph of protobuf text: INVALID text aborts the test program.
graph::v1::Graph GraphOfText(const std::string& text);

/// The whole graph as one sub-DAG of one stage.
graph::v1::StageProgram WholeProgram(const graph::v1::Graph& graph);

Tensor FloatTensor(std::vector<int64_t> shape, const std::vector<float>& values);
Tensor DoubleTensor(std::vector<int64_t> shape, const std::vector<double>& values);
Tensor LongTensor(std::vector<int64_t> shape, const std::vector<int64_t>& values);

/// Options that differ from the default in the seed.
EngineOptions WithSeed(int64_t seed);

/// Same dtype, shape and bits.
bool BitEqual(const Tensor& a, const Tensor& b);

/// Data of one micro-batch by placeholder.
struct MicroBatch {
  std::map<std::string, Tensor> feeds;
  int64_t samples = 0;
  double weight = 1;
};

/// One engine a stage, driven in lockstep by one thread: every sub-DAG runs as soon as what it needs has
/// come.
class InProcessRun {
 public:
  static absl::StatusOr<std::unique_ptr<InProcessRun>> Create(
      const std::vector<graph::v1::StageProgram>& programs, const EngineOptions& options);

  /// Forward and backward of all micro-batches; the step's loss, weighted. Gradients are left in the engines.
  absl::StatusOr<double> ForwardBackward(int64_t step, const std::vector<MicroBatch>& batches);
  /// Loss of a micro-batch, without gradients.
  absl::StatusOr<double> Evaluate(int64_t step, int32_t micro_batch, const MicroBatch& batch);
  /// Optimizer step on every stage; the sum of the squared norms.
  absl::StatusOr<double> Update(int64_t step, double learning_rate_factor = 1);

  int stages() const { return static_cast<int>(engines_.size()); }
  Engine& engine(int stage) { return *engines_[static_cast<size_t>(stage)]; }
  const graph::v1::StageProgram& program(int stage) const { return programs_[static_cast<size_t>(stage)]; }

  /// Of the owner, by tensor name.
  absl::StatusOr<std::map<std::string, Tensor>> Variables() const;
  absl::StatusOr<std::map<std::string, Tensor>> Gradients() const;

 private:
  absl::StatusOr<std::optional<double>> Forward(const Pass& pass, const MicroBatch& batch);
  absl::Status Backward(const Pass& pass);
  absl::Status ShareVariables();

  std::vector<graph::v1::StageProgram> programs_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace fusion::worker
