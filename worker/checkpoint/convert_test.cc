#include "worker/checkpoint/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace fusion::worker {
namespace {

using graph::v1::BFLOAT16;
using graph::v1::FLOAT16;
using graph::v1::FLOAT32;
using graph::v1::FLOAT64;
using graph::v1::INT32;
using graph::v1::INT64;

template <typename T>
Tensor Of(DataType dtype, const std::vector<T>& values) {
  Tensor tensor = AllocateTensor(dtype, {static_cast<int64_t>(values.size())});
  std::memcpy(tensor.data.get(), values.data(), values.size() * sizeof(T));
  return tensor;
}

template <typename T>
std::vector<T> Values(const Tensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.elements()));
  std::memcpy(values.data(), tensor.data.get(), values.size() * sizeof(T));
  return values;
}

std::vector<uint16_t> AllBits() {
  std::vector<uint16_t> bits(1 << 16);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  return bits;
}

// The nearest of all values of the format, ties to the even pattern, by looking at every one.
uint16_t Nearest(const std::vector<float>& all, float value) {
  size_t best = 0;
  const auto distance = [&](size_t i) { return std::fabs(static_cast<double>(all[i]) - value); };
  for (size_t i = 0; i < all.size(); ++i) {
    if (!std::isfinite(all[i]) || std::signbit(all[i]) != std::signbit(value)) continue;
    if (std::signbit(all[best]) != std::signbit(value) || distance(i) < distance(best) ||
        (distance(i) == distance(best) && i % 2 == 0)) {
      best = i;
    }
  }
  return static_cast<uint16_t>(best);
}

class SmallFloats : public ::testing::TestWithParam<DataType> {};

TEST_P(SmallFloats, EveryOneSurvivesTheWayThroughFloat32) {
  const Tensor all = Of(GetParam(), AllBits());
  const Tensor wide = Convert(ViewOf(all), FLOAT32);
  const std::vector<uint16_t> back = Values<uint16_t>(Convert(ViewOf(wide), GetParam()));
  for (size_t i = 0; i < back.size(); ++i) {
    if (std::isnan(wide.floats()[i])) continue;
    ASSERT_EQ(back[i], i);
  }
}

TEST_P(SmallFloats, RoundsToTheNearest) {
  const Tensor all = Of(GetParam(), AllBits());
  const std::vector<float> values = Values<float>(Convert(ViewOf(all), FLOAT32));
  std::mt19937 random(3);
  std::vector<float> samples = {0, -0.0F, 1.00048828125F, 1.00146484375F, 6e-8F, 1e-7F, 65503, 1e-40F};
  for (int i = 0; i < 60; ++i) {
    samples.push_back(std::ldexp(static_cast<float>(random()) / 4294967296.0F - 0.5F,
                                 static_cast<int>(random() % 24) - 16));
  }
  const std::vector<uint16_t> rounded = Values<uint16_t>(Convert(ViewOf(Of(FLOAT32, samples)), GetParam()));
  for (size_t i = 0; i < samples.size(); ++i)
    EXPECT_EQ(rounded[i], Nearest(values, samples[i])) << samples[i];
}

INSTANTIATE_TEST_SUITE_P(Formats, SmallFloats, ::testing::Values(FLOAT16, BFLOAT16),
                         [](const auto& info) { return graph::v1::DataType_Name(info.param); });

TEST(Convert, KnowsTheFormatsLandmarks) {
  const Tensor half = Of<uint16_t>(FLOAT16, {0x3C00, 0xFBFF, 0x7C00, 0x0400, 0x8000});
  EXPECT_EQ(Values<float>(Convert(ViewOf(half), FLOAT32)),
            (std::vector<float>{1, -65504, INFINITY, 0x1p-14F, -0.0F}));
  const Tensor wide = Of<float>(FLOAT32, {65520, -1e30F, NAN});
  const std::vector<uint16_t> bits = Values<uint16_t>(Convert(ViewOf(wide), FLOAT16));
  EXPECT_EQ(bits[0], 0x7C00);
  EXPECT_EQ(bits[1], 0xFC00);
  EXPECT_GT(bits[2] & 0x7FFF, 0x7C00);
}

TEST(Convert, IntegersOnlyWiden) {
  EXPECT_EQ(Values<int64_t>(Convert(ViewOf(Of<int32_t>(INT32, {-5, 7})), INT64)),
            (std::vector<int64_t>{-5, 7}));
  EXPECT_FALSE(CanConvert(INT64, INT32));
  EXPECT_FALSE(CanConvert(INT64, FLOAT32));
  EXPECT_TRUE(CanConvert(FLOAT64, BFLOAT16));
}

}  // namespace
}  // namespace fusion::worker
