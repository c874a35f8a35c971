// Pairs of texts that belong together: the two halves of a record.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace fusion::worker {

struct TextPair {
  absl::string_view first;
  absl::string_view second;
};

/// The records of `text` lie between lines that are %, as in a file of fortunes. Each is cut at the space
/// that is nearest to its middle, the earlier of two, or in the middle where it has none; spaces around both
/// halves are dropped. A record of fewer than two characters is none. Any bytes are safe to pass.
std::vector<TextPair> SplitPairs(absl::string_view text);

}  // namespace fusion::worker
