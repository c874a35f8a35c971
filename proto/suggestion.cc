#include "proto/suggestion.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"

namespace fusion::api {
namespace {

constexpr size_t kMaxName = 64;  // longer names are no misspelling of ours

/// Lower case, without separators: learning_rate and LearningRate are both near learningRate.
std::string Normalized(absl::string_view name) {
  std::string out;
  for (char c : name) {
    if (c != '_' && c != '-') out += absl::ascii_tolower(static_cast<unsigned char>(c));
  }
  return out;
}

/// Levenshtein distance.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string ClosestName(absl::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() > kMaxName) return "";
  const std::string wanted = Normalized(name);
  std::string closest;
  size_t best = wanted.size() / 3 + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(wanted, Normalized(candidate));
    if (distance < best) {
      best = distance;
      closest = candidate;
    }
  }
  return closest;
}

}  // namespace fusion::api
