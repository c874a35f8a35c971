#include "worker/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <linux/fs.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "openssl/evp.h"
#include "worker/checkpoint/durable_file.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/tensor_files.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;
using TensorMap = std::map<std::string, TensorView>;

constexpr char kModelPrefix[] = "model/";
constexpr char kOptimizerPrefix[] = "optimizer/";
constexpr char kFeedbackPrefix[] = "feedback/";
constexpr char kPartialSuffix[] = ".partial";

std::string StepName(int64_t step) { return absl::StrCat("step-", step); }
fs::path PartialFolder(const std::string& directory, int64_t step) {
  return fs::path(directory) / absl::StrCat(".", StepName(step), kPartialSuffix);
}

absl::Status FileError(absl::string_view doing, const fs::path& path, const std::error_code& error) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot ", doing, " ", path.string()));
}

struct Collected {
  TensorMap model;
  TensorMap optimizer;
  TensorMap feedback;

  TensorMap* Find(absl::string_view& name) {
    if (absl::ConsumePrefix(&name, kModelPrefix)) return &model;
    if (absl::ConsumePrefix(&name, kOptimizerPrefix)) return &optimizer;
    if (absl::ConsumePrefix(&name, kFeedbackPrefix)) return &feedback;
    return nullptr;
  }
};

// Sorts the tensors of all parts into the files.
absl::StatusOr<Collected> CollectParts(const std::vector<SafetensorsFile>& parts) {
  Collected collected;
  for (const SafetensorsFile& part : parts) {
    for (const auto& [prefixed, view] : part.tensors()) {
      absl::string_view name = prefixed;
      TensorMap* file = collected.Find(name);
      if (file == nullptr) {
        return absl::DataLossError(absl::StrCat(part.path(), ": unexpected tensor '", prefixed, "'"));
      }
      if (!file->emplace(std::string(name), view).second) {
        return absl::DataLossError(absl::StrCat(part.path(), ": '", prefixed, "' is in another part too"));
      }
    }
  }
  return collected;
}

int64_t BytesOf(const TensorMap& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, view] : tensors) bytes += static_cast<int64_t>(view.bytes.size());
  return bytes;
}

// In the order of names, so many tensors in each that no shard is above the limit unless a tensor is.
std::vector<TensorMap> SplitIntoShards(const TensorMap& tensors, int64_t shard_bytes) {
  std::vector<TensorMap> shards(1);
  int64_t bytes = 0;
  for (const auto& [name, view] : tensors) {
    const auto size = static_cast<int64_t>(view.bytes.size());
    if (bytes > 0 && bytes + size > shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().emplace(name, view);
    bytes += size;
  }
  return shards;
}

// Files written into a folder, and their names.
class FolderWriter {
 public:
  explicit FolderWriter(fs::path folder) : folder_(std::move(folder)) {}

  void Tensors(const std::string& name, const TensorMap& tensors) {
    if (status_.ok()) status_ = WriteSafetensors(folder_ / name, tensors);
    names_.push_back(name);
  }

  void Text(const std::string& name, const std::string& contents) {
    if (status_.ok()) status_ = WriteDurably(folder_ / name, contents);
    names_.push_back(name);
  }

  void Model(const TensorMap& tensors, int64_t shard_bytes) {
    const std::vector<TensorMap> shards = SplitIntoShards(tensors, shard_bytes);
    if (shards.size() == 1) {
      return Tensors(kModelFile, tensors);
    }
    ShardIndex index;
    for (size_t i = 0; i < shards.size(); ++i) {
      const std::string name = absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
      Tensors(name, shards[i]);
      for (const auto& [tensor, view] : shards[i]) index[tensor] = name;
    }
    Text(kModelIndexFile, ShardIndexJson(index, BytesOf(tensors)));
  }

  /// Last: what is written is read again for its sum.
  absl::Status Manifest() {
    CheckpointManifest manifest;
    for (auto name = names_.begin(); status_.ok() && name != names_.end(); ++name) {
      const auto file = MappedFile::Open(folder_ / *name);
      if (!file.ok()) {
        return file.status();
      }
      manifest[*name] = {.bytes = static_cast<int64_t>(file->bytes().size()),
                         .sha256 = Sha256(file->bytes())};
    }
    return status_.ok() ? WriteDurably(folder_ / kManifestFile, ManifestJson(manifest)) : status_;
  }

 private:
  const fs::path folder_;
  std::vector<std::string> names_;
  absl::Status status_;  ///< of the first that failed
};

// Fills `folder` with the checkpoint's files and removes the parts.
absl::Status WriteFiles(const fs::path& folder, const CheckpointInfo& info,
                        const std::vector<std::string>& parts) {
  std::vector<SafetensorsFile> files;
  for (const std::string& path : parts) {
    auto file = SafetensorsFile::Open(path);
    if (!file.ok()) {
      return file.status();
    }
    files.push_back(*std::move(file));
  }
  const auto collected = CollectParts(files);
  if (!collected.ok()) {
    return collected.status();
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return FileError("create", folder, error);
  }
  FolderWriter writer(folder);
  writer.Model(collected->model, info.shard_bytes);
  writer.Tensors(kOptimizerFile, collected->optimizer);
  if (!collected->feedback.empty()) {
    writer.Tensors(kFeedbackFile, collected->feedback);
  }
  for (const auto& [name, text] : info.config_files) {
    writer.Text(name, text);
  }
  writer.Text(kTrainingStateFile, TrainingStateJson(info.state));
  absl::Status status = writer.Manifest();
  for (auto part = parts.begin(); status.ok() && part != parts.end(); ++part) {
    if (!fs::remove(*part, error)) {
      status = FileError("remove", *part, error);
    }
  }
  return status.ok() ? SyncFolder(folder) : status;
}

// Renames `from` to `to`. What is at `to` changes places with it, so that there is a whole one at any moment,
// and is then removed.
absl::Status ReplaceFolder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  const bool replaces = fs::exists(to, error);
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), replaces ? RENAME_EXCHANGE : 0) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", to.string()));
  }
  const absl::Status status = SyncFolder(to.parent_path());
  if (replaces) {
    fs::remove_all(from, error);
  }
  return status;
}

}  // namespace

std::string Sha256(absl::Span<const std::byte> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &length, EVP_sha256(), nullptr);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), length});
}

absl::StatusOr<StageSnapshot> TakeSnapshot(const Engine& engine, int64_t step) {
  StageSnapshot snapshot{.step = step, .variables = {}, .optimizer = {}};
  for (const VariableInfo& variable : engine.Variables()) {
    if (variable.borrowed) {
      continue;
    }
    const auto value = engine.ReadVariable(variable.name);
    if (!value.ok()) {
      return value.status();
    }
    snapshot.variables.push_back({variable.tensor_name, CopyTensor(ViewOf(*value))});
  }
  const auto optimizer = engine.ReadOptimizerState();
  if (!optimizer.ok()) {
    return optimizer.status();
  }
  for (const NamedTensor& state : *optimizer) {
    snapshot.optimizer.push_back({state.name, CopyTensor(ViewOf(state.tensor))});
  }
  return snapshot;
}

absl::StatusOr<std::string> WritePart(const std::string& directory, int stage,
                                      const StageSnapshot& snapshot) {
  const fs::path folder = PartialFolder(directory, snapshot.step);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return FileError("create", folder, error);
  }
  TensorMap tensors;
  const auto add = [&](const char* prefix, const std::vector<NamedTensor>& named) {
    for (const NamedTensor& tensor : named) tensors[prefix + tensor.name] = ViewOf(tensor.tensor);
  };
  add(kModelPrefix, snapshot.variables);
  add(kOptimizerPrefix, snapshot.optimizer);
  add(kFeedbackPrefix, snapshot.feedback);
  std::string path = folder / absl::StrCat("stage-", stage, ".safetensors");
  const absl::Status status = WriteSafetensors(path, tensors);
  if (!status.ok()) {
    return status;
  }
  return path;
}

absl::StatusOr<std::string> AssembleCheckpoint(const std::string& directory, const CheckpointInfo& info,
                                               const std::vector<std::string>& parts) {
  const fs::path folder = PartialFolder(directory, info.state.step);
  const fs::path target = fs::path(directory) / StepName(info.state.step);
  absl::Status status = WriteFiles(folder, info, parts);
  if (status.ok()) {
    status = ReplaceFolder(folder, target);
  }
  if (!status.ok()) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    return status;
  }
  return target.string();
}

absl::Status RemovePartialCheckpoints(const std::string& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, ".step-") && absl::EndsWith(name, kPartialSuffix)) {
      fs::remove_all(entry.path(), error);
      if (error) {
        return FileError("remove", entry.path(), error);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace fusion::worker
