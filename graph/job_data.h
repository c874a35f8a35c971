// What data a job with a graph of its own needs.
#pragma once

#include "absl/status/status.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::graph {

/// Completes the spec of a job whose model is a graph, so that workers need no graph to read its data and
/// values:
///   model.config    the sizes of `input` and `label`, as a family's: context and vocabulary of text (towers
///   2: pairs of texts), inputs
///                   and outputs of tables, channels, imageSize and classes of images
///   model.loss      CrossEntropy where `label` is a class
///   model.initFrom  the file beside the graph, where variables take their values from it and the job names
///                   none
/// A family's spec is left as it is. INVALID_ARGUMENT, with the field, where data of the job's kind does not
/// fit the placeholders.
absl::Status CompleteSpec(const v1::Graph& graph, v1alpha1::FusionJobSpec* spec);

}  // namespace fusion::graph
