// Gzip files, for data that comes compressed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fusion::worker {

/// Whether the bytes begin as a gzip file does.
bool IsGzip(absl::string_view bytes);

/// The contents of a gzip file; several members are joined. Any bytes are safe to pass. INVALID_ARGUMENT:
/// damaged, cut short, or followed by something else. RESOURCE_EXHAUSTED: more than `limit` bytes.
absl::StatusOr<std::string> Gunzip(absl::string_view bytes, int64_t limit);

}  // namespace fusion::worker
