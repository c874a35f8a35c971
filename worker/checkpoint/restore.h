// Reading checkpoints: which one to go on from, and putting it into an engine. Writing is in checkpoint.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fusion/v1alpha1/api.pb.h"
#include "worker/checkpoint/checkpoint_json.h"
#include "worker/checkpoint/wanted_tensors.h"
#include "worker/engine/engine.h"

namespace fusion::worker {

/// Checks every file of a step-N folder against its manifest (size, SHA-256), and that the files are there
/// that make a checkpoint and say what they should. DATA_LOSS, NOT_FOUND or what the system says, with the
/// path.
absl::StatusOr<TrainingState> VerifyCheckpoint(const std::string& folder);

struct FoundCheckpoint {
  std::string path;
  TrainingState state;
};
struct DamagedCheckpoint {
  std::string path;
  std::string reason;
};
struct CheckpointSearch {
  std::optional<FoundCheckpoint> newest;   ///< intact
  std::vector<DamagedCheckpoint> damaged;  ///< newer than that one, newest first
};

/// Looks through the step-N folders of `directory` from the newest to the first that is intact. A directory
/// that is missing or empty is no error; one that cannot be read is.
absl::StatusOr<CheckpointSearch> FindNewestCheckpoint(const std::string& directory);

/// Renames a damaged step-N to step-N.damaged, which nobody takes for a checkpoint; returns the new path. An
/// earlier one of that name is removed.
absl::StatusOr<std::string> SetAside(const DamagedCheckpoint& checkpoint);

/// INVALID_ARGUMENT where a job cannot go on from `state`: another seed (batches, masks) or kind of
/// optimizer, or no step left. Messages say what to change.
absl::Status CheckContinues(const FoundCheckpoint& checkpoint, const v1alpha1::FusionJobSpec& spec);

/// Verifies `folder` and sets the engine's variables, borrowed ones too, and the optimizer state of those it
/// owns. `model` is the whole model's: INVALID_ARGUMENT lists the tensors that are missing, of another dtype
/// or shape, or of no variable.
absl::Status RestoreCheckpoint(const std::string& folder, const std::vector<WantedTensor>& model,
                               Engine& engine);

/// The tensors of the folder's error-feedback.safetensors; none where it has no such file.
absl::StatusOr<std::vector<NamedTensor>> ReadFeedbackFile(const std::string& folder);

}  // namespace fusion::worker
