#include "worker/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace fusion::worker {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  const absl::Cleanup close_it = [descriptor] { close(descriptor); };
  struct stat info {};
  if (fstat(descriptor, &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ == 0) {
    return file;
  }
  void* memory = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot map ", path));
  }
  file.mapping_ = std::shared_ptr<const std::byte>(
      static_cast<const std::byte*>(memory),
      [size = file.size_](const std::byte* p) { munmap(const_cast<std::byte*>(p), size); });
  return file;
}

absl::StatusOr<std::string> ResolvePath(const std::string& field, const std::string& uri,
                                        const std::string& base_directory) {
  if (absl::StartsWith(uri, "file://")) {
    return uri.substr(7);
  }
  if (absl::StrContains(uri, "://")) {
    return absl::UnimplementedError(
        absl::StrCat(field, ": ", uri, " has a scheme that is not supported yet; give a path"));
  }
  const std::filesystem::path path(uri);
  return path.is_absolute() ? uri : (std::filesystem::path(base_directory) / path).string();
}

}  // namespace fusion::worker
