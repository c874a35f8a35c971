// What a worker asks of a deep-learning framework: run the sub-DAGs of one stage forward and backward, and
// update the parameters that live there. Engines are libraries loaded at run time; nothing of the framework
// shows here.
//
// Remote automatic differentiation is operator by operator: each operator's gradient is computed when the
// cotangents of all its consumers are there, wherever they run, and a value's cotangents are summed in
// descending topological order of the consumers. So any cut gives the numbers of the uncut graph, bit for
// bit.
//
// Threading: one compute thread calls everything.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "worker/tensor.h"

namespace fusion::worker {

/// One micro-batch on its way through the stage.
struct Pass {
  int64_t step = 0;         ///< from 1
  int32_t micro_batch = 0;  ///< from 0; validation counts on from the training micro-batches
  bool training = true;     ///< false: nothing is kept for a backward pass, dropout is off
  int64_t samples = 0;      ///< of this micro-batch
  double weight = 1;        ///< share of the step's loss; seeds the loss's gradient
};

struct EngineOptions {
  int64_t seed = 0;
  int threads = 1;
  int64_t memory_limit_bytes = 0;  ///< 0: none; else RESOURCE_EXHAUSTED with the numbers when exceeded
  v1alpha1::Training training;     ///< optimizer and parameter groups; defaults are PyTorch's
  bool task_train = true;
};

struct EdgeTensor {
  int32_t edge = 0;       ///< Edge.id
  int32_t consumer = -1;  ///< index in Edge.consumers where there is one cotangent per consumer, else -1
  std::optional<Tensor> tensor;  ///< absent: no gradient reaches the value
};

struct ForwardResult {
  std::vector<EdgeTensor> outputs;  ///< one for each outgoing edge of the sub-DAG, by edge id
  std::optional<double> loss;       ///< the micro-batch's loss, of the sub-DAG that computes it
  /// Of an evaluation pass whose loss is aten.cross_entropy_loss with one class a sample: samples whose class
  /// has the highest score.
  std::optional<int64_t> correct;
};

struct VariableInfo {
  std::string name;         ///< operator name
  std::string tensor_name;  ///< in checkpoints
  graph::v1::TensorSpec spec;
  bool trainable = true;
  bool borrowed = false;  ///< another stage owns it
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

struct VariableGradient {
  int32_t shared = 0;    ///< SharedVariable.id
  int32_t consumer = 0;  ///< index in SharedVariable.consumers
  std::optional<Tensor> tensor;
};

/// Sum of squares, in fp64, of the gradient of a parameter; 0 where none reached it.
struct GradientNorm {
  int32_t position = 0;  ///< of the variable in the whole graph
  double squared = 0;
};

struct UpdateOptions {
  double learning_rate_factor = 1;  ///< of every group's rate
  double gradient_scale = 1;        ///< gradients are multiplied with it first
  bool skip = false;                ///< the gradients are dropped and nothing is updated
};

struct UpdateResult {
  double squared_gradient_norm = 0;  ///< fp64, over owned parameters, before scaling
  bool finite = true;                ///< false: a gradient was not finite and nothing was updated
};

/// CPU seconds of the compute thread for one execution of the operators with this graph::OperatorSignature.
/// Backward contains the summing of cotangents and the accumulation of parameter gradients.
struct OperatorMeasurement {
  std::string signature;
  double forward = 0;
  double backward = 0;
};

/// What `profile` reports of one thread of a machine; scheduler/profile.h has the JSON.
struct MachineMeasurement {
  double flops = 0;            ///< FLOP/s of a large fp32 matrix product
  std::vector<double> lambda;  ///< share of `flops` by graph::OperatorClass, (0, 1]
  double memory_bytes_per_second = 0;
  double operator_seconds = 0;  ///< fixed cost of one operator, each direction
  double update_seconds_per_parameter = 0;
  std::vector<OperatorMeasurement> operators;  ///< by signature, ascending
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual std::string Name() const = 0;

  /// Takes the stage and initialises its variables from (seed, tensor name). Once.
  virtual absl::Status Load(const graph::v1::StageProgram& program, const EngineOptions& options) = 0;

  virtual std::vector<VariableInfo> Variables() const = 0;
  virtual absl::StatusOr<Tensor> ReadVariable(const std::string& name) const = 0;
  virtual absl::Status WriteVariable(const std::string& name, const Tensor& value) = 0;

  /// Data of a placeholder operator, before the Forward that reads it.
  virtual absl::Status Feed(const Pass& pass, const std::string& placeholder, const Tensor& value) = 0;
  /// Value of an incoming edge, before the Forward that reads it.
  virtual absl::Status Receive(const Pass& pass, int32_t edge, const Tensor& value) = 0;
  virtual absl::StatusOr<ForwardResult> Forward(const Pass& pass, int sub_dag) = 0;

  /// Cotangent of an outgoing differentiable edge, before the Backward that needs it.
  virtual absl::Status ReceiveGradient(const Pass& pass, const EdgeTensor& gradient) = 0;
  /// Returns one entry for each incoming differentiable edge first read here (each consumer of it where
  /// asked). Frees what the sub-DAG kept. Parameter gradients are accumulated; backwards must come in
  /// micro-batch order.
  virtual absl::StatusOr<std::vector<EdgeTensor>> Backward(const Pass& pass, int sub_dag) = 0;
  /// Drops whatever the pass still holds (after a validation pass, or after an error).
  virtual void Release(const Pass& pass) = 0;

  /// Gradients of borrowed variables, summed over the step's micro-batches, one per consumer; resets them.
  virtual absl::StatusOr<std::vector<VariableGradient>> TakeBorrowedGradients() = 0;
  /// The same from a user stage, for a variable that this stage owns.
  virtual absl::Status ReceiveLentGradient(const VariableGradient& gradient) = 0;

  /// Norms of the gradients that Update would take, of all owned trainable variables. A norm is a function of
  /// the gradient's bits.
  virtual absl::StatusOr<std::vector<GradientNorm>> GradientNorms() = 0;
  /// One optimizer step with the accumulated gradients, which are reset.
  virtual absl::StatusOr<UpdateResult> Update(int64_t step, const UpdateOptions& options) = 0;

  /// Optimizer state of owned parameters, named TENSOR_NAME.exp_avg and so on, for checkpoints.
  virtual absl::StatusOr<std::vector<NamedTensor>> ReadOptimizerState() const = 0;
  virtual absl::Status WriteOptimizerState(const std::vector<NamedTensor>& state) = 0;

  virtual int64_t PeakMemoryBytes() const = 0;       ///< of the counting allocator, since Load
  virtual int64_t MemoryBytes() const { return 0; }  ///< held now

  /// The gradient that Update would take for a variable, for tests and diagnostics: a copy; absent: none
  /// reached it.
  virtual absl::StatusOr<std::optional<Tensor>> ReadGradient(const std::string& /*name*/) const {
    return absl::UnimplementedError(Name() + ": gradients cannot be read");
  }

  /// Measures this machine with one thread, operators in the way Forward and Backward run them. Of an engine
  /// that has not been loaded.
  virtual absl::StatusOr<MachineMeasurement> Measure(const graph::v1::Graph& /*graph*/, int64_t /*samples*/) {
    return absl::UnimplementedError(Name() + ": nothing to measure");
  }
};

/// Symbol that an engine library exports: `extern "C" fusion::worker::Engine* fusion_create_engine()`.
inline constexpr char kCreateEngineSymbol[] = "fusion_create_engine";

/// Environment variable with the folder of engine libraries, instead of those beside the program.
inline constexpr char kEnginePathVariable[] = "FUSION_ENGINE_PATH";

/// Loads libfusion_engine_NAME.so from ../lib beside the program, or from its own folder, or from
/// FUSION_ENGINE_PATH. NOT_FOUND with the paths tried.
absl::StatusOr<std::unique_ptr<Engine>> LoadEngine(const std::string& name);

}  // namespace fusion::worker
