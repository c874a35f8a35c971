// Conversions between float and its 16-bit relatives, by bits and without branches, so that compilers
// vectorise them and every machine gives the same result. Round to nearest, ties to even. Nothing becomes
// infinite: what lies above the largest finite number, infinity and NaN included, saturates to it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace fusion::codec {

static_assert(std::endian::native == std::endian::little,
              "messages are little-endian, and copied as they lie");

inline constexpr uint32_t kMagnitudeBits = 0x7fffffff;
inline constexpr uint32_t kLargestFloatBits = 0x7f7fffff;

/// Bits of |x|. They order as the magnitudes do, with infinity and then NaN above all.
inline uint32_t Magnitude(float x) { return std::bit_cast<uint32_t>(x) & kMagnitudeBits; }

/// The largest float of the same sign for infinity and NaN, else x.
inline float Saturate(float x) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) & ~kMagnitudeBits;
  return std::bit_cast<float>(sign | std::min(Magnitude(x), kLargestFloatBits));
}

inline uint16_t FloatToBFloat16(float x) {
  const uint32_t sign = (std::bit_cast<uint32_t>(x) & ~kMagnitudeBits) >> 16;
  const uint32_t magnitude = std::min(Magnitude(x), kLargestFloatBits);
  const uint32_t rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(sign | std::min(rounded, kLargestFloatBits >> 16));
}

inline float BFloat16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

/// Biased exponent all ones: infinity or NaN.
inline bool IsFiniteBFloat16(uint16_t bits) { return (bits & 0x7f80) != 0x7f80; }
inline bool IsFiniteFloat16(uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }

inline uint16_t FloatToFloat16(float x) {
  constexpr uint32_t kSmallestNormal = uint32_t{127 - 14} << 23;
  constexpr uint32_t kLargest = 0x7bff;
  constexpr uint32_t kBiasDifference = uint32_t{127 - 15} << 10;
  const uint32_t sign = (std::bit_cast<uint32_t>(x) & ~kMagnitudeBits) >> 16;
  const uint32_t magnitude = std::min(Magnitude(x), kLargestFloatBits);
  const uint32_t normal = ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - kBiasDifference;
  // Beside 0.5 a float's last bit is worth 2^-24, the unit of a subnormal half: the sum rounds as we need it.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(std::min(magnitude, kSmallestNormal)) + 0.5F) -
      std::bit_cast<uint32_t>(0.5F);
  return static_cast<uint16_t>(sign | (magnitude < kSmallestNormal ? subnormal : std::min(normal, kLargest)));
}

/// `bits` is finite.
inline float Float16ToFloat(uint16_t bits) {
  constexpr uint32_t kBiasDifference = uint32_t{127 - 15} << 23;
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t magnitude = uint32_t{bits & 0x7fffU} << 13;
  const uint32_t normal = magnitude + kBiasDifference;
  const float subnormal = static_cast<float>(bits & 0x3ff) * 0x1p-24F;
  return std::bit_cast<float>(sign | ((bits & 0x7c00) == 0 ? std::bit_cast<uint32_t>(subnormal) : normal));
}

}  // namespace fusion::codec
