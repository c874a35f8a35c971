#include "codec/top_k.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "codec/half.h"

namespace fusion::codec {

void TopKSelector::Select(absl::Span<const float> row, absl::Span<uint32_t> indexes) {
  const size_t kept = indexes.size();
  if (kept == row.size()) {
    std::iota(indexes.begin(), indexes.end(), 0);
    return;
  }
  if (kept == 0) return;

  magnitudes_.resize(row.size());
  std::transform(row.begin(), row.end(), magnitudes_.begin(), Magnitude);
  const auto last_kept = magnitudes_.begin() + static_cast<std::ptrdiff_t>(kept) - 1;
  std::nth_element(magnitudes_.begin(), last_kept, magnitudes_.end(), std::greater<>());
  const uint32_t threshold = *last_kept;
  // Those at the threshold fill the places that the larger ones leave.
  size_t at_threshold =
      kept - std::count_if(magnitudes_.begin(), last_kept, [threshold](uint32_t m) { return m > threshold; });

  size_t found = 0;
  for (size_t i = 0; found < kept; ++i) {
    const uint32_t magnitude = Magnitude(row[i]);
    const bool tie = magnitude == threshold && at_threshold > 0;
    // Written always, counted when selected: which ones are is too random to predict a branch.
    indexes[found] = static_cast<uint32_t>(i);
    found += static_cast<size_t>(magnitude > threshold || tie);
    at_threshold -= static_cast<size_t>(tie);
  }
}

}  // namespace fusion::codec
