// Decodes arbitrary bytes with every codec. What decodes must be finite (but in fp32), must survive being
// encoded again, and its mask must serve a gradient.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "codec/codec.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fusion::codec;  // NOLINT(google-build-using-namespace)
  if (size < 4) return 0;
  Codec codec;
  codec.values = static_cast<Values>(data[0] % 5);
  codec.sparse = (data[0] & 0x80) != 0 && codec.values != Values::kBFloat16;
  codec.independent_mask = codec.sparse && (data[0] & 0x40) != 0;
  codec.density = codec.sparse ? (data[1] + 1) / 256.0 : 1;
  const Layout layout{.rows = data[2] % 5, .columns = 1 + data[3]};
  const absl::Span<const std::byte> message(reinterpret_cast<const std::byte*>(data + 4), size - 4);

  std::vector<float> value(layout.elements());
  Mask mask;
  const bool fits = static_cast<int64_t>(message.size()) == ValueBytes(codec, layout);
  const absl::Status decoded = DecodeValue(codec, layout, message, absl::MakeSpan(value), &mask);
  Require(fits || !decoded.ok());
  if (decoded.ok() && codec.values != Values::kFloat32) {
    for (const float x : value) Require(std::isfinite(x));
    std::vector<std::byte> again(ValueBytes(codec, layout));
    std::vector<float> second(value.size());
    Require(EncodeValue(codec, layout, value, absl::MakeSpan(again), &mask).ok());
    Require(DecodeValue(codec, layout, again, absl::MakeSpan(second), &mask).ok());
  }
  if (!codec.sparse) return 0;
  Mask first;
  first.kept_per_row = KeptPerRow(codec, layout.columns);
  for (int64_t row = 0; row < layout.rows; ++row) {
    for (int64_t i = 0; i < first.kept_per_row; ++i) first.columns.push_back(static_cast<uint32_t>(i));
  }
  DecodeGradient(codec, layout, message, decoded.ok() ? mask : first, absl::MakeSpan(value)).IgnoreError();
  return 0;
}
