// All files that `make manifests` writes.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fusion::api {

/// Path from the repository's root -> text, from the descriptor set that `protoc --include_imports
/// --include_source_info` makes of proto/fusion/v1alpha1/api.proto.
absl::StatusOr<std::map<std::string, std::string>> GenerateManifests(absl::string_view descriptor_set);

}  // namespace fusion::api
