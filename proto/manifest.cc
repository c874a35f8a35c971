#include "proto/manifest.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <system_error>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "proto/json_mapper.h"
#include "proto/validation.h"

namespace fusion::api {
namespace {

using nlohmann::json;

/// The bytes of a file, at most one more than the limit, so that a file that never ends is cut.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {
      return absl::InvalidArgumentError("is a folder; give its files");
    }
    errno = 0;
    file.open(path, std::ios::binary);
    if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot be read: ", std::strerror(errno)));
  }
  std::istream& input = path == "-" ? std::cin : file;
  std::string text(kMaxYamlBytes + 1, '\0');
  input.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (input.bad()) return absl::InvalidArgumentError(absl::StrCat("cannot be read: ", std::strerror(errno)));
  text.resize(static_cast<size_t>(input.gcount()));
  return text;
}

/// Whether `path` is `inner` or an enclosing field of it.
bool Encloses(absl::string_view path, absl::string_view inner) {
  return absl::StartsWith(inner, path) && (inner.size() == path.size() || path.empty() ||
                                           inner[path.size()] == '.' || inner[path.size()] == '[');
}

/// Builds a manifest document by document.
class Loader {
 public:
  void Add(const ManifestText& text);
  void FileError(const std::string& file, std::string message) {
    manifest_.errors.push_back({file, 0, 0, "", std::move(message)});
  }
  Manifest Finish();

 private:
  void AddDocument(const std::string& file, YamlDocument document);
  template <typename T>
  void AddObject(const std::string& file, YamlDocument document, size_t max_bytes,
                 FieldErrors (*validate)(const T&), std::vector<Declared<T>>* out);

  Manifest manifest_;
};

void Loader::Add(const ManifestText& text) {
  YamlStream stream = ParseYaml(text.text);
  if (stream.documents.empty() && stream.errors.empty()) {
    FileError(text.file, "is empty; it should hold FusionJobs or Compnodes");
  }
  for (YamlDocument& document : stream.documents) AddDocument(text.file, std::move(document));
  for (const YamlError& error : stream.errors) {
    manifest_.errors.push_back({text.file, error.document, error.line, error.field, error.message});
  }
}

void Loader::AddDocument(const std::string& file, YamlDocument document) {
  const auto error = [&](const std::string& field, std::string message) {
    manifest_.errors.push_back({file, document.index, document.LineOf(field), field, std::move(message)});
  };
  if (!document.value.is_object())
    return error("", "is no object; write apiVersion, kind, metadata and spec");
  const auto text_of = [&](const char* key) {
    const auto found = document.value.find(key);
    return found != document.value.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const std::string version = text_of("apiVersion");
  if (version != kApiVersion) {
    return error("apiVersion", version.empty()
                                   ? absl::StrCat("is required; write ", kApiVersion)
                                   : absl::StrCat("\"", version, "\" is not known; write ", kApiVersion));
  }
  const std::string kind = text_of("kind");
  if (kind == "FusionJob") {
    AddObject(file, std::move(document), kMaxJobBytes, &ValidateJob, &manifest_.jobs);
  } else if (kind == "Compnode") {
    AddObject(file, std::move(document), kMaxCompnodeBytes, &ValidateCompnode, &manifest_.compnodes);
  } else if (kind == "FusionCluster") {
    error("kind", "not supported yet: FusionCluster comes with the Kubernetes control plane; leave it out");
  } else {
    error("kind", kind.empty() ? "is required; write FusionJob or Compnode"
                               : absl::StrCat("\"", kind, "\" is not known; write FusionJob or Compnode"));
  }
}

template <typename T>
void Loader::AddObject(const std::string& file, YamlDocument document, size_t max_bytes,
                       FieldErrors (*validate)(const T&), std::vector<Declared<T>>* out) {
  Declared<T> declared{T(), file, std::move(document)};
  const json& value = declared.document.value;
  const auto report = [&](const FieldErrors& errors) {
    for (const FieldError& error : errors) manifest_.errors.push_back(declared.Error(error));
  };
  const size_t bytes = value.dump(-1, ' ', false, json::error_handler_t::replace).size();
  if (bytes > max_bytes) {
    report({{"", absl::StrCat("has ", bytes, " bytes; at most ", max_bytes, " are allowed")}});
  }
  const FieldErrors schema = ReadJson(value, Mode::kStrict, &declared.object);
  report(schema);
  declared.object.clear_status();
  report(CheckSupported(declared.object));
  ApplyDefaults(&declared.object);
  // A field in error is absent now: rules would complain about it, or about what encloses it, as well.
  const auto already = [&](const FieldError& error) {
    return std::any_of(schema.begin(), schema.end(), [&](const FieldError& other) {
      return Encloses(error.field, other.field) || Encloses(other.field, error.field);
    });
  };
  FieldErrors rules = validate(declared.object);
  rules.erase(std::remove_if(rules.begin(), rules.end(), already), rules.end());
  report(rules);
  out->push_back(std::move(declared));
}

Manifest Loader::Finish() {
  ObjectSet set;
  for (const auto& job : manifest_.jobs) set.jobs.push_back(&job.object);
  for (const auto& compnode : manifest_.compnodes) set.compnodes.push_back(&compnode.object);
  for (const SetError& found : ValidateSet(set)) {
    manifest_.errors.push_back(found.kind == SetError::Kind::kJob
                                   ? manifest_.jobs[found.index].Error(found.error)
                                   : manifest_.compnodes[found.index].Error(found.error));
  }
  std::vector<std::string> files;  // in the order given
  for (const ManifestError& error : manifest_.errors) {
    if (std::find(files.begin(), files.end(), error.file) == files.end()) files.push_back(error.file);
  }
  const auto place = [&](const ManifestError& error) {
    return std::make_tuple(std::find(files.begin(), files.end(), error.file), error.document, error.line);
  };
  std::stable_sort(manifest_.errors.begin(), manifest_.errors.end(),
                   [&](const ManifestError& a, const ManifestError& b) { return place(a) < place(b); });
  return std::move(manifest_);
}

}  // namespace

std::string ManifestError::ToString() const {
  std::string out = file;
  if (document > 0) absl::StrAppend(&out, ":", document, ":", line);
  return absl::StrCat(out, ": ", field, field.empty() ? "" : ": ", message);
}

nlohmann::ordered_json ManifestError::ToJson() const {
  return {{"file", file}, {"document", document}, {"line", line}, {"field", field}, {"message", message}};
}

Manifest LoadManifest(const std::vector<std::string>& files) {
  Loader loader;
  for (const std::string& file : files) {
    absl::StatusOr<std::string> text = ReadFile(file);
    if (text.ok()) {
      loader.Add({file, *std::move(text)});
    } else {
      loader.FileError(file, std::string(text.status().message()));
    }
  }
  return loader.Finish();
}

Manifest ParseManifest(const std::vector<ManifestText>& texts) {
  Loader loader;
  for (const ManifestText& text : texts) loader.Add(text);
  return loader.Finish();
}

std::string ResolveUri(const std::string& job_file, const std::string& uri) {
  absl::string_view path = uri;
  if (!absl::ConsumePrefix(&path, "file://") && absl::StrContains(uri, "://")) return uri;
  const std::filesystem::path target{std::string(path)};
  if (target.is_absolute() || job_file == "-") return target.string();
  return (std::filesystem::path(job_file).parent_path() / target).lexically_normal().string();
}

}  // namespace fusion::api
