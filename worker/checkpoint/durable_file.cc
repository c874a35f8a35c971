#include "worker/checkpoint/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

absl::Status SystemError(absl::string_view doing, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", doing, " ", path));
}

}  // namespace

absl::StatusOr<DurableFile> DurableFile::Create(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return SystemError("create", path);
  }
  return DurableFile(path, descriptor);
}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

DurableFile::~DurableFile() {
  if (descriptor_ >= 0) {
    close(descriptor_);
    unlink(path_.c_str());
  }
}

absl::Status DurableFile::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      return SystemError("write", path_);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status DurableFile::Finish() {
  if (fsync(descriptor_) != 0) {
    return SystemError("sync", path_);
  }
  // Some file systems report a full disk only here.
  if (close(std::exchange(descriptor_, -1)) != 0) {
    const absl::Status status = SystemError("close", path_);
    unlink(path_.c_str());
    return status;
  }
  return absl::OkStatus();
}

absl::Status WriteDurably(const std::string& path, absl::string_view contents) {
  auto file = DurableFile::Create(path);
  if (!file.ok()) {
    return file.status();
  }
  absl::Status status = file->Write(contents);
  if (status.ok()) {
    status = file->Finish();
  }
  return status;
}

absl::Status SyncFolder(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return SystemError("open", path);
  }
  const absl::Status status = fsync(descriptor) == 0 ? absl::OkStatus() : SystemError("sync", path);
  close(descriptor);
  return status;
}

}  // namespace fusion::worker
