// Multi-layer perceptron: torch.nn.Sequential of Linear layers with an activation between them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::graph {

/// Operators layers.0, layers.1 (activation), layers.2, … with parameters layers.0.weight and so on,
/// PyTorch's initial values. `input` is float32 [batch, inputs]; `label` is float32 [batch, outputs] for
/// MeanSquaredError (the default) and int64 [batch] for CrossEntropy.
absl::StatusOr<v1::Graph> BuildMlp(const v1alpha1::Model& model);

absl::StatusOr<std::string> MlpConfigJson(const v1alpha1::Model& model);

}  // namespace fusion::graph
