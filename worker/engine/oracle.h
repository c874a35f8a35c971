// Whole models as torch::nn modules with torch::optim, differentiated by LibTorch as one graph: what the
// engine's results are held against. Written apart from graph/ and engine/; shares only the tensor names and
// the documented formula of the dropout mask.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fusion/v1alpha1/api.pb.h"
#include "worker/tensor.h"

namespace fusion::worker {

struct OracleOptions {
  v1alpha1::Model model;  ///< any family
  v1alpha1::Optimizer optimizer;
  bool decay_biases = true;                       ///< false: weight decay 0 for tensors named *.bias
  std::optional<double> bias_learning_rate = {};  ///< of tensors named *.bias, instead of the optimizer's
  int64_t seed = 0;                               ///< of the dropout masks
  bool autocast = false;                          ///< the forward under LibTorch\'s autocast to bfloat16
};

struct OracleBatch {
  Tensor input;
  Tensor label;
  double weight = 1;
};

class Oracle {
 public:
  virtual ~Oracle() = default;

  /// By the names of checkpoints; parameters and buffers.
  virtual void SetParameter(const std::string& name, const Tensor& value) = 0;
  virtual std::map<std::string, Tensor> Parameters() const = 0;
  virtual std::map<std::string, Tensor> Gradients() const = 0;

  /// Clears the gradients, then adds each micro-batch's; the weighted loss.
  virtual double ForwardBackward(int64_t step, const std::vector<OracleBatch>& batches) = 0;
  /// Clips the gradients with torch::nn::utils::clip_grad_norm_; the norm before.
  virtual double ClipGradients(double max_norm) = 0;
  /// With every rate multiplied by the factor.
  virtual void Update(double learning_rate_factor = 1) = 0;
  /// Loss in evaluation mode, of a model without dropout.
  virtual double Evaluate(const OracleBatch& batch) = 0;
};

std::unique_ptr<Oracle> MakeOracle(const OracleOptions& options);

}  // namespace fusion::worker
