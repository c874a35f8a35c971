#include "worker/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "openssl/evp.h"
#include "worker/checkpoint/durable_file.h"
#include "worker/checkpoint/safetensors.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using TensorMap = std::map<std::string, TensorView>;

constexpr char kModelFile[] = "model.safetensors";
constexpr char kOptimizerFile[] = "optimizer.safetensors";
constexpr char kManifestFile[] = "manifest.json";
constexpr char kModelPrefix[] = "model/";
constexpr char kOptimizerPrefix[] = "optimizer/";
constexpr char kPartialSuffix[] = ".partial";

std::string StepName(int64_t step) { return absl::StrCat("step-", step); }
fs::path PartialFolder(const std::string& directory, int64_t step) {
  return fs::path(directory) / absl::StrCat(".", StepName(step), kPartialSuffix);
}

absl::Status FileError(absl::string_view doing, const fs::path& path, const std::error_code& error) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot ", doing, " ", path.string()));
}

// Sorts the tensors of all parts into the two files.
absl::Status CollectParts(const std::vector<SafetensorsFile>& parts, TensorMap& model, TensorMap& optimizer) {
  for (const SafetensorsFile& part : parts) {
    for (const auto& [prefixed, view] : part.tensors()) {
      absl::string_view name = prefixed;
      const bool of_model = absl::ConsumePrefix(&name, kModelPrefix);
      if (!of_model && !absl::ConsumePrefix(&name, kOptimizerPrefix)) {
        return absl::DataLossError(absl::StrCat(part.path(), ": unexpected tensor '", prefixed, "'"));
      }
      if (!(of_model ? model : optimizer).emplace(std::string(name), view).second) {
        return absl::DataLossError(absl::StrCat(part.path(), ": '", prefixed, "' is in another part too"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status WriteManifest(const fs::path& folder, const std::vector<std::string>& names) {
  json files = json::object();
  for (const std::string& name : names) {
    const auto file = MappedFile::Open(folder / name);
    if (!file.ok()) {
      return file.status();
    }
    files[name] = {{"bytes", file->bytes().size()}, {"sha256", Sha256(file->bytes())}};
  }
  return WriteDurably(folder / kManifestFile, json{{"version", 1}, {"files", files}}.dump(2) + "\n");
}

std::string TrainingState(const CheckpointInfo& info) {
  const json state = {{"version", 1},      {"job", info.job},
                      {"step", info.step}, {"incarnation", info.incarnation},
                      {"seed", info.seed}, {"samples", info.samples}};
  return state.dump(2) + "\n";
}

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
  TensorMap model;
  TensorMap optimizer;
  absl::Status status = CollectParts(files, model, optimizer);
  if (!status.ok()) {
    return status;
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return FileError("create", folder, error);
  }
  status = WriteSafetensors(folder / kModelFile, model);
  if (status.ok()) {
    status = WriteSafetensors(folder / kOptimizerFile, optimizer);
  }
  std::vector<std::string> names = {kModelFile, kOptimizerFile};
  std::map<std::string, std::string> texts = info.config_files;
  texts["training-state.json"] = TrainingState(info);
  for (auto text = texts.begin(); status.ok() && text != texts.end(); ++text) {
    names.push_back(text->first);
    status = WriteDurably(folder / text->first, text->second);
  }
  if (status.ok()) {
    status = WriteManifest(folder, names);
  }
  for (auto part = parts.begin(); status.ok() && part != parts.end(); ++part) {
    if (!fs::remove(*part, error)) {
      status = FileError("remove", *part, error);
    }
  }
  return status.ok() ? SyncFolder(folder) : status;
}

// Renames `from` to `to`; what is at `to` is set aside first and then removed.
absl::Status ReplaceFolder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  const fs::path aside = to.parent_path() / absl::StrCat(".", to.filename().string(), ".old", kPartialSuffix);
  if (fs::exists(to, error)) {
    fs::remove_all(aside, error);
    fs::rename(to, aside, error);
  }
  if (!error) {
    fs::rename(from, to, error);
  }
  if (error) {
    return FileError("make", to, error);
  }
  fs::remove_all(aside, error);
  return SyncFolder(to.parent_path());
}

absl::Status CheckManifest(const fs::path& folder, const std::string& name) {
  const auto manifest = MappedFile::Open(folder / kManifestFile);
  if (!manifest.ok()) {
    return manifest.status();
  }
  const auto* text = reinterpret_cast<const char*>(manifest->bytes().data());
  const json value = json::parse(text, text + manifest->bytes().size(), nullptr, /*allow_exceptions=*/false);
  const json::json_pointer pointer = json::json_pointer("/files") / name / "sha256";
  if (!value.is_object() || !value.contains(pointer) || !value[pointer].is_string()) {
    return absl::DataLossError(absl::StrCat(manifest->path(), " does not have the SHA-256 of ", name));
  }
  const auto file = MappedFile::Open(folder / name);
  if (!file.ok()) {
    return file.status();
  }
  if (Sha256(file->bytes()) != value[pointer].get<std::string>()) {
    return absl::DataLossError(absl::StrCat(file->path(), " is not what ", kManifestFile,
                                            " says (SHA-256); it was changed or damaged"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsFile> OpenInitial(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return SafetensorsFile::Open(path);
  }
  const absl::Status whole = CheckManifest(path, kModelFile);
  if (!whole.ok()) {
    return whole;
  }
  return SafetensorsFile::Open((fs::path(path) / kModelFile).string());
}

const TensorView* FindTensor(const TensorMap& tensors, absl::string_view name) {
  auto found = tensors.find(std::string(name));
  if (found == tensors.end() && absl::ConsumePrefix(&name, "transformer.")) {
    found = tensors.find(std::string(name));
  }
  return found == tensors.end() ? nullptr : &found->second;
}

absl::Status InitializeVariable(const SafetensorsFile& file, const VariableInfo& variable, Engine& engine) {
  const TensorView* view = FindTensor(file.tensors(), variable.tensor_name);
  if (view == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " has no tensor '", variable.tensor_name, "', which the model needs"));
  }
  const std::vector<int64_t> shape(variable.spec.shape().begin(), variable.spec.shape().end());
  if (view->shape != shape || view->dtype != variable.spec.dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": '", variable.tensor_name, "' is ", graph::v1::DataType_Name(view->dtype),
                     ShapeText(view->shape), ", the model needs ",
                     graph::v1::DataType_Name(variable.spec.dtype()), ShapeText(shape)));
  }
  return engine.WriteVariable(variable.name, CopyTensor(*view));
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
  for (const NamedTensor& variable : snapshot.variables) {
    tensors[kModelPrefix + variable.name] = ViewOf(variable.tensor);
  }
  for (const NamedTensor& state : snapshot.optimizer) {
    tensors[kOptimizerPrefix + state.name] = ViewOf(state.tensor);
  }
  std::string path = folder / absl::StrCat("stage-", stage, ".safetensors");
  const absl::Status status = WriteSafetensors(path, tensors);
  if (!status.ok()) {
    return status;
  }
  return path;
}

absl::StatusOr<std::string> AssembleCheckpoint(const std::string& directory, const CheckpointInfo& info,
                                               const std::vector<std::string>& parts) {
  const fs::path folder = PartialFolder(directory, info.step);
  const fs::path target = fs::path(directory) / StepName(info.step);
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

absl::Status InitializeFrom(const std::string& path, Engine& engine) {
  const auto file = OpenInitial(path);
  absl::Status status = file.status();
  const std::vector<VariableInfo> variables = engine.Variables();
  for (auto variable = variables.begin(); status.ok() && variable != variables.end(); ++variable) {
    status = InitializeVariable(*file, *variable, engine);
  }
  return status.ok() ? status
                     : absl::Status(status.code(), absl::StrCat("model.initFrom: ", status.message()));
}

}  // namespace fusion::worker
