// The files that `fusionctl -f` takes: FusionJobs and Compnodes, checked and with their positions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "fusion/v1alpha1/api.pb.h"
#include "nlohmann/json.hpp"
#include "proto/field_error.h"
#include "proto/yaml.h"

namespace fusion::api {

inline constexpr absl::string_view kApiVersion = "fusion.dev/v1alpha1";
/// Largest objects, as compact JSON.
inline constexpr size_t kMaxJobBytes = 64 << 10;
inline constexpr size_t kMaxCompnodeBytes = 16 << 10;

/// Something wrong in a file.
struct ManifestError {
  std::string file;
  int document = 0;  ///< from 1; 0: the file as a whole
  int line = 0;      ///< from 1; 0 with document 0
  std::string field;
  std::string message;

  /// FILE:DOC:LINE: field: message, without the parts that are not known.
  std::string ToString() const;
  /// {file, document, line, field, message}
  nlohmann::ordered_json ToJson() const;
};

/// An object, and where it stands.
template <typename T>
struct Declared {
  T object;
  std::string file;  ///< as given
  YamlDocument document;

  ManifestError Error(const FieldError& error) const {
    return {file, document.index, document.LineOf(error.field), error.field, error.message};
  }
};

struct Manifest {
  std::vector<Declared<v1alpha1::FusionJob>> jobs;  ///< in file order, with defaults
  std::vector<Declared<v1alpha1::Compnode>> compnodes;
  std::vector<ManifestError> errors;  ///< by file, document and line
};

/// A text and the name that errors give it.
struct ManifestText {
  std::string file;
  std::string text;
};

/// Reads and checks all files ("-" is standard input): YAML, schema, what is not supported yet, rules of each
/// object and of all together. Errors are collected, not only the first; objects in error are among the
/// results as far as they were read. Never throws, writes nothing.
Manifest LoadManifest(const std::vector<std::string>& files);

/// The same from texts.
Manifest ParseManifest(const std::vector<ManifestText>& texts);

/// The path that a uri of a job means: absolute as it is, else relative to the folder of the job's file. A
/// uri with another scheme than file:// is returned as it is.
std::string ResolveUri(const std::string& job_file, const std::string& uri);

}  // namespace fusion::api
