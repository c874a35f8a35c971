// A stage that runs each distinct operator of a graph once, so that operators can be timed by the engine's
// own forward and backward without holding the whole model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"

namespace fusion::worker::engine {

struct MeasuredProgram {
  /// One sub-DAG. What an operator reads comes by an edge of its own, or is a variable; each of its outputs
  /// leaves by one edge for each reader it has in the graph, so that cotangents are summed as in a real step.
  graph::v1::StageProgram program;
  std::vector<std::string> signatures;  ///< by index among the sub-DAG's operators that are no variables
};

/// Operators for whose signature `wanted` is false are left out. INVALID_ARGUMENT where the graph contradicts
/// itself.
absl::StatusOr<MeasuredProgram> ProgramOfDistinctOperators(
    const graph::v1::Graph& graph, int64_t samples,
    const std::function<bool(const std::string& signature)>& wanted);

}  // namespace fusion::worker::engine
