// Checkpoints of a job: every stage writes its part, one stage makes step-N of the parts.
//
//   DIR/.step-N.partial/stage-K.safetensors   parts: "model/NAME", "optimizer/NAME", "feedback/NAME"
//   DIR/step-N/model.safetensors              parameters and buffers, in Hugging Face's names and layout;
//   beyond
//                                             CheckpointInfo.shard_bytes model-I-of-K.safetensors and
//                                             model.safetensors.index.json in its place
//              config.json                    beside it, for transformers
//              optimizer.safetensors          NAME.exp_avg, NAME.step and so on
//              error-feedback.safetensors     what lossy messages left out so far; only where a codec keeps
//              that training-state.json            job, step, seed, incarnation, samples (checkpoint_json.h)
//              manifest.json                  size and SHA-256 of each file
//
// A step-N folder is whole: it is renamed into place after everything in it is on disk. What fails leaves the
// checkpoints before it as they are. All functions block on the disk; thread-safe for different steps.
// Reading them is in restore.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/checkpoint/checkpoint_json.h"
#include "worker/engine/engine.h"

namespace fusion::worker {

inline constexpr char kOptimizerFile[] = "optimizer.safetensors";
inline constexpr char kFeedbackFile[] = "error-feedback.safetensors";
inline constexpr char kTrainingStateFile[] = "training-state.json";
inline constexpr char kManifestFile[] = "manifest.json";

/// The limit above which transformers splits its files.
inline constexpr int64_t kShardBytes = 5'000'000'000;

/// What a stage owns, copied at a step's boundary.
struct StageSnapshot {
  int64_t step = 0;
  std::vector<NamedTensor> variables;  ///< by tensor name, borrowed ones left out
  std::vector<NamedTensor> optimizer;
  std::vector<NamedTensor> feedback = {};  ///< StageRunner::ReadErrorFeedback
};

/// Reads it from the engine, all but the error feedback. Compute thread.
absl::StatusOr<StageSnapshot> TakeSnapshot(const Engine& engine, int64_t step);

/// Writes the part of `stage`; returns its path.
absl::StatusOr<std::string> WritePart(const std::string& directory, int stage, const StageSnapshot& snapshot);

/// What an assembled checkpoint says beside its tensors.
struct CheckpointInfo {
  TrainingState state;
  std::map<std::string, std::string> config_files = {};  ///< file name -> contents: config.json
  int64_t shard_bytes = kShardBytes;                     ///< of a model file at most, but for a larger tensor
};

/// Makes step-N of the parts and removes them; returns the folder's path. A step-N that is there already is
/// replaced. DATA_LOSS when two parts have a tensor of one name.
absl::StatusOr<std::string> AssembleCheckpoint(const std::string& directory, const CheckpointInfo& info,
                                               const std::vector<std::string>& parts);

/// Removes partial folders that an earlier run left; a missing directory is fine.
absl::Status RemovePartialCheckpoints(const std::string& directory);

/// Lower-case hexadecimal SHA-256.
std::string Sha256(absl::Span<const std::byte> bytes);

}  // namespace fusion::worker
