// Cuts a graph into the programs that the workers of its stages run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/graph/v1/plan.pb.h"

namespace fusion::graph {

/// Operators of one sub-DAG, by name, without variables (a variable belongs to the stage of its first
/// reader).
struct SubDagPlacement {
  std::vector<std::string> operators;
  int32_t depth = 1;
};

struct StagePlacement {
  std::vector<SubDagPlacement> sub_dags;  ///< in run order
};

/// One entry a stage. Every operator but the variables is in exactly one sub-DAG.
using Placement = std::vector<StagePlacement>;

Placement PlacementOf(const v1::Plan& plan);

/// Programs by stage index, codecs not yet set. INVALID_ARGUMENT, with the operators at fault, when an
/// operator is missing or placed twice, when the quotient graph of the sub-DAGs has a cycle (the message
/// names it), or when a stage's run order contradicts it.
absl::StatusOr<std::vector<v1::StageProgram>> Slice(const v1::Graph& graph, const Placement& placement);

/// The codec of values that travel as they are.
inline constexpr char kDenseCodec[] = "fp32";

/// Sets every edge's codecs from the plan's links; a link that the plan does not list is dense, and so are
/// values that are not differentiable. INVALID_ARGUMENT where the plan gives one link two codecs.
absl::Status SetCodecs(const v1::Plan& plan, std::vector<v1::StageProgram>& programs);

/// The whole graph again, for one process, computing what the programs compute over their links: an operator
/// fusion.codec, named VALUE.codec.STAGE, stands before the first reader of every value that reaches a stage
/// through a codec, and that stage's readers read it. INVALID_ARGUMENT where an edge has two different
/// codecs, or changes them.
absl::StatusOr<v1::Graph> InsertCodecs(const v1::Graph& graph, const std::vector<v1::StageProgram>& programs);

}  // namespace fusion::graph
