#include "worker/checkpoint/tensor_files.h"

#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint_json.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<ShardIndex> ReadIndex(const std::string& path) {
  const auto file = MappedFile::Open(path);
  if (!file.ok()) {
    return file.status();
  }
  auto index = ParseShardIndex({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
  if (!index.ok()) {
    return absl::Status(index.status().code(), absl::StrCat(path, ": ", index.status().message()));
  }
  return index;
}

}  // namespace

absl::StatusOr<TensorFiles> TensorFiles::OpenIndex(const std::string& path) {
  const auto index = ReadIndex(path);
  if (!index.ok()) {
    return index.status();
  }
  TensorFiles result;
  result.path_ = path;
  std::set<std::string> names;
  for (const auto& [tensor, file] : *index) {
    names.insert(file);
  }
  for (const std::string& name : names) {
    auto file = SafetensorsFile::Open(fs::path(path).parent_path() / name);
    if (!file.ok()) {
      return absl::Status(file.status().code(),
                          absl::StrCat(path, " names a shard: ", file.status().message()));
    }
    for (const auto& [tensor, view] : file->tensors()) {
      const auto wanted = index->find(tensor);
      if (wanted == index->end() || wanted->second != name) {
        return absl::DataLossError(
            absl::StrCat(path, ": tensor '", tensor, "' is in ", name, ", the index has it ",
                         wanted == index->end() ? std::string("nowhere") : "in " + wanted->second));
      }
      result.tensors_.emplace(tensor, view);
    }
    result.files_.push_back(*std::move(file));
  }
  for (const auto& [tensor, file] : *index) {
    if (result.tensors_.count(tensor) == 0) {
      return absl::DataLossError(absl::StrCat(path, ": tensor '", tensor, "' is not in ", file));
    }
  }
  return result;
}

absl::StatusOr<TensorFiles> TensorFiles::Open(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    const fs::path single = fs::path(path) / kModelFile;
    const fs::path index = fs::path(path) / kModelIndexFile;
    if (fs::exists(single, error)) {
      return Open(single);
    }
    if (fs::exists(index, error)) {
      return OpenIndex(index);
    }
    return absl::NotFoundError(
        absl::StrCat(path, " has neither ", kModelFile, " nor ", kModelIndexFile, "; give the file itself"));
  }
  if (absl::EndsWith(path, ".index.json")) {
    return OpenIndex(path);
  }
  auto file = SafetensorsFile::Open(path);
  if (!file.ok()) {
    return file.status();
  }
  TensorFiles result;
  result.path_ = path;
  result.tensors_ = file->tensors();
  result.files_.push_back(*std::move(file));
  return result;
}

}  // namespace fusion::worker
