// What is compared: one model, cut in the same or in different places, with codecs on the cuts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/graph/v1/plan.pb.h"

namespace fusion::bench {

/// A name for tables and files, and the programs of its stages with codecs set.
struct Variant {
  std::string name;
  std::vector<graph::v1::StageProgram> programs;
};

/// The variant without codecs, which the others are compared with.
inline constexpr char kDense[] = "dense";

/// Cuts `graph` after each of `cuts`, an operator's name or the prefix of a module's (transformer.h.1 cuts
/// after the second block), and puts one codec (codec/codec.h; or "dense") on everything differentiable that
/// crosses. INVALID_ARGUMENT for a cut that names nothing or leaves a stage empty, and for an unknown codec.
absl::StatusOr<Variant> CutVariant(const graph::v1::Graph& graph, const std::vector<std::string>& cuts,
                                   const std::string& codec);

/// Cuts and codecs of a plan, as `fusionctl plan -o json` prints it.
absl::StatusOr<Variant> PlanVariant(const graph::v1::Graph& graph, const std::string& name,
                                    const graph::v1::Plan& plan);

/// Bytes of one micro-batch's values and gradients over all cuts, and of the same tensors as fp32, each way.
struct MessageSizes {
  int64_t forward = 0;
  int64_t backward = 0;
  int64_t dense = 0;
};
absl::StatusOr<MessageSizes> SizesOf(const Variant& variant, int64_t samples);

/// "h.1.mlp.add topk-0.1-int4" for every differentiable edge: where a variant is cut, and how it travels.
std::vector<std::string> EdgesOf(const Variant& variant);

/// Whether a codec of it remembers what it left out: such a codec is no operator (docs/decisions.md).
bool HasErrorFeedback(const Variant& variant);

/// The whole graph as the program of one stage.
absl::StatusOr<graph::v1::StageProgram> WholeProgram(const graph::v1::Graph& graph);

}  // namespace fusion::bench
