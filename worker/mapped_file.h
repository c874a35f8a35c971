// A file seen as bytes, without reading it first.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fusion::worker {

/// Maps a regular file read-only. Copies share the mapping; it goes with the last one. Thread-safe. The file
/// must not be shortened while it is mapped.
class MappedFile {
 public:
  /// NOT_FOUND, PERMISSION_DENIED or INVALID_ARGUMENT (a folder, a device), with the path and the system's
  /// reason.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  absl::Span<const std::byte> bytes() const { return {mapping_.get(), size_}; }

 private:
  std::string path_;
  std::shared_ptr<const std::byte> mapping_;
  size_t size_ = 0;
};

/// The path that a `uri` of a job means: absolute, file://PATH, or relative to `base_directory`.
/// UNIMPLEMENTED for other schemes, with `field` in the message.
absl::StatusOr<std::string> ResolvePath(const std::string& field, const std::string& uri,
                                        const std::string& base_directory);

}  // namespace fusion::worker
