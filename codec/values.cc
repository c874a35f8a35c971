#include "codec/values.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "codec/half.h"

namespace fusion::codec {
namespace {

constexpr uint16_t kSmallestNormalBFloat16 = 0x0080;

/// Blocks of int8: the step is a power of two, stored as its biased exponent.
struct Int8 {
  static constexpr int kLargestCode = 127;
  static constexpr int kPerByte = 1;
  static constexpr int kStepBytes = 1;
  /// Of the step for which codes reach the largest floats and no further.
  static constexpr int kLargestStep = 248;
};

/// Blocks of int4: seven codes are too few to waste up to half of them on a power of two.
struct Int4 {
  static constexpr int kLargestCode = 7;
  static constexpr int kPerByte = 2;
  static constexpr int kStepBytes = 2;
  /// 2^125 x 146/128, the largest of which seven are a float.
  static constexpr int kLargestStep = 0x7e12;
};

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

/// The step as it is stored; 0 where all codes are.
int StepOf(Int8, uint32_t largest) {
  const int exponent = std::max(1, static_cast<int>(largest >> 23) - 6);
  const int code = Round(std::bit_cast<float>(largest) * InverseScale(exponent));
  if (code == 0) return 0;
  return code > Int8::kLargestCode ? std::min(exponent + 1, Int8::kLargestStep) : exponent;
}

int StepOf(Int4, uint32_t largest) {
  const float exact = std::bit_cast<float>(largest) / Int4::kLargestCode;
  const int rounded_up = static_cast<int>((std::bit_cast<uint32_t>(exact) + 0xffff) >> 16);
  const int step = std::clamp<int>(rounded_up, kSmallestNormalBFloat16, Int4::kLargestStep);
  return Round(std::bit_cast<float>(largest) / BFloat16ToFloat(static_cast<uint16_t>(step))) == 0 ? 0 : step;
}

float StepValue(Int8, int step) { return Scale(step); }
float StepValue(Int4, int step) { return BFloat16ToFloat(static_cast<uint16_t>(step)); }

bool IsStep(Int8, int step) { return step <= Int8::kLargestStep; }
bool IsStep(Int4, int step) {
  return step == 0 || (step >= kSmallestNormalBFloat16 && step <= Int4::kLargestStep);
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
  return Format::kStepBytes + (count + Format::kPerByte - 1) / Format::kPerByte;
}

template <typename Format>
int64_t BlocksBytes(int64_t count) {
  const int64_t rest = count % kBlock;
  return count / kBlock * BlockBytes<Format>(kBlock) + (rest > 0 ? BlockBytes<Format>(rest) : 0);
}

template <typename Format>
void EncodeBlock(const float* values, int count, std::byte* message) {
  const int step = StepOf(Format{}, LargestMagnitude(values, count));
  for (int i = 0; i < Format::kStepBytes; ++i) message[i] = static_cast<std::byte>(step >> (8 * i));
  // Any finite inverse leaves the codes of a zero block the zeros that they are.
  const float inverse = step == 0 ? 1 : 1 / StepValue(Format{}, step);
  StoreCodes(Format{}, values, count, inverse, message + Format::kStepBytes);
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
  int step = 0;
  for (int i = 0; i < Format::kStepBytes; ++i) step |= std::to_integer<int>(message[i]) << (8 * i);
  if (!IsStep(Format{}, step)) {
    return absl::DataLossError(absl::StrCat("a block's step is coded as ", step,
                                            "; no encoder writes that, the largest is ",
                                            Format::kLargestStep));
  }
  const int smallest =
      LoadCodes(Format{}, message + Format::kStepBytes, count, StepValue(Format{}, step), values);
  if (smallest < -Format::kLargestCode) {
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
