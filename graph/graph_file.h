// Graphs of one's own: files in graph.proto's JSON or binary form.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fusion/graph/v1/graph.pb.h"

namespace fusion::graph {

/// Larger files are refused before they are read.
inline constexpr int64_t kMaxGraphBytes = int64_t{1} << 28;

/// The graph in `bytes`: JSON (proto/json_mapper.h, strict) where the first character that is not blank is a
/// brace, else protobuf's binary form. It is valid as ValidateGraph says, and its placeholders are what a job
/// feeds: `input` and `label`, with the samples of the micro-batch as first dimension. INVALID_ARGUMENT says
/// which field is wrong, as "operators[3].outputs[0].shape[1]: …".
absl::StatusOr<v1::Graph> ParseGraph(absl::string_view bytes);

/// ParseGraph of a file; messages begin with the path. NOT_FOUND: it cannot be read.
absl::StatusOr<v1::Graph> ReadGraph(const std::string& path);

/// Whether a variable takes its first value from the file beside the graph.
bool HasStoredValues(const v1::Graph& graph);

/// The safetensors file beside the graph's: its uri or path with .safetensors as extension.
std::string StoredValuesUri(absl::string_view graph_uri);

}  // namespace fusion::graph
