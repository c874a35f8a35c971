// Elias-Fano code of ascending indexes: of each index its `low_bits` lowest bits as they are, and the rest as
// gaps in unary. Costs about 2 + log2(columns / kept) bits an index, within half a bit of the entropy of a
// random choice, and its size depends on (columns, kept) only.
//
//   bits, the first in the lowest bit of the first byte:
//     low bits of index 0, 1, …, kept-1, low_bits each
//     high part: kept + ((columns-1) >> low_bits) bits, of which bit (index_i >> low_bits) + i is set for
//     each i zeros up to the byte border
//
// `low_bits` is what makes the whole shortest, the least of such. Where all columns are kept the code is
// empty.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace fusion::codec {

class IndexCode {
 public:
  /// 0 <= kept <= columns < 2^32, columns >= 1.
  IndexCode(int64_t columns, int64_t kept);

  int64_t bytes() const { return bytes_; }

  /// `indexes`: `kept` of them, strictly ascending, below `columns`.
  void Encode(absl::Span<const uint32_t> indexes, std::byte* message) const;

  /// DATA_LOSS where the bytes are not the code of `kept` ascending indexes below `columns`.
  absl::Status Decode(const std::byte* message, absl::Span<uint32_t> indexes) const;

 private:
  int64_t columns_;
  int64_t kept_;
  int low_bits_ = 0;
  int64_t high_begin_ = 0;  ///< bit where the high part begins
  int64_t high_bits_ = 0;   ///< its length
  int64_t bytes_ = 0;
};

}  // namespace fusion::codec
