#include "worker/checkpoint/initial_values.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/restore.h"
#include "worker/checkpoint/tensor_files.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<TensorMatch> Initialize(const std::string& path, const std::vector<WantedTensor>& model,
                                       Engine& engine) {
  std::error_code error;
  if (fs::exists(fs::path(path) / kManifestFile, error)) {
    if (const auto whole = VerifyCheckpoint(path); !whole.ok()) {
      return whole.status();
    }
  }
  const auto files = TensorFiles::Open(path);
  if (!files.ok()) {
    return files.status();
  }
  auto match = MatchTensors(files->path(), files->tensors(), model, Matching::kPublished);
  if (!match.ok()) {
    return match;
  }
  for (const VariableInfo& variable : engine.Variables()) {
    const auto name = match->tensors.find(variable.tensor_name);
    if (name == match->tensors.end()) {
      continue;
    }
    const absl::Status written = engine.WriteVariable(
        variable.name, Convert(files->tensors().at(name->second), variable.spec.dtype()));
    if (!written.ok()) {
      return written;
    }
  }
  return match;
}

}  // namespace

absl::StatusOr<TensorMatch> InitializeFrom(const std::string& path, const std::vector<WantedTensor>& model,
                                           Engine& engine) {
  auto match = Initialize(path, model, engine);
  if (match.ok()) {
    return match;
  }
  return absl::Status(match.status().code(), absl::StrCat("model.initFrom: ", match.status().message()));
}

}  // namespace fusion::worker
