#include "worker/pipeline/step_decision.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "worker/pipeline/learning_rate.h"

namespace fusion::worker {
namespace {

constexpr double kNormGuard = 1e-6;  // PyTorch's, against a division by zero

Tensor Float64Tensor(std::vector<int64_t> shape, const std::vector<double>& values) {
  Tensor tensor = AllocateTensor(graph::v1::FLOAT64, std::move(shape));
  if (!values.empty()) {
    std::memcpy(tensor.data.get(), values.data(), values.size() * sizeof(double));
  }
  return tensor;
}

std::vector<double> DoublesOf(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  if (!values.empty()) {
    std::memcpy(values.data(), tensor.data.get(), values.size() * sizeof(double));
  }
  return values;
}

}  // namespace

double SumOfSquares(std::vector<GradientNorm> norms) {
  std::sort(norms.begin(), norms.end(),
            [](const GradientNorm& a, const GradientNorm& b) { return a.position < b.position; });
  double sum = 0;
  for (const GradientNorm& norm : norms) {
    sum += norm.squared;
  }
  return sum;
}

double ClippingFactor(const v1alpha1::Training& training, double squared_norm) {
  if (!training.has_gradient_clipping()) {
    return 1;
  }
  return std::min(1.0, training.gradient_clipping().max_norm() / (std::sqrt(squared_norm) + kNormGuard));
}

UpdateOptions DecideUpdate(const v1alpha1::Training& training, int64_t step, double squared_norm) {
  if (!std::isfinite(squared_norm)) {
    return {.skip = true};
  }
  return {.learning_rate_factor = LearningRateFactor(training, step),
          .gradient_scale = ClippingFactor(training, squared_norm)};
}

Tensor NormsMessage(const std::vector<GradientNorm>& norms) {
  std::vector<double> values;
  for (const GradientNorm& norm : norms) {
    values.push_back(norm.position);
    values.push_back(norm.squared);
  }
  return Float64Tensor({static_cast<int64_t>(norms.size()), 2}, values);
}

std::vector<GradientNorm> NormsOf(const Tensor& message) {
  const std::vector<double> values = DoublesOf(message);
  std::vector<GradientNorm> norms;
  for (size_t i = 0; i + 1 < values.size(); i += 2) {
    // Clamped: a peer may send any number.
    norms.push_back({.position = static_cast<int32_t>(
                         std::clamp(std::isnan(values[i]) ? 0 : values[i], 0.0, 2147483647.0)),
                     .squared = values[i + 1]});
  }
  return norms;
}

Tensor DecisionMessage(double squared_norm) { return Float64Tensor({1}, {squared_norm}); }

double SquaredNormOf(const Tensor& message) { return DoublesOf(message).front(); }

}  // namespace fusion::worker
