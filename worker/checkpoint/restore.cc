#include "worker/checkpoint/restore.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/tensor_files.h"
#include "worker/mapped_file.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kStepPrefix[] = "step-";

absl::string_view TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

template <typename Parsed>
absl::StatusOr<Parsed> ReadJson(const fs::path& path, absl::StatusOr<Parsed> (*parse)(absl::string_view)) {
  const auto file = MappedFile::Open(path);
  if (!file.ok()) {
    return file.status();
  }
  auto parsed = parse(TextOf(*file));
  if (!parsed.ok()) {
    return absl::Status(parsed.status().code(), absl::StrCat(path.string(), ": ", parsed.status().message()));
  }
  return parsed;
}

absl::Status CheckFile(const fs::path& path, const ManifestEntry& entry) {
  const auto file = MappedFile::Open(path);
  if (!file.ok()) {
    return file.status();
  }
  const auto bytes = static_cast<int64_t>(file->bytes().size());
  if (bytes != entry.bytes) {
    return absl::DataLossError(absl::StrCat(path.string(), " has ", bytes, " bytes, ", kManifestFile,
                                            " says ", entry.bytes, "; it was cut off or changed"));
  }
  if (Sha256(file->bytes()) != entry.sha256) {
    return absl::DataLossError(absl::StrCat(path.string(), " is not what ", kManifestFile,
                                            " says (SHA-256); it was changed or damaged"));
  }
  return absl::OkStatus();
}

// -1 for a name that is not step-N.
int64_t StepOf(const fs::path& folder) {
  const std::string name = folder.filename();
  int64_t step = -1;
  const bool is_step = absl::StartsWith(name, kStepPrefix) &&
                       absl::SimpleAtoi(name.substr(sizeof(kStepPrefix) - 1), &step) &&
                       name == absl::StrCat(kStepPrefix, step);
  return is_step ? step : -1;
}

absl::Status CheckNeeded(const fs::path& folder, const CheckpointManifest& manifest) {
  const bool sharded = manifest.count(kModelIndexFile) > 0;
  for (const char* needed : {sharded ? kModelIndexFile : kModelFile, kOptimizerFile, kTrainingStateFile}) {
    if (manifest.count(needed) == 0) {
      return absl::DataLossError(absl::StrCat((folder / kManifestFile).string(), " does not list ", needed));
    }
  }
  if (!sharded) {
    return absl::OkStatus();
  }
  const auto index = ReadJson<ShardIndex>(folder / kModelIndexFile, ParseShardIndex);
  if (!index.ok()) {
    return index.status();
  }
  for (const auto& [tensor, file] : *index) {
    if (manifest.count(file) == 0) {
      return absl::DataLossError(absl::StrCat((folder / kManifestFile).string(), " does not list ", file,
                                              ", where ", kModelIndexFile, " has '", tensor, "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status RestoreVariables(const std::string& folder, const std::vector<WantedTensor>& model,
                              Engine& engine) {
  const auto files = TensorFiles::Open(folder);
  if (!files.ok()) {
    return files.status();
  }
  const auto match = MatchTensors(files->path(), files->tensors(), model, Matching::kExact);
  if (!match.ok()) {
    return match.status();
  }
  for (const VariableInfo& variable : engine.Variables()) {
    const auto tensor = files->tensors().find(variable.tensor_name);
    if (tensor == files->tensors().end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(files->path(), " has no tensor '", variable.tensor_name, "'"));
    }
    const absl::Status written = engine.WriteVariable(variable.name, CopyTensor(tensor->second));
    if (!written.ok()) {
      return written;
    }
  }
  return absl::OkStatus();
}

// State is named TENSOR.FIELD; names of tensors have dots themselves, fields have none.
absl::Status RestoreOptimizer(const std::string& folder, Engine& engine) {
  const auto file = SafetensorsFile::Open(fs::path(folder) / kOptimizerFile);
  if (!file.ok()) {
    return file.status();
  }
  std::set<std::string> owned;
  for (const VariableInfo& variable : engine.Variables()) {
    if (!variable.borrowed && variable.trainable) {
      owned.insert(variable.tensor_name);
    }
  }
  std::vector<NamedTensor> state;
  for (const auto& [name, view] : file->tensors()) {
    if (owned.count(name.substr(0, name.rfind('.'))) > 0) {
      state.push_back({name, CopyTensor(view)});
    }
  }
  const absl::Status written = engine.WriteOptimizerState(state);
  return written.ok() ? written
                      : absl::Status(written.code(), absl::StrCat(file->path(), ": ", written.message()));
}

}  // namespace

absl::StatusOr<TrainingState> VerifyCheckpoint(const std::string& folder) {
  const auto manifest = ReadJson<CheckpointManifest>(fs::path(folder) / kManifestFile, ParseManifest);
  if (!manifest.ok()) {
    return manifest.status();
  }
  for (const auto& [name, entry] : *manifest) {
    if (const absl::Status status = CheckFile(fs::path(folder) / name, entry); !status.ok()) {
      return status;
    }
  }
  if (const absl::Status status = CheckNeeded(folder, *manifest); !status.ok()) {
    return status;
  }
  auto state = ReadJson<TrainingState>(fs::path(folder) / kTrainingStateFile, ParseTrainingState);
  if (!state.ok()) {
    return state;
  }
  // Sums say that the files are those written; this, that they can be read.
  for (const char* tensors : {"", kOptimizerFile}) {
    const fs::path path = *tensors == '\0' ? fs::path(folder) : fs::path(folder) / tensors;
    if (const auto files = TensorFiles::Open(path); !files.ok()) {
      return files.status();
    }
  }
  const int64_t named = StepOf(fs::path(folder));
  if (named >= 0 && named != state->step) {
    return absl::DataLossError(absl::StrCat(folder, ": ", kTrainingStateFile, " is of step ", state->step));
  }
  return state;
}

absl::StatusOr<CheckpointSearch> FindNewestCheckpoint(const std::string& directory) {
  std::vector<std::pair<int64_t, std::string>> folders;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const int64_t step = StepOf(entry->path());
    if (step >= 0) {
      folders.emplace_back(step, entry->path());
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read ", directory));
  }
  std::sort(folders.rbegin(), folders.rend());
  CheckpointSearch search;
  for (const auto& [step, path] : folders) {
    auto state = VerifyCheckpoint(path);
    if (state.ok()) {
      search.newest = {path, *std::move(state)};
      break;
    }
    search.damaged.push_back({path, std::string(state.status().message())});
  }
  return search;
}

absl::StatusOr<std::string> SetAside(const DamagedCheckpoint& checkpoint) {
  std::string aside = checkpoint.path + ".damaged";
  std::error_code error;
  fs::remove_all(aside, error);
  if (!error) {
    fs::rename(checkpoint.path, aside, error);
  }
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot rename ", checkpoint.path, " to ", aside));
  }
  return aside;
}

absl::Status CheckContinues(const FoundCheckpoint& checkpoint, const v1alpha1::FusionJobSpec& spec) {
  const TrainingState& state = checkpoint.state;
  const v1alpha1::Training& training = spec.training();
  if (state.seed != training.seed()) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.path, " was trained with training.seed ", state.seed, ", the job has ", training.seed(),
        ": its data would not go on; set the seed, or take the parameters alone with model.initFrom"));
  }
  const std::string optimizer = v1alpha1::Optimizer::Type_Name(training.optimizer().type());
  if (!state.optimizer.empty() && state.optimizer != optimizer) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.path, " has the state of training.optimizer.type ", state.optimizer, ", the job has ",
        optimizer, "; set the type, or take the parameters alone with model.initFrom"));
  }
  if (state.step > training.steps()) {
    return absl::InvalidArgumentError(absl::StrCat(checkpoint.path, " is after step ", state.step,
                                                   ", beyond training.steps ", training.steps(),
                                                   "; set more steps"));
  }
  return absl::OkStatus();
}

absl::Status RestoreCheckpoint(const std::string& folder, const std::vector<WantedTensor>& model,
                               Engine& engine) {
  absl::Status status = VerifyCheckpoint(folder).status();
  if (status.ok()) {
    status = RestoreVariables(folder, model, engine);
  }
  return status.ok() ? RestoreOptimizer(folder, engine) : status;
}

absl::StatusOr<std::vector<NamedTensor>> ReadFeedbackFile(const std::string& folder) {
  std::vector<NamedTensor> result;
  const fs::path path = fs::path(folder) / kFeedbackFile;
  std::error_code error;
  if (!fs::exists(path, error)) {
    return result;
  }
  const auto file = SafetensorsFile::Open(path);
  if (!file.ok()) {
    return file.status();
  }
  for (const auto& [name, view] : file->tensors()) {
    result.push_back({name, CopyTensor(view)});
  }
  return result;
}

}  // namespace fusion::worker
