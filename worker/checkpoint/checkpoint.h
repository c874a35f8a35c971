// Checkpoints of a job: every stage writes its part, one stage makes step-N of the parts.
//
//   DIR/.step-N.partial/stage-K.safetensors   parts: "model/NAME" and "optimizer/NAME"
//   DIR/step-N/model.safetensors              parameters and buffers, in Hugging Face's names and layout
//              config.json                    beside it, for transformers
//              optimizer.safetensors          NAME.exp_avg and so on
//              training-state.json            job, step, seed, incarnation, learned samples
//              manifest.json                  size and SHA-256 of each file
//
// A step-N folder is whole: it is renamed into place after everything in it is on disk. What fails leaves the
// checkpoints before it as they are. All functions block on the disk; thread-safe for different steps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/engine/engine.h"

namespace fusion::worker {

/// What a stage owns, copied at a step's boundary.
struct StageSnapshot {
  int64_t step = 0;
  std::vector<NamedTensor> variables;  ///< by tensor name, borrowed ones left out
  std::vector<NamedTensor> optimizer;
};

/// Reads it from the engine. Compute thread.
absl::StatusOr<StageSnapshot> TakeSnapshot(const Engine& engine, int64_t step);

/// Writes the part of `stage`; returns its path.
absl::StatusOr<std::string> WritePart(const std::string& directory, int stage, const StageSnapshot& snapshot);

/// What an assembled checkpoint says beside its tensors.
struct CheckpointInfo {
  std::string job;
  int64_t step = 0;
  int64_t incarnation = 0;
  int64_t seed = 0;
  int64_t samples = 0;                              ///< trained on so far
  std::map<std::string, std::string> config_files;  ///< file name -> contents: config.json
};

/// Makes step-N of the parts and removes them; returns the folder's path. A step-N that is there already is
/// replaced. DATA_LOSS when two parts have a tensor of one name.
absl::StatusOr<std::string> AssembleCheckpoint(const std::string& directory, const CheckpointInfo& info,
                                               const std::vector<std::string>& parts);

/// Removes partial folders that an earlier run left; a missing directory is fine.
absl::Status RemovePartialCheckpoints(const std::string& directory);

/// Lower-case hexadecimal SHA-256.
std::string Sha256(absl::Span<const std::byte> bytes);

/// Sets the engine's variables from `path`: a step-N folder (its manifest is checked) or a safetensors file.
/// Tensors are found by name, also without the leading "transformer." as GPT-2's published files have it;
/// tensors that the stage does not have (other stages' ones, a tied lm_head) are left. INVALID_ARGUMENT names
/// the tensor that is missing or has another shape or dtype; messages start with model.initFrom.
absl::Status InitializeFrom(const std::string& path, Engine& engine);

}  // namespace fusion::worker
