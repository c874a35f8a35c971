// A job's model as a graph: a built-in family, whose names, shapes and initial values are Hugging Face's, or
// a graph of one's own.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::graph {

/// The graph of spec.model for training (forward with the loss as last operator): a family's, whose operators
/// `input`, `label` and `loss` have these names, the others their Hugging Face module path; or that of
/// model.graph.uri (graph_file.h), which is relative to `base_directory`. Errors carry the field's path.
absl::StatusOr<v1::Graph> BuildModel(const v1alpha1::Model& model, const std::string& base_directory = "");

/// config.json that transformers reads beside the checkpoint; of a graph of one's own, where it came from.
absl::StatusOr<std::string> ModelConfigJson(const v1alpha1::Model& model);

}  // namespace fusion::graph
