// Objects as files: FOLDER/PLURAL/NAMESPACE.NAME.json (FOLDER/PLURAL/NAME.json for cluster-scoped kinds). A
// file is written aside and renamed, so that another process reads whole objects at any time. This survives
// the end of the process at any point, not a loss of power: objects of an embedded run are worth no fsync.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "operator/client.h"

namespace fusion::op {

/// All stored objects of a kind, by key, while another process may be writing them. Fields that this version
/// does not know are kept. NOT_FOUND: no such folder. DATA_LOSS names a file that is not an object of this
/// kind.
absl::StatusOr<std::vector<nlohmann::json>> ReadStoredObjects(const std::string& folder,
                                                              const Resource& resource);

absl::Status WriteObjectFile(const std::string& folder, const Resource& resource,
                             const nlohmann::json& object);
absl::Status RemoveObjectFile(const std::string& folder, const Resource& resource, const ObjectKey& key);

/// Writes `text` to a file beside `path`, then renames it.
absl::Status WriteFileAtomically(const std::string& path, const std::string& text);
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace fusion::op
