#include "codec/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace fusion::codec {
namespace {

Codec Parse(const std::string& name) { return ParseCodec(name).value(); }

TEST(CodecTest, KeepsTheCeilingOfDensityTimesColumns) {
  EXPECT_EQ(KeptPerRow(Parse("fp32"), 128), 128);
  EXPECT_EQ(KeptPerRow(Parse("topk-0.1-int4"), 128), 13);
  EXPECT_EQ(KeptPerRow(Parse("topk-0.03-int4"), 128), 4);
  EXPECT_EQ(KeptPerRow(Parse("topk-1-int4"), 128), 128);
  EXPECT_EQ(KeptPerRow(Parse("topk-0.0001-int4"), 7), 1);
  // Products that come out just above an integer in binary.
  EXPECT_EQ(KeptPerRow(Parse("topk-0.07-int4"), 100), 7);
  EXPECT_EQ(KeptPerRow(Parse("topk-0.1-int4"), 30), 3);
  for (int64_t percent = 1; percent <= 100; ++percent) {
    const Codec codec = Parse("topk-" + std::to_string(static_cast<double>(percent) / 100) + "-int4");
    EXPECT_EQ(KeptPerRow(codec, 3700), 37 * percent);
  }
}

TEST(CodecTest, ARowIsTheLastDimension) {
  const Layout tokens = LayoutOf({4, 64, 128});
  EXPECT_EQ(tokens.rows, 256);
  EXPECT_EQ(tokens.columns, 128);
  const Layout images = LayoutOf({4, 3, 8, 8}, /*per_sample=*/true);
  EXPECT_EQ(images.rows, 4);
  EXPECT_EQ(images.columns, 3 * 8 * 8);
  EXPECT_EQ(LayoutOf({7}, true).rows, 7);
  EXPECT_EQ(LayoutOf({}).elements(), 1);
  EXPECT_EQ(LayoutOf({7}).columns, 1);
  EXPECT_EQ(LayoutOf({7}).rows, 7);
}

TEST(CodecTest, ExactBytes) {
  const Layout layout{.rows = 3, .columns = 128};
  EXPECT_EQ(ValueBytes(Parse("fp32"), layout), 3 * 512);
  EXPECT_EQ(ValueBytes(Parse("bf16"), layout), 3 * 256);
  EXPECT_EQ(ValueBytes(Parse("fp16"), layout), 3 * 257);
  EXPECT_EQ(ValueBytes(Parse("int8"), layout), 3 * 132);
  EXPECT_EQ(ValueBytes(Parse("int4"), layout), 3 * 72);
  // 13 kept: 3 low bits each and 13 + 15 bits of gaps = 67 bits; one block of 13 codes.
  EXPECT_EQ(ValueBytes(Parse("topk-0.1-int4"), layout), 3 * (9 + 9));
  EXPECT_EQ(GradientBytes(Parse("topk-0.1-int4"), layout), 3 * 9);
  EXPECT_EQ(GradientBytes(Parse("topk-0.1-int4-independent"), layout), 3 * (9 + 9));
  EXPECT_EQ(ValueBytes(Parse("topk-0.1-fp32+feedback"), layout), 3 * (9 + 52));
  EXPECT_EQ(ValueBytes(Parse("topk-1-fp32"), layout), ValueBytes(Parse("fp32"), layout));
  EXPECT_EQ(GradientBytes(Parse("int8"), layout), ValueBytes(Parse("int8"), layout));
  EXPECT_EQ(ValueBytes(Parse("int8"), {.rows = 0, .columns = 5}), 0);
}

TEST(CodecTest, SelectsInEveryRowByItself) {
  // All of the second row is smaller than the first.
  const std::vector<float> value = {4, -8, 1, 2, 0.1F, 0.2F, -0.4F, 0.3F};
  const Layout layout{.rows = 2, .columns = 4};
  const Codec codec = Parse("topk-0.5-fp32");
  std::vector<std::byte> message(ValueBytes(codec, layout));
  Mask mask;
  ASSERT_TRUE(EncodeValue(codec, layout, value, absl::MakeSpan(message), &mask).ok());
  EXPECT_EQ(mask.kept_per_row, 2);
  EXPECT_EQ(mask.columns, (std::vector<uint32_t>{0, 1, 2, 3}));
  std::vector<float> decoded(8, NAN);
  Mask received;
  ASSERT_TRUE(DecodeValue(codec, layout, message, absl::MakeSpan(decoded), &received).ok());
  EXPECT_EQ(decoded, (std::vector<float>{4, -8, 0, 0, 0, 0, -0.4F, 0.3F}));
  EXPECT_EQ(received.columns, mask.columns);
}

TEST(CodecTest, GradientReusesTheMaskOfItsValue) {
  const Layout layout{.rows = 1, .columns = 4};
  const Mask mask{.kept_per_row = 2, .columns = {1, 3}};
  const std::vector<float> gradient = {100, 1, 50, 2};
  std::vector<float> decoded(4, NAN);

  const Codec reuse = Parse("topk-0.5-fp32");
  std::vector<std::byte> message(GradientBytes(reuse, layout));
  ASSERT_TRUE(EncodeGradient(reuse, layout, gradient, mask, absl::MakeSpan(message)).ok());
  ASSERT_TRUE(DecodeGradient(reuse, layout, message, mask, absl::MakeSpan(decoded)).ok());
  EXPECT_EQ(decoded, (std::vector<float>{0, 1, 0, 2}));

  const Codec independent = Parse("topk-0.5-fp32-independent");
  message.resize(GradientBytes(independent, layout));
  ASSERT_TRUE(EncodeGradient(independent, layout, gradient, mask, absl::MakeSpan(message)).ok());
  ASSERT_TRUE(DecodeGradient(independent, layout, message, mask, absl::MakeSpan(decoded)).ok());
  EXPECT_EQ(decoded, (std::vector<float>{100, 0, 50, 0}));
}

TEST(CodecTest, KeptNonFiniteValuesSurviveInFloat32) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Layout layout{.rows = 1, .columns = 4};
  const Codec codec = Parse("topk-0.5-fp32");
  std::vector<std::byte> message(ValueBytes(codec, layout));
  std::vector<float> decoded(4);
  ASSERT_TRUE(EncodeValue(codec, layout, {1e38F, NAN, -infinity, 2}, absl::MakeSpan(message), nullptr).ok());
  ASSERT_TRUE(DecodeValue(codec, layout, message, absl::MakeSpan(decoded), nullptr).ok());
  EXPECT_EQ(decoded[0], 0);
  EXPECT_TRUE(std::isnan(decoded[1]));
  EXPECT_EQ(decoded[2], -infinity);
  EXPECT_EQ(decoded[3], 0);
}

TEST(CodecTest, RefusesWhatDoesNotFit) {
  const Layout layout{.rows = 2, .columns = 4};
  const Codec codec = Parse("topk-0.5-int8");
  std::vector<float> value(8, 1.0F);
  std::vector<std::byte> message(ValueBytes(codec, layout));
  Mask mask;
  const auto encode = [&](const Layout& l, absl::Span<const float> v, absl::Span<std::byte> m) {
    return EncodeValue(codec, l, v, m, &mask).code();
  };
  using absl::StatusCode;
  const absl::Span<std::byte> bytes = absl::MakeSpan(message);
  EXPECT_EQ(encode(layout, absl::MakeSpan(value).first(7), bytes), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode(layout, value, bytes.first(bytes.size() - 1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode({.rows = -2, .columns = -4}, value, bytes), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode({.rows = 1, .columns = int64_t{1} << 32}, value, bytes), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode({.rows = int64_t{1} << 60, .columns = 16}, value, bytes), StatusCode::kInvalidArgument);
  ASSERT_EQ(encode(layout, value, bytes), StatusCode::kOk);

  EXPECT_EQ(DecodeValue(codec, layout, bytes.first(bytes.size() - 1), absl::MakeSpan(value), nullptr).code(),
            StatusCode::kDataLoss);
  std::vector<std::byte> gradient(GradientBytes(codec, layout));
  const auto encode_gradient = [&](const Mask& m) {
    return EncodeGradient(codec, layout, value, m, absl::MakeSpan(gradient)).code();
  };
  EXPECT_EQ(encode_gradient(mask), StatusCode::kOk);
  EXPECT_EQ(encode_gradient(Mask()), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode_gradient({.kept_per_row = 2, .columns = {0, 1, 2, 4}}), StatusCode::kInvalidArgument);
}

TEST(CodecTest, ErrorNamesTheRow) {
  const Layout layout{.rows = 2, .columns = 1};
  std::vector<float> value(2);
  const std::vector<std::byte> message = {std::byte{100}, std::byte{1}, std::byte{255}, std::byte{1}};
  EXPECT_EQ(DecodeValue(Parse("int8"), layout, message, absl::MakeSpan(value), nullptr),
            absl::DataLossError(
                "row 1: a block's step is coded as 255; no encoder writes that, the largest is 248"));
}

}  // namespace
}  // namespace fusion::codec
