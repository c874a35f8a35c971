// The JSON files of a checkpoint. Parsers take any bytes: DATA_LOSS says what is wrong, without the file's
// path.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fusion::worker {

/// manifest.json: {"version": 1, "files": {NAME: {"bytes", "sha256"}}}.
struct ManifestEntry {
  int64_t bytes = 0;
  std::string sha256;  ///< 64 lower-case hexadecimal digits
};
using CheckpointManifest = std::map<std::string, ManifestEntry>;

/// File names are plain ones: no folders, no hidden files.
absl::StatusOr<CheckpointManifest> ParseManifest(absl::string_view text);
std::string ManifestJson(const CheckpointManifest& manifest);

/// training-state.json: what a run needs beside tensors to go on.
struct TrainingState {
  std::string job;
  int64_t step = 0;  ///< the last one that is in the checkpoint
  int64_t incarnation = 0;
  int64_t seed = 0;
  int64_t samples = 0;       ///< trained on so far: the position in the data
  int64_t global_batch = 0;  ///< 0: not said
  std::string optimizer;     ///< training.optimizer.type; empty: not said
};

/// Step, seed and samples must be there; members that it does not know are left.
absl::StatusOr<TrainingState> ParseTrainingState(absl::string_view text);
std::string TrainingStateJson(const TrainingState& state);

/// model.safetensors.index.json, as transformers writes it: {"metadata": {"total_size"}, "weight_map":
/// {TENSOR: FILE}}. Files are named as in a manifest.
using ShardIndex = std::map<std::string, std::string>;  // tensor -> file

absl::StatusOr<ShardIndex> ParseShardIndex(absl::string_view text);
std::string ShardIndexJson(const ShardIndex& index, int64_t total_bytes);

}  // namespace fusion::worker
