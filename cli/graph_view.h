// Operator graphs as drawings.
#pragma once

#include <string>

#include "fusion/graph/v1/graph.pb.h"
#include "fusion/graph/v1/plan.pb.h"

namespace fusion::cli {

/// Graphviz's text. Operators are boxes in the colour of their stage, edges that cross stages are dashed;
/// variables are left out. `plan` may be null: then all are white.
std::string GraphDot(const graph::v1::Graph& graph, const graph::v1::Plan* plan);

/// The same as SVG, in layers by the longest way from the inputs, with a legend of the stages.
std::string GraphSvg(const graph::v1::Graph& graph, const graph::v1::Plan* plan);

}  // namespace fusion::cli
