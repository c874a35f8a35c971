#include "codec/values.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "codec/half.h"

namespace fusion::codec {
namespace {

template <int kBits>
struct Integer {
  static constexpr int kLargestCode = (1 << (kBits - 1)) - 1;
  /// Biased exponent of the step for which codes reach the largest floats and no further.
  static constexpr int kLargestExponent = 254 - (kBits - 2);
  static constexpr int kPerByte = 8 / kBits;
};
using Int8 = Integer<8>;
using Int4 = Integer<4>;

constexpr int kLargestHalfExponent = 254 - 15;

/// 2^(exponent-127); zero for 0.
float Scale(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent) << 23); }

/// 1 / Scale, for exponents from 1 to 253.
float InverseScale(int exponent) { return Scale(254 - exponent); }

/// |x| < 2^22. Beside 1.5 x 2^23 a float's last bit is worth 1: the sum rounds to the nearest integer, ties
/// to even.
int32_t Round(float x) {
  constexpr float kShift = 0x1.8p23F;
  return std::bit_cast<int32_t>(x + kShift) - std::bit_cast<int32_t>(kShift);
}

/// Of the saturated values.
uint32_t LargestMagnitude(const float* values, int64_t count) {
  int32_t largest = 0;  // signed: magnitudes fit, and vector units compare signed integers
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<int32_t>(Magnitude(values[i])));
  }
  return std::min(static_cast<uint32_t>(largest), kLargestFloatBits);
}

template <typename Format>
int StepExponent(uint32_t largest) {
  constexpr int kMagnitudeBitsOfCode = std::bit_width(static_cast<unsigned>(Format::kLargestCode));
  const int exponent = std::max(1, static_cast<int>(largest >> 23) - (kMagnitudeBitsOfCode - 1));
  const int code = Round(std::bit_cast<float>(largest) * InverseScale(exponent));
  if (code == 0) return 0;
  return code > Format::kLargestCode ? std::min(exponent + 1, Format::kLargestExponent) : exponent;
}

template <typename Format>
int32_t Code(float value, float inverse) {
  return std::clamp(Round(Saturate(value) * inverse), -Format::kLargestCode, Format::kLargestCode);
}

void StoreCodes(Int8, const float* values, int count, float inverse, std::byte* out) {
  for (int i = 0; i < count; ++i) out[i] = static_cast<std::byte>(Code<Int8>(values[i], inverse));
}

void StoreCodes(Int4, const float* values, int count, float inverse, std::byte* out) {
  for (int i = 0; i + 1 < count; i += 2) {
    const int low = Code<Int4>(values[i], inverse) & 15;
    const int high = Code<Int4>(values[i + 1], inverse) & 15;
    out[i / 2] = static_cast<std::byte>(low | high << 4);
  }
  if (count % 2 != 0) out[count / 2] = static_cast<std::byte>(Code<Int4>(values[count - 1], inverse) & 15);
}

/// Returns the smallest code seen.
int LoadCodes(Int8, const std::byte* in, int count, float step, float* values) {
  int smallest = 0;
  for (int i = 0; i < count; ++i) {
    const int code = (std::to_integer<int>(in[i]) ^ 0x80) - 0x80;
    smallest = std::min(smallest, code);
    values[i] = static_cast<float>(code) * step;
  }
  return smallest;
}

int LoadCodes(Int4, const std::byte* in, int count, float step, float* values) {
  const auto code = [](int bits) { return (bits ^ 8) - 8; };
  int smallest = 0;
  for (int i = 0; i + 1 < count; i += 2) {
    const int pair = std::to_integer<int>(in[i / 2]);
    const int low = code(pair & 15);
    const int high = code(pair >> 4);
    smallest = std::min({smallest, low, high});
    values[i] = static_cast<float>(low) * step;
    values[i + 1] = static_cast<float>(high) * step;
  }
  if (count % 2 != 0) {
    const int last = code(std::to_integer<int>(in[count / 2]) & 15);
    smallest = std::min(smallest, last);
    values[count - 1] = static_cast<float>(last) * step;
  }
  return smallest;
}

template <typename Format>
int64_t BlockBytes(int64_t count) {
  return 1 + (count + Format::kPerByte - 1) / Format::kPerByte;
}

template <typename Format>
int64_t BlocksBytes(int64_t count) {
  const int64_t rest = count % kBlock;
  return count / kBlock * BlockBytes<Format>(kBlock) + (rest > 0 ? BlockBytes<Format>(rest) : 0);
}

template <typename Format>
void EncodeBlock(const float* values, int count, std::byte* message) {
  const int exponent = StepExponent<Format>(LargestMagnitude(values, count));
  message[0] = static_cast<std::byte>(exponent);
  // Of a zero block the inverse is never infinite: 2^126 leaves each code the zero that it is.
  StoreCodes(Format{}, values, count, InverseScale(std::max(exponent, 1)), message + 1);
}

template <typename Format>
void EncodeBlocks(absl::Span<const float> run, std::byte* message) {
  const float* values = run.data();
  size_t left = run.size();
  for (; left >= kBlock; left -= kBlock, values += kBlock, message += BlockBytes<Format>(kBlock)) {
    EncodeBlock<Format>(values, kBlock, message);
  }
  if (left > 0) EncodeBlock<Format>(values, static_cast<int>(left), message);
}

template <typename Format>
absl::Status DecodeBlock(const std::byte* message, int count, float* values) {
  const int exponent = std::to_integer<int>(message[0]);
  if (exponent > Format::kLargestExponent) {
    return absl::DataLossError(
        absl::StrCat("exponent ", exponent, " of a block is above ", Format::kLargestExponent));
  }
  if (LoadCodes(Format{}, message + 1, count, Scale(exponent), values) < -Format::kLargestCode) {
    return absl::DataLossError(absl::StrCat("code below -", Format::kLargestCode));
  }
  return absl::OkStatus();
}

template <typename Format>
absl::Status DecodeBlocks(const std::byte* message, absl::Span<float> run) {
  float* values = run.data();
  size_t left = run.size();
  for (; left >= kBlock; left -= kBlock, values += kBlock, message += BlockBytes<Format>(kBlock)) {
    if (absl::Status status = DecodeBlock<Format>(message, kBlock, values); !status.ok()) return status;
  }
  return left > 0 ? DecodeBlock<Format>(message, static_cast<int>(left), values) : absl::OkStatus();
}

void Store16(std::byte* out, int64_t index, uint16_t bits) { std::memcpy(out + 2 * index, &bits, 2); }

uint16_t Load16(const std::byte* in, int64_t index) {
  uint16_t bits;
  std::memcpy(&bits, in + 2 * index, 2);
  return bits;
}

void EncodeFloat16(absl::Span<const float> run, std::byte* message) {
  const auto count = static_cast<int64_t>(run.size());
  const uint32_t largest = LargestMagnitude(run.data(), count);
  const int exponent = largest == 0 ? 0 : std::max(1, static_cast<int>(largest >> 23) - 15);
  message[0] = static_cast<std::byte>(exponent);
  const float inverse = InverseScale(std::max(exponent, 1));
  for (int64_t i = 0; i < count; ++i) Store16(message + 1, i, FloatToFloat16(Saturate(run[i]) * inverse));
}

absl::Status DecodeFloat16(const std::byte* message, absl::Span<float> run) {
  const int exponent = std::to_integer<int>(message[0]);
  if (exponent > kLargestHalfExponent) {
    return absl::DataLossError(
        absl::StrCat("exponent ", exponent, " of a row of halves is above ", kLargestHalfExponent));
  }
  const float scale = Scale(exponent);
  bool finite = true;
  for (size_t i = 0; i < run.size(); ++i) {
    const uint16_t bits = Load16(message + 1, static_cast<int64_t>(i));
    finite &= IsFiniteFloat16(bits);
    run[i] = Float16ToFloat(bits) * scale;
  }
  return finite ? absl::OkStatus() : absl::DataLossError("a half is not finite");
}

absl::Status DecodeBFloat16(const std::byte* message, absl::Span<float> run) {
  bool finite = true;
  for (size_t i = 0; i < run.size(); ++i) {
    const uint16_t bits = Load16(message, static_cast<int64_t>(i));
    finite &= IsFiniteBFloat16(bits);
    run[i] = BFloat16ToFloat(bits);
  }
  return finite ? absl::OkStatus() : absl::DataLossError("a bfloat16 is not finite");
}

}  // namespace

int64_t RunBytes(Values format, int64_t count) {
  switch (format) {
    case Values::kFloat32:
      return 4 * count;
    case Values::kFloat16:
      return count > 0 ? 1 + 2 * count : 0;
    case Values::kBFloat16:
      return 2 * count;
    case Values::kInt8:
      return BlocksBytes<Int8>(count);
    case Values::kInt4:
      return BlocksBytes<Int4>(count);
  }
  return 0;
}

void EncodeRun(Values format, absl::Span<const float> run, std::byte* message) {
  if (run.empty()) return;
  switch (format) {
    case Values::kFloat32:
      std::memcpy(message, run.data(), 4 * run.size());
      return;
    case Values::kFloat16:
      EncodeFloat16(run, message);
      return;
    case Values::kBFloat16:
      for (size_t i = 0; i < run.size(); ++i) {
        Store16(message, static_cast<int64_t>(i), FloatToBFloat16(run[i]));
      }
      return;
    case Values::kInt8:
      EncodeBlocks<Int8>(run, message);
      return;
    case Values::kInt4:
      EncodeBlocks<Int4>(run, message);
      return;
  }
}

absl::Status DecodeRun(Values format, const std::byte* message, absl::Span<float> run) {
  if (run.empty()) return absl::OkStatus();
  switch (format) {
    case Values::kFloat32:
      std::memcpy(run.data(), message, 4 * run.size());
      return absl::OkStatus();
    case Values::kFloat16:
      return DecodeFloat16(message, run);
    case Values::kBFloat16:
      return DecodeBFloat16(message, run);
    case Values::kInt8:
      return DecodeBlocks<Int8>(message, run);
    case Values::kInt4:
      return DecodeBlocks<Int4>(message, run);
  }
  return absl::InvalidArgumentError("unknown format of values");
}

}  // namespace fusion::codec
