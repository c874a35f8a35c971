// Compression of floating tensors on their way between stages: pure functions on spans, without LibTorch and
// without state, except for the mask that a TopK value message leaves for its gradient.
//
// A codec is named by a short text, the same in plans, messages and documents:
//
//   fp32 | fp16 | bf16                 dense; fp16 with one power-of-two scale a row
//   int8 | int4                        blocks of 32 values of a row, one scale each (codec/values.h)
//   topk-DENSITY-VALUES[-independent]  the largest |x| of each row; 0 < DENSITY <= 1;
//                                      VALUES = fp32 | fp16 | int8 | int4
//   …+feedback                         with error feedback (codec/error_feedback.h)
//
// A tensor is seen as `rows` x `columns`: columns = the last dimension for tokens, all of a sample for
// images. TopK keeps ceil(density x columns) values of EVERY row, never over a micro-batch: that would leak
// later tokens into earlier ones. Ties go to the lower index; NaN ranks above infinity. All sizes are exact
// and depend on (codec, rows, columns) only.
//
// A message is its rows, one after the other; a row of a sparse value is the code of its indexes
// (codec/index_code.h), then the run of kept values; every other row is a run of values (codec/values.h). A
// dense fp32 message is the tensor's storage as it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace fusion::codec {

enum class Values { kFloat32, kFloat16, kBFloat16, kInt8, kInt4 };

/// What a codec's name says.
struct Codec {
  Values values = Values::kFloat32;
  double density = 1;             ///< (0, 1]; 1 without `sparse`: every value is sent
  bool sparse = false;            ///< TopK
  bool independent_mask = false;  ///< TopK: the gradient selects by itself, does not reuse the value's mask
  bool error_feedback = false;    ///< the sender adds to a message what the one before left out

  bool operator==(const Codec&) const = default;
};

/// INVALID_ARGUMENT with the grammar where the text is not a codec's name.
absl::StatusOr<Codec> ParseCodec(absl::string_view name);
std::string CodecName(const Codec& codec);

struct Layout {
  int64_t rows = 0;     ///< >= 0
  int64_t columns = 0;  ///< >= 1
  int64_t elements() const { return rows * columns; }
};

/// How codecs see a tensor of this shape: a row is what the last of its two or more dimensions holds, or
/// (`per_sample`, for images) what all but the first hold; of a vector each element is one, as samples are
/// not compared. Scheduler and workers both use this.
Layout LayoutOf(absl::Span<const int64_t> shape, bool per_sample = false);

/// Indexes that TopK kept, ascending inside each row, `kept_per_row` for each of the rows.
struct Mask {
  int64_t kept_per_row = 0;
  std::vector<uint32_t> columns;  ///< rows x kept_per_row
};

int64_t KeptPerRow(const Codec& codec, int64_t columns);

/// Exact bytes of a value's message and of its gradient's (which has no indexes when the mask is reused).
int64_t ValueBytes(const Codec& codec, const Layout& layout);
int64_t GradientBytes(const Codec& codec, const Layout& layout);

/// Encodes a value into exactly ValueBytes. A sparse codec fills `mask`, to be kept for the matching
/// gradient; it may be null where there is none. Non-finite values survive in fp32; elsewhere they saturate
/// (codec/values.h), and are the caller's to count. INVALID_ARGUMENT for sizes that do not fit, here and
/// below.
absl::Status EncodeValue(const Codec& codec, const Layout& layout, absl::Span<const float> value,
                         absl::Span<std::byte> message, Mask* mask);
/// Any bytes are safe to pass: DATA_LOSS says what does not fit, and `value` is then unspecified.
absl::Status DecodeValue(const Codec& codec, const Layout& layout, absl::Span<const std::byte> message,
                         absl::Span<float> value, Mask* mask);

/// `mask` is the value's; ignored where the codec is dense or has independent masks.
absl::Status EncodeGradient(const Codec& codec, const Layout& layout, absl::Span<const float> gradient,
                            const Mask& mask, absl::Span<std::byte> message);
absl::Status DecodeGradient(const Codec& codec, const Layout& layout, absl::Span<const std::byte> message,
                            const Mask& mask, absl::Span<float> gradient);

}  // namespace fusion::codec
