// Built-in model families as graphs. Names, shapes and initial values are Hugging Face's.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::graph {

/// The graph of spec.model for training (forward with the loss as last operator). The operators `input`,
/// `label` and `loss` have these names, the others their Hugging Face module path. Errors carry the field's
/// path.
absl::StatusOr<v1::Graph> BuildModel(const v1alpha1::Model& model);

/// config.json that transformers reads beside the checkpoint.
absl::StatusOr<std::string> ModelConfigJson(const v1alpha1::Model& model);

}  // namespace fusion::graph
