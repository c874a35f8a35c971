// Formats of a run of values: a row of a dense message, or the values that TopK kept of one row. A run starts
// at a byte border and its size depends on (format, count) only.
//
//   fp32  count floats as they are, non-finite ones included.
//   bf16  count 16-bit floats.
//   fp16  one exponent byte e, then count halves h; value = h x 2^(e-127). The scale brings the run's largest
//         magnitude into [2^15, 2^16), since gradients are otherwise mostly subnormal halves. Relative error
//         at most 2^-11 down to 2^-29 of the largest magnitude, absolute error at most 2^-40 of it below.
//   int8  blocks of 32 values: one exponent byte e, then a two's complement code q of a byte for each value;
//         value = q x 2^(e-127), |q| <= 127.
//   int4  blocks of 32 values: the step s, a positive bfloat16 (little-endian), then a code of four bits for
//         each value, of two neighbours the first in the low half of a byte; value = q x s, |q| <= 7.
//
// A block's step is the smallest of its kind (power of two; bfloat16), not below 2^-126, for which no code
// exceeds its range; so the error is at most half a step, in int4 1/14 of the block's largest magnitude and
// a per cent of that. Only at the largest step of int8 (e = 248) a code saturates, with an error below one
// step. e is the biased exponent of a normal float; e = 0 and s = 0 say that all values are zero. Negative
// zeros become zeros in int8 and int4. Everywhere but in fp32 a non-finite value counts as the largest float
// of its sign. To encode what was decoded changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "codec/codec.h"

namespace fusion::codec {

inline constexpr int kBlock = 32;

/// Bytes of a run of `count` >= 0 values.
int64_t RunBytes(Values format, int64_t count);

/// Writes RunBytes(format, run.size()) bytes.
void EncodeRun(Values format, absl::Span<const float> run, std::byte* message);

/// Reads RunBytes(format, run.size()) bytes, whatever they are. DATA_LOSS where EncodeRun cannot have written
/// them; the run is then unspecified. What is decoded from a format other than fp32 is finite.
absl::Status DecodeRun(Values format, const std::byte* message, absl::Span<float> run);

}  // namespace fusion::codec
