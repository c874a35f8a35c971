// training.precision bf16: casts as operators of the graph, where torch.autocast would cast. The graph says
// all that happens; nothing is ambient.
#pragma once

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::graph {

/// What autocast does with an operator's float32 and bfloat16 arguments.
enum class CastRule {
  kLower,    ///< to bfloat16: matrix products and convolutions
  kHigher,   ///< to float32: losses, reductions, normalisations, exponentials
  kFirst,    ///< the first argument as it comes, the others to float32: BatchNorm
  kPromote,  ///< to float32 where they differ, else as they come
  kKeep,     ///< as the graph had them: operators outside the registry, whose results are recorded
};

/// The rule of torch.autocast's lists for CUDA and the widest of those for CPU (there layer_norm and softmax
/// are left in bfloat16); besides, mean and masked_fill are kHigher. batch_norm is in no list: its kernels
/// take lower images beside float32 weights and statistics, compute in float32 and round their result.
CastRule CastRuleOf(const v1::Operator& op);

/// The graph in mixed precision: operators aten.to.dtype stand before those that autocast would cast for,
/// results follow by the registry's rules, variables stay float32 and so does the loss. A value is cast once,
/// before its first reader (VALUE.bf16, VALUE.fp32), a variable for each reader (READER.cast.N), so that it
/// need not travel.
absl::StatusOr<v1::Graph> Autocast(const v1::Graph& graph);

/// The graph as training.precision wants it: as it is, or Autocast.
absl::StatusOr<v1::Graph> ApplyPrecision(v1::Graph graph, const v1alpha1::Training& training);

}  // namespace fusion::graph
