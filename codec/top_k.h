// Which values of a row TopK keeps.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace fusion::codec {

/// Selects the values of largest magnitude, row after row. Magnitudes order by their bits: NaN above infinity
/// above all finite numbers; among equal ones the lower index goes first. Keeps its scratch memory from row
/// to row.
class TopKSelector {
 public:
  /// Writes the `indexes.size()` <= row.size() < 2^32 selected indexes, ascending.
  void Select(absl::Span<const float> row, absl::Span<uint32_t> indexes);

 private:
  std::vector<uint32_t> magnitudes_;
};

}  // namespace fusion::codec
