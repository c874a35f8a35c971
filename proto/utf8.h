// Whether bytes are text.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace fusion::api {

/// The length of the longest prefix that is valid UTF-8 without control characters other than tab, line feed
/// and carriage return; text.size() when all of it is.
size_t ValidTextPrefix(absl::string_view text);

}  // namespace fusion::api
