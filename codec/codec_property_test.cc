// Properties that hold for every codec, layout and value.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "codec/half.h"

namespace fusion::codec {
namespace {

rc::Gen<Codec> AnyCodec() {
  return rc::gen::map(rc::gen::element<std::string>("fp32", "fp16", "bf16", "int8", "int4", "topk-0.5-fp32",
                                                    "topk-0.1-fp16", "topk-0.2-int8", "topk-0.03-int4",
                                                    "topk-1-int4", "topk-0.9-int4-independent"),
                      [](const std::string& name) { return ParseCodec(name).value(); });
}

rc::Gen<Layout> AnyLayout() {
  return rc::gen::construct<Layout>(rc::gen::inRange<int64_t>(0, 5), rc::gen::inRange<int64_t>(1, 150));
}

/// Every bit pattern, so every kind of NaN, infinity, subnormal and sign; and often ordinary numbers with
/// ties.
rc::Gen<float> AnyFloat() {
  return rc::gen::oneOf(
      rc::gen::map(rc::gen::arbitrary<uint32_t>(), [](uint32_t bits) { return std::bit_cast<float>(bits); }),
      rc::gen::map(rc::gen::inRange(-40, 41), [](int x) { return static_cast<float>(x) / 16; }));
}

std::vector<float> AnyValues(int64_t count) {
  return *rc::gen::container<std::vector<float>>(static_cast<size_t>(count), AnyFloat());
}

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = std::bit_cast<uint32_t>(values[i]);
  return bits;
}

struct Encoded {
  std::vector<std::byte> message;
  Mask mask;
};

Encoded Encode(const Codec& codec, const Layout& layout, const std::vector<float>& value) {
  Encoded encoded;
  encoded.message.resize(ValueBytes(codec, layout));
  RC_ASSERT(EncodeValue(codec, layout, value, absl::MakeSpan(encoded.message), &encoded.mask).ok());
  return encoded;
}

std::vector<float> Decode(const Codec& codec, const Layout& layout, const Encoded& encoded, Mask* mask) {
  std::vector<float> value(layout.elements(), NAN);
  RC_ASSERT(DecodeValue(codec, layout, encoded.message, absl::MakeSpan(value), mask).ok());
  return value;
}

RC_GTEST_PROP(CodecProperty, ReceiverSeesTheSendersMask, ()) {
  const Codec codec = *AnyCodec();
  const Layout layout = *AnyLayout();
  const Encoded encoded = Encode(codec, layout, AnyValues(layout.elements()));
  Mask mask;
  Decode(codec, layout, encoded, &mask);
  RC_ASSERT(mask.kept_per_row == encoded.mask.kept_per_row);
  RC_ASSERT(mask.columns == encoded.mask.columns);
}

RC_GTEST_PROP(CodecProperty, ErrorsStayWithinTheBoundOfTheFormat, ()) {
  const Codec codec = *AnyCodec();
  const Layout layout = *AnyLayout();
  const std::vector<float> value = AnyValues(layout.elements());
  const Encoded encoded = Encode(codec, layout, value);
  Mask mask;
  const std::vector<float> decoded = Decode(codec, layout, encoded, &mask);
  std::vector<bool> kept(value.size(), !codec.sparse);
  for (size_t i = 0; i < mask.columns.size(); ++i) {
    kept[i / mask.kept_per_row * layout.columns + mask.columns[i]] = true;
  }
  for (int64_t row = 0; row < layout.rows; ++row) {
    double largest = 0;  // of the row: above that of each of its blocks
    for (int64_t i = row * layout.columns; i < (row + 1) * layout.columns; ++i) {
      largest = std::max<double>(largest, std::abs(Saturate(value[i])));
    }
    for (int64_t i = row * layout.columns; i < (row + 1) * layout.columns; ++i) {
      if (!kept[i]) {
        RC_ASSERT(std::bit_cast<uint32_t>(decoded[i]) == 0U);
        continue;
      }
      const double x = Saturate(value[i]);
      const double error = std::abs(x - decoded[i]);
      switch (codec.values) {
        case Values::kFloat32:
          RC_ASSERT(Bits({decoded[i]}) == Bits({value[i]}));
          break;
        case Values::kFloat16:
          RC_ASSERT(error <= std::max(std::abs(x) * 0x1p-11, largest * 0x1p-40));
          break;
        case Values::kBFloat16:
          RC_ASSERT(error <= std::max(std::abs(x) * 0x1.01p-8, 0x1p-134));
          break;
        // Half a step, where the largest is at least 63.75 steps (6.94 in int4); a whole one where codes of
        // int8 saturate.
        case Values::kInt8:
          RC_ASSERT(error <= std::max(largest / 127, 0x1p-127));
          break;
        case Values::kInt4:
          RC_ASSERT(error <= std::max(largest / 13.88, 0x1p-127));
          break;
      }
    }
  }
}

// A kept value may be rounded to zero, and then loses its place to a zero of lower index: not so in fp32.
RC_GTEST_PROP(CodecProperty, EncodingWhatWasDecodedChangesNothing, ()) {
  const Codec codec = *rc::gen::suchThat(
      AnyCodec(), [](const Codec& c) { return !c.sparse || c.density == 1 || c.values == Values::kFloat32; });
  const Layout layout = *AnyLayout();
  Mask mask;
  const std::vector<float> once =
      Decode(codec, layout, Encode(codec, layout, AnyValues(layout.elements())), &mask);
  const Encoded again = Encode(codec, layout, once);
  RC_ASSERT(Bits(Decode(codec, layout, again, &mask)) == Bits(once));
}

RC_GTEST_PROP(CodecProperty, GradientIsZeroOutsideTheMaskAndAsTheValueInside, ()) {
  const Codec codec = ParseCodec(*rc::gen::element<std::string>("topk-0.3-fp32", "topk-0.1-int8")).value();
  const Layout layout = *AnyLayout();
  const std::vector<float> gradient = AnyValues(layout.elements());
  const Mask mask = Encode(codec, layout, AnyValues(layout.elements())).mask;
  std::vector<std::byte> message(GradientBytes(codec, layout));
  std::vector<float> decoded(gradient.size(), NAN);
  RC_ASSERT(EncodeGradient(codec, layout, gradient, mask, absl::MakeSpan(message)).ok());
  RC_ASSERT(DecodeGradient(codec, layout, message, mask, absl::MakeSpan(decoded)).ok());

  // The kept values alone, as a dense message.
  Codec dense;
  dense.values = codec.values;
  const Layout kept{.rows = layout.rows, .columns = mask.kept_per_row};
  std::vector<float> values;
  for (size_t i = 0; i < mask.columns.size(); ++i) {
    values.push_back(gradient[i / mask.kept_per_row * layout.columns + mask.columns[i]]);
  }
  const std::vector<float> expected = Decode(dense, kept, Encode(dense, kept, values), nullptr);
  std::vector<float> scattered(gradient.size());
  for (size_t i = 0; i < mask.columns.size(); ++i) {
    scattered[i / mask.kept_per_row * layout.columns + mask.columns[i]] = expected[i];
  }
  RC_ASSERT(Bits(decoded) == Bits(scattered));
}

RC_GTEST_PROP(CodecProperty, AnyBytesAreSafeToDecode, ()) {
  const Codec codec = *AnyCodec();
  const Layout layout = *AnyLayout();
  const int64_t bytes = ValueBytes(codec, layout) + *rc::gen::element<int64_t>(0, 0, 0, 1, -1);
  const auto raw = *rc::gen::container<std::vector<uint8_t>>(static_cast<size_t>(std::max<int64_t>(bytes, 0)),
                                                             rc::gen::arbitrary<uint8_t>());
  const auto* message = reinterpret_cast<const std::byte*>(raw.data());
  std::vector<float> value(layout.elements());
  Mask mask;
  const absl::Status status = DecodeValue(codec, layout, {message, raw.size()}, absl::MakeSpan(value), &mask);
  if (static_cast<int64_t>(raw.size()) != ValueBytes(codec, layout)) {
    RC_ASSERT(status.code() == absl::StatusCode::kDataLoss);
  }
  if (!status.ok()) {
    RC_ASSERT(status.code() == absl::StatusCode::kDataLoss);
    return;
  }
  for (const uint32_t column : mask.columns) RC_ASSERT(column < layout.columns);
  if (codec.values != Values::kFloat32) {
    for (const float x : value) RC_ASSERT(std::isfinite(x));
  }
}

}  // namespace
}  // namespace fusion::codec
