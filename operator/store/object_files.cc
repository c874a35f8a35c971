#include "operator/store/object_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "operator/object.h"

namespace fusion::op {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string PathOf(const std::string& folder, const Resource& resource, const ObjectKey& key) {
  const std::string name =
      key.namespace_name.empty() ? key.name : absl::StrCat(key.namespace_name, ".", key.name);
  return absl::StrCat(folder, "/", resource.plural, "/", name, ".json");
}

absl::Status ErrnoError(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoError("read", path);
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) return ErrnoError("read", path);
  return text.str();
}

absl::Status WriteFileAtomically(const std::string& path, const std::string& text) {
  const std::string aside = path + ".new";
  errno = 0;
  {
    std::ofstream file(aside, std::ios::binary | std::ios::trunc);
    file << text;
    file.flush();
    if (!file) return ErrnoError("write", aside);
  }
  if (std::rename(aside.c_str(), path.c_str()) != 0) return ErrnoError("rename to", path);
  return absl::OkStatus();
}

absl::Status WriteObjectFile(const std::string& folder, const Resource& resource, const json& object) {
  return WriteFileAtomically(PathOf(folder, resource, KeyOf(object)), object.dump(2) + "\n");
}

absl::Status RemoveObjectFile(const std::string& folder, const Resource& resource, const ObjectKey& key) {
  const std::string path = PathOf(folder, resource, key);
  if (std::remove(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove", path);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<json>> ReadStoredObjects(const std::string& folder, const Resource& resource) {
  const std::string kind_folder = absl::StrCat(folder, "/", resource.plural);
  std::error_code error;
  fs::directory_iterator files(kind_folder, error);
  if (error == std::errc::no_such_file_or_directory) {
    return absl::NotFoundError(absl::StrCat("no stored objects at ", kind_folder));
  }
  std::vector<json> objects;
  for (; !error && files != fs::directory_iterator(); files.increment(error)) {
    const std::string path = files->path().string();
    if (!absl::EndsWith(path, ".json")) continue;
    absl::StatusOr<std::string> text = ReadFile(path);
    if (absl::IsNotFound(text.status())) continue;  // removed meanwhile
    if (!text.ok()) return text.status();
    json object = json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (object.is_discarded()) return absl::DataLossError(absl::StrCat(path, ": not a JSON document"));
    if (StringAt(object, {"kind"}) != resource.kind || PathOf(folder, resource, KeyOf(object)) != path) {
      return absl::DataLossError(absl::StrCat(path, ": not a ", resource.kind, " with the file's name"));
    }
    objects.push_back(std::move(object));
  }
  if (error) return absl::UnavailableError(absl::StrCat("cannot list ", kind_folder, ": ", error.message()));
  std::sort(objects.begin(), objects.end(), [](const json& a, const json& b) { return KeyOf(a) < KeyOf(b); });
  return objects;
}

}  // namespace fusion::op
