#include "codec/index_code.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace fusion::codec {
namespace {

constexpr int kWordBits = 64;

/// Up to 64 bits of `message` from bit `begin`, zeros beyond its end.
uint64_t LoadBits(const std::byte* message, int64_t bytes, int64_t begin) {
  const int64_t first = begin / 8;
  const int shift = static_cast<int>(begin % 8);
  uint64_t word = 0;
  std::memcpy(&word, message + first, static_cast<size_t>(std::min<int64_t>(8, bytes - first)));
  word >>= shift;
  if (shift > 0 && first + 8 < bytes) {
    word |= std::to_integer<uint64_t>(message[first + 8]) << (kWordBits - shift);
  }
  return word;
}

}  // namespace

IndexCode::IndexCode(int64_t columns, int64_t kept) : columns_(columns), kept_(kept) {
  if (kept == columns || kept == 0) return;
  const auto high_bits = [&](int low) { return kept + ((columns - 1) >> low); };
  const auto bits = [&](int low) { return kept * low + high_bits(low); };
  while (bits(low_bits_ + 1) < bits(low_bits_)) ++low_bits_;
  high_begin_ = kept * low_bits_;
  high_bits_ = high_bits(low_bits_);
  bytes_ = (high_begin_ + high_bits_ + 7) / 8;
}

void IndexCode::Encode(absl::Span<const uint32_t> indexes, std::byte* message) const {
  if (bytes_ == 0) return;
  std::fill_n(message, bytes_, std::byte{0});
  uint64_t waiting = 0;  // low bits not yet written, from bit 0 on
  int waiting_bits = 0;
  std::byte* out = message;
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1;
  for (int64_t i = 0; i < kept_; ++i) {
    waiting |= (indexes[i] & low_mask) << waiting_bits;
    waiting_bits += low_bits_;
    for (; waiting_bits >= 8; waiting_bits -= 8, waiting >>= 8) *out++ = static_cast<std::byte>(waiting);
    const int64_t bit = high_begin_ + (indexes[i] >> low_bits_) + i;
    message[bit / 8] |= std::byte{1} << (bit % 8);
  }
  if (waiting_bits > 0) *out |= static_cast<std::byte>(waiting);  // the byte may hold high bits already
}

absl::Status IndexCode::Decode(const std::byte* message, absl::Span<uint32_t> indexes) const {
  if (bytes_ == 0) {
    std::iota(indexes.begin(), indexes.end(), 0);
    return absl::OkStatus();
  }
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1;
  const int64_t end = high_begin_ + high_bits_;
  int64_t found = 0;
  int64_t previous = -1;
  for (int64_t begin = high_begin_; begin < bytes_ * 8; begin += kWordBits) {
    for (uint64_t word = LoadBits(message, bytes_, begin); word != 0; word &= word - 1) {
      const int64_t bit = begin + std::countr_zero(word);
      if (bit >= end) return absl::DataLossError("bits are set behind the indexes of a row");
      if (found == kept_) return absl::DataLossError(absl::StrCat("a row has more than ", kept_, " indexes"));
      const uint64_t low = LoadBits(message, bytes_, found * low_bits_) & low_mask;
      const int64_t index = (bit - high_begin_ - found) << low_bits_ | static_cast<int64_t>(low);
      if (index <= previous || index >= columns_) {
        return absl::DataLossError(
            absl::StrCat("index ", index, " of a row of ", columns_, " columns follows ", previous));
      }
      indexes[found++] = static_cast<uint32_t>(index);
      previous = index;
    }
  }
  if (found < kept_) {
    return absl::DataLossError(absl::StrCat("a row has ", found, " indexes instead of ", kept_));
  }
  return absl::OkStatus();
}

}  // namespace fusion::codec
