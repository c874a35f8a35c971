// Files that are whole or not there.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fusion::worker {

/// A file under construction: removed again by the destructor unless Finish succeeded. Errors carry the path
/// and the system's reason (RESOURCE_EXHAUSTED for a full disk, PERMISSION_DENIED or FAILED_PRECONDITION for
/// a read-only one). One thread.
class DurableFile {
 public:
  /// Replaces what is at `path`.
  static absl::StatusOr<DurableFile> Create(const std::string& path);

  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&&) = delete;
  ~DurableFile();

  absl::Status Write(absl::string_view bytes);
  /// Syncs to disk and closes. Nothing may follow.
  absl::Status Finish();

 private:
  DurableFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;  ///< -1: finished or moved from
};

/// Create, Write, Finish.
absl::Status WriteDurably(const std::string& path, absl::string_view contents);

/// Makes the entries of a folder (new names, renames) survive a crash.
absl::Status SyncFolder(const std::string& path);

}  // namespace fusion::worker
