#include "codec/values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "codec/half.h"

namespace fusion::codec {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

std::vector<std::byte> Encode(Values format, const std::vector<float>& run) {
  std::vector<std::byte> message(RunBytes(format, static_cast<int64_t>(run.size())));
  EncodeRun(format, run, message.data());
  return message;
}

std::vector<float> RoundTrip(Values format, const std::vector<float>& run) {
  std::vector<float> decoded(run.size(), kNaN);
  const absl::Status status = DecodeRun(format, Encode(format, run).data(), absl::MakeSpan(decoded));
  EXPECT_TRUE(status.ok()) << status;
  return decoded;
}

TEST(HalfTest, EveryFiniteHalfSurvivesAsFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (IsFiniteFloat16(half)) {
      EXPECT_EQ(FloatToFloat16(Float16ToFloat(half)), half);
    }
    if (IsFiniteBFloat16(half)) {
      EXPECT_EQ(FloatToBFloat16(BFloat16ToFloat(half)), half);
    }
  }
}

TEST(HalfTest, ValuesOfKnownHalves) {
  EXPECT_EQ(Float16ToFloat(0x3c00), 1.0F);
  EXPECT_EQ(Float16ToFloat(0xc000), -2.0F);
  EXPECT_EQ(Float16ToFloat(0x7bff), 65504.0F);
  EXPECT_EQ(Float16ToFloat(0x0400), 0x1p-14F);
  EXPECT_EQ(Float16ToFloat(0x0001), 0x1p-24F);
  EXPECT_TRUE(std::signbit(Float16ToFloat(0x8000)));
}

TEST(HalfTest, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(FloatToFloat16(1 + 0x1p-11F), 0x3c00);             // half-way, down to even
  EXPECT_EQ(FloatToFloat16(1 + 0x3p-11F), 0x3c02);             // half-way, up to even
  EXPECT_EQ(FloatToFloat16(1 + 0x1.002p-11F), 0x3c01);         // just above half-way
  EXPECT_EQ(FloatToFloat16(0x1p-25F), 0x0000);                 // half of the smallest subnormal
  EXPECT_EQ(FloatToFloat16(0x1.8p-24F), 0x0002);               // half-way between subnormals, up to even
  EXPECT_EQ(FloatToFloat16(0x1.ffcp-15F + 0x1p-25F), 0x0400);  // carries into the smallest normal
  EXPECT_EQ(FloatToBFloat16(1 + 0x1p-8F), 0x3f80);
  EXPECT_EQ(FloatToBFloat16(1 + 0x3p-8F), 0x3f82);
  EXPECT_EQ(FloatToBFloat16(1 + 0x1.002p-8F), 0x3f81);
}

TEST(HalfTest, NothingBecomesInfinite) {
  for (const float x : {65520.0F, kLargest, kInfinity, kNaN}) {
    EXPECT_EQ(FloatToFloat16(x), 0x7bff);
    EXPECT_EQ(FloatToFloat16(-std::abs(x)), 0xfbff);
  }
  for (const float x : {kLargest, kInfinity, kNaN}) EXPECT_EQ(FloatToBFloat16(x), 0x7f7f);
  EXPECT_EQ(FloatToFloat16(65519.996F), 0x7bff);
}

TEST(RunTest, ExactBytes) {
  EXPECT_EQ(RunBytes(Values::kFloat32, 33), 132);
  EXPECT_EQ(RunBytes(Values::kBFloat16, 33), 66);
  EXPECT_EQ(RunBytes(Values::kFloat16, 33), 67);
  EXPECT_EQ(RunBytes(Values::kInt8, 32), 33);
  EXPECT_EQ(RunBytes(Values::kInt8, 33), 35);
  EXPECT_EQ(RunBytes(Values::kInt4, 32), 18);
  EXPECT_EQ(RunBytes(Values::kInt4, 33), 21);
  EXPECT_EQ(RunBytes(Values::kInt4, 35), 22);
  for (const Values format :
       {Values::kFloat32, Values::kBFloat16, Values::kFloat16, Values::kInt8, Values::kInt4}) {
    EXPECT_EQ(RunBytes(format, 0), 0);
  }
}

TEST(RunTest, BytesOfKnownBlocks) {
  // Largest magnitude 1.0 in [2^0, 2^1): int8 steps of 2^-6, ties to even; int4 steps of 1/7, rounded up.
  EXPECT_EQ(Encode(Values::kInt8, {1, -1, 0.5F, 0x1p-7F, 0x3p-7F}),
            (std::vector<std::byte>{std::byte{121}, std::byte{64}, std::byte{0xc0}, std::byte{32},
                                    std::byte{0}, std::byte{2}}));
  EXPECT_EQ(Encode(Values::kInt4, {1, -1, 0.125F}),
            (std::vector<std::byte>{std::byte{0x13}, std::byte{0x3e}, std::byte{0x97}, std::byte{1}}));
  // 1.99 would round to code 128 with a step of 2^-6, so the step doubles.
  EXPECT_EQ(Encode(Values::kInt8, {1.996F}), (std::vector<std::byte>{std::byte{122}, std::byte{64}}));
}

TEST(RunTest, ZeroBlocksAreZeros) {
  for (const Values format :
       {Values::kFloat32, Values::kBFloat16, Values::kFloat16, Values::kInt8, Values::kInt4}) {
    const std::vector<float> zeros(70);
    EXPECT_EQ(RoundTrip(format, zeros), zeros);
    for (const std::byte byte : Encode(format, zeros)) EXPECT_EQ(byte, std::byte{0});
  }
}

TEST(RunTest, TheLargestOfABlockOfInt4IsAlwaysItsLargestCode) {
  for (float largest = 1; largest < 2; largest += 0x1p-6F) {
    const std::vector<float> decoded = RoundTrip(Values::kInt4, {largest, -largest, 0});
    EXPECT_NEAR(decoded[0] / largest, 1, 0x1p-7) << largest;
    EXPECT_EQ(decoded[1], -decoded[0]);
  }
}

TEST(RunTest, BlocksScaleApart) {
  std::vector<float> run(64, 1e-20F);
  std::fill_n(run.begin(), kBlock, 1e20F);
  for (const Values format : {Values::kInt8, Values::kInt4}) {
    const std::vector<float> decoded = RoundTrip(format, run);
    EXPECT_NEAR(decoded[0] / 1e20F, 1, 0.13);
    EXPECT_NEAR(decoded[63] / 1e-20F, 1, 0.13);
  }
}

TEST(RunTest, SmallGradientsKeepTheirBitsInHalves) {
  // All of these are below the smallest subnormal half.
  const std::vector<float> run = {1e-9F, -3e-10F, 2e-12F};
  const std::vector<float> decoded = RoundTrip(Values::kFloat16, run);
  for (size_t i = 0; i < run.size(); ++i) EXPECT_NEAR(decoded[i] / run[i], 1, 0x1p-11);
}

TEST(RunTest, SubnormalFloats) {
  EXPECT_EQ(RoundTrip(Values::kFloat32, {kSmallest}), std::vector<float>{kSmallest});
  EXPECT_EQ(RoundTrip(Values::kFloat16, {kSmallest, -3 * kSmallest}),
            (std::vector<float>{kSmallest, -3 * kSmallest}));
  // The smallest step is 2^-126: what rounds to no step at all is zero, exponent included.
  EXPECT_EQ(Encode(Values::kInt8, {0x1p-127F}), std::vector<std::byte>(2));
  EXPECT_EQ(RoundTrip(Values::kInt4, {0x1.8p-127F}), std::vector<float>{0x1p-126F});
}

TEST(RunTest, NonFiniteValuesSurviveInFloat32AndSaturateElsewhere) {
  const std::vector<float> run = {kInfinity, -kInfinity, kNaN, 1};
  const std::vector<float> same = RoundTrip(Values::kFloat32, run);
  EXPECT_EQ(same[0], kInfinity);
  EXPECT_EQ(same[1], -kInfinity);
  EXPECT_TRUE(std::isnan(same[2]));
  for (const Values format : {Values::kBFloat16, Values::kFloat16, Values::kInt8, Values::kInt4}) {
    const std::vector<float> decoded = RoundTrip(format, run);
    EXPECT_EQ(decoded, RoundTrip(format, {kLargest, -kLargest, kLargest, 1}));
    EXPECT_TRUE(std::isfinite(decoded[0]));
    EXPECT_GE(decoded[0], 0.87F * kLargest);
    EXPECT_LE(decoded[1], -0.87F * kLargest);
  }
}

TEST(RunTest, RefusesWhatNoEncoderWrites) {
  std::vector<float> run(2);
  const auto code = [&](Values format, std::vector<std::byte> message) {
    return DecodeRun(format, message.data(), absl::MakeSpan(run)).code();
  };
  EXPECT_EQ(code(Values::kInt8, {std::byte{249}, std::byte{1}, std::byte{1}}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(Values::kInt8, {std::byte{100}, std::byte{1}, std::byte{0x80}}),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(Values::kInt8, {std::byte{248}, std::byte{1}, std::byte{0x81}}), absl::StatusCode::kOk);
  for (const int step : {0x007f, 0x7e13, 0x7f80, 0xbe13}) {  // subnormal, too large, infinite, negative
    const std::vector<std::byte> block = {static_cast<std::byte>(step), static_cast<std::byte>(step >> 8),
                                          std::byte{0x11}};
    EXPECT_EQ(code(Values::kInt4, block), absl::StatusCode::kDataLoss) << step;
  }
  EXPECT_EQ(code(Values::kInt4, {{}, std::byte{0x3e}, std::byte{0x81}}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(Values::kInt4, {std::byte{0x12}, std::byte{0x7e}, std::byte{0x91}}), absl::StatusCode::kOk);
  EXPECT_EQ(code(Values::kFloat16, {std::byte{240}, {}, {}, {}, {}}), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(Values::kFloat16, {std::byte{239}, {}, std::byte{0x7c}, {}, {}}),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(Values::kBFloat16, {{}, {}, std::byte{0x80}, std::byte{0xff}}), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace fusion::codec
