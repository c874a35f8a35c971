#include "codec/codec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "codec/index_code.h"
#include "codec/top_k.h"
#include "codec/values.h"

namespace fusion::codec {
namespace {

/// No message of a layout within these bounds overflows an int64.
absl::Status CheckLayout(const Codec& codec, const Layout& layout, size_t elements) {
  constexpr int64_t kLargestColumns = std::numeric_limits<uint32_t>::max();
  constexpr int64_t kLargestElements = std::numeric_limits<int64_t>::max() / 64;
  if (layout.columns < 1 || layout.columns > kLargestColumns || layout.rows < 0 ||
      layout.rows > kLargestElements / layout.columns) {
    return absl::InvalidArgumentError(absl::StrCat("a layout of ", layout.rows, " rows x ", layout.columns,
                                                   " columns; there are 1 to ", kLargestColumns, " columns"));
  }
  if (static_cast<int64_t>(elements) != layout.elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat(elements, " values for ", layout.rows, " rows x ", layout.columns, " columns"));
  }
  if (codec.sparse && !(codec.density > 0 && codec.density <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("density ", codec.density, " is not in (0, 1]"));
  }
  return absl::OkStatus();
}

absl::Status CheckOutput(const Codec& codec, int64_t expected, size_t bytes) {
  if (static_cast<int64_t>(bytes) == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a buffer of ", bytes, " bytes for a message of ", expected,
                                                 " in codec ", CodecName(codec)));
}

absl::Status CheckMessage(const Codec& codec, int64_t expected, size_t bytes) {
  if (static_cast<int64_t>(bytes) == expected) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("a message of ", bytes, " bytes where codec ", CodecName(codec), " has ", expected));
}

absl::Status CheckMask(const Codec& codec, const Layout& layout, const Mask& mask) {
  const int64_t kept = KeptPerRow(codec, layout.columns);
  if (mask.kept_per_row != kept || static_cast<int64_t>(mask.columns.size()) != layout.rows * kept) {
    return absl::InvalidArgumentError(absl::StrCat("the mask has ", mask.columns.size(), " indexes, ",
                                                   mask.kept_per_row, " a row, where ", layout.rows,
                                                   " rows of ", kept, " are needed"));
  }
  const auto outside = std::find_if(mask.columns.begin(), mask.columns.end(),
                                    [&](uint32_t column) { return column >= layout.columns; });
  if (outside != mask.columns.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the mask names column ", *outside, " of a row of ", layout.columns));
  }
  return absl::OkStatus();
}

absl::Status InRow(const absl::Status& status, int64_t row) {
  return absl::Status(status.code(), absl::StrCat("row ", row, ": ", status.message()));
}

bool ReusesMask(const Codec& codec) { return codec.sparse && !codec.independent_mask; }

int64_t RowBytes(const Codec& codec, int64_t columns) {
  if (!codec.sparse) return RunBytes(codec.values, columns);
  const int64_t kept = KeptPerRow(codec, columns);
  return IndexCode(columns, kept).bytes() + RunBytes(codec.values, kept);
}

void EncodeDense(const Codec& codec, const Layout& layout, absl::Span<const float> value,
                 absl::Span<std::byte> message) {
  const int64_t row_bytes = RowBytes(codec, layout.columns);
  for (int64_t row = 0; row < layout.rows; ++row) {
    EncodeRun(codec.values, value.subspan(row * layout.columns, layout.columns),
              message.data() + row * row_bytes);
  }
}

absl::Status DecodeDense(const Codec& codec, const Layout& layout, absl::Span<const std::byte> message,
                         absl::Span<float> value) {
  const int64_t row_bytes = RowBytes(codec, layout.columns);
  for (int64_t row = 0; row < layout.rows; ++row) {
    const absl::Status status = DecodeRun(codec.values, message.data() + row * row_bytes,
                                          value.subspan(row * layout.columns, layout.columns));
    if (!status.ok()) return InRow(status, row);
  }
  return absl::OkStatus();
}

void Gather(absl::Span<const float> row, absl::Span<const uint32_t> columns, absl::Span<float> kept) {
  for (size_t i = 0; i < columns.size(); ++i) kept[i] = row[columns[i]];
}

void Scatter(absl::Span<const float> kept, absl::Span<const uint32_t> columns, absl::Span<float> row) {
  std::fill(row.begin(), row.end(), 0.0F);
  for (size_t i = 0; i < columns.size(); ++i) row[columns[i]] = kept[i];
}

/// The part of `mask` that speaks of `row`.
absl::Span<uint32_t> RowOf(Mask& mask, int64_t row) {
  return absl::MakeSpan(mask.columns).subspan(row * mask.kept_per_row, mask.kept_per_row);
}

absl::Span<const uint32_t> RowOf(const Mask& mask, int64_t row) {
  return absl::MakeConstSpan(mask.columns).subspan(row * mask.kept_per_row, mask.kept_per_row);
}

Mask EmptyMask(const Codec& codec, const Layout& layout) {
  const int64_t kept = KeptPerRow(codec, layout.columns);
  return {.kept_per_row = kept, .columns = std::vector<uint32_t>(layout.rows * kept)};
}

/// Rows of indexes and kept values.
Mask EncodeSparse(const Codec& codec, const Layout& layout, absl::Span<const float> value,
                  absl::Span<std::byte> message) {
  Mask mask = EmptyMask(codec, layout);
  const IndexCode index_code(layout.columns, mask.kept_per_row);
  const int64_t row_bytes = RowBytes(codec, layout.columns);
  std::vector<float> kept(mask.kept_per_row);
  TopKSelector selector;
  for (int64_t row = 0; row < layout.rows; ++row) {
    const absl::Span<const float> values = value.subspan(row * layout.columns, layout.columns);
    std::byte* out = message.data() + row * row_bytes;
    const absl::Span<uint32_t> columns = RowOf(mask, row);
    selector.Select(values, columns);
    index_code.Encode(columns, out);
    Gather(values, columns, absl::MakeSpan(kept));
    EncodeRun(codec.values, kept, out + index_code.bytes());
  }
  return mask;
}

absl::Status DecodeSparse(const Codec& codec, const Layout& layout, absl::Span<const std::byte> message,
                          absl::Span<float> value, Mask* mask) {
  Mask decoded = EmptyMask(codec, layout);
  const IndexCode index_code(layout.columns, decoded.kept_per_row);
  const int64_t row_bytes = RowBytes(codec, layout.columns);
  std::vector<float> kept(decoded.kept_per_row);
  for (int64_t row = 0; row < layout.rows; ++row) {
    const std::byte* in = message.data() + row * row_bytes;
    const absl::Span<uint32_t> columns = RowOf(decoded, row);
    absl::Status status = index_code.Decode(in, columns);
    if (status.ok()) status = DecodeRun(codec.values, in + index_code.bytes(), absl::MakeSpan(kept));
    if (!status.ok()) return InRow(status, row);
    Scatter(kept, columns, value.subspan(row * layout.columns, layout.columns));
  }
  if (mask != nullptr) *mask = std::move(decoded);
  return absl::OkStatus();
}

}  // namespace

int64_t KeptPerRow(const Codec& codec, int64_t columns) {
  if (!codec.sparse) return columns;
  // Density is a decimal that a double only approximates: 0.07 x 100 comes out above 7, and is meant to be 7.
  constexpr double kRoundingError = 0x1p-50;
  const double exact = codec.density * static_cast<double>(columns) * (1 - kRoundingError);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(exact)), 1, columns);
}

Layout LayoutOf(absl::Span<const int64_t> shape, bool per_sample) {
  if (shape.size() < 2) return {shape.empty() ? 1 : shape[0], 1};
  if (per_sample) {
    Layout samples{shape[0], 1};
    for (const int64_t dimension : shape.subspan(1)) samples.columns *= dimension;
    samples.columns = std::max<int64_t>(1, samples.columns);
    return samples;
  }
  Layout layout{1, std::max<int64_t>(1, shape.back())};
  for (const int64_t dimension : shape.first(shape.size() - 1)) layout.rows *= dimension;
  return layout;
}

int64_t ValueBytes(const Codec& codec, const Layout& layout) {
  return layout.rows * RowBytes(codec, layout.columns);
}

int64_t GradientBytes(const Codec& codec, const Layout& layout) {
  if (!ReusesMask(codec)) return ValueBytes(codec, layout);
  return layout.rows * RunBytes(codec.values, KeptPerRow(codec, layout.columns));
}

absl::Status EncodeValue(const Codec& codec, const Layout& layout, absl::Span<const float> value,
                         absl::Span<std::byte> message, Mask* mask) {
  if (absl::Status status = CheckLayout(codec, layout, value.size()); !status.ok()) return status;
  if (absl::Status status = CheckOutput(codec, ValueBytes(codec, layout), message.size()); !status.ok()) {
    return status;
  }
  Mask selected;
  if (codec.sparse) {
    selected = EncodeSparse(codec, layout, value, message);
  } else {
    EncodeDense(codec, layout, value, message);
  }
  if (mask != nullptr) *mask = std::move(selected);
  return absl::OkStatus();
}

absl::Status DecodeValue(const Codec& codec, const Layout& layout, absl::Span<const std::byte> message,
                         absl::Span<float> value, Mask* mask) {
  if (absl::Status status = CheckLayout(codec, layout, value.size()); !status.ok()) return status;
  if (absl::Status status = CheckMessage(codec, ValueBytes(codec, layout), message.size()); !status.ok()) {
    return status;
  }
  if (codec.sparse) return DecodeSparse(codec, layout, message, value, mask);
  if (mask != nullptr) *mask = Mask();
  return DecodeDense(codec, layout, message, value);
}

absl::Status EncodeGradient(const Codec& codec, const Layout& layout, absl::Span<const float> gradient,
                            const Mask& mask, absl::Span<std::byte> message) {
  if (!ReusesMask(codec)) return EncodeValue(codec, layout, gradient, message, nullptr);
  if (absl::Status status = CheckLayout(codec, layout, gradient.size()); !status.ok()) return status;
  if (absl::Status status = CheckMask(codec, layout, mask); !status.ok()) return status;
  if (absl::Status status = CheckOutput(codec, GradientBytes(codec, layout), message.size()); !status.ok()) {
    return status;
  }
  const int64_t row_bytes = RunBytes(codec.values, mask.kept_per_row);
  std::vector<float> kept(mask.kept_per_row);
  for (int64_t row = 0; row < layout.rows; ++row) {
    Gather(gradient.subspan(row * layout.columns, layout.columns), RowOf(mask, row), absl::MakeSpan(kept));
    EncodeRun(codec.values, kept, message.data() + row * row_bytes);
  }
  return absl::OkStatus();
}

absl::Status DecodeGradient(const Codec& codec, const Layout& layout, absl::Span<const std::byte> message,
                            const Mask& mask, absl::Span<float> gradient) {
  if (!ReusesMask(codec)) return DecodeValue(codec, layout, message, gradient, nullptr);
  if (absl::Status status = CheckLayout(codec, layout, gradient.size()); !status.ok()) return status;
  if (absl::Status status = CheckMask(codec, layout, mask); !status.ok()) return status;
  if (absl::Status status = CheckMessage(codec, GradientBytes(codec, layout), message.size()); !status.ok()) {
    return status;
  }
  const int64_t row_bytes = RunBytes(codec.values, mask.kept_per_row);
  std::vector<float> kept(mask.kept_per_row);
  for (int64_t row = 0; row < layout.rows; ++row) {
    const absl::Status status =
        DecodeRun(codec.values, message.data() + row * row_bytes, absl::MakeSpan(kept));
    if (!status.ok()) return InRow(status, row);
    Scatter(kept, RowOf(mask, row), gradient.subspan(row * layout.columns, layout.columns));
  }
  return absl::OkStatus();
}

}  // namespace fusion::codec
