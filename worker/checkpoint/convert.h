// Tensors of one dtype as another.
#pragma once

#include "absl/status/statusor.h"
#include "worker/checkpoint/safetensors.h"

namespace fusion::worker {

/// Whether Convert knows the pair: the same dtype; any of FLOAT16, BFLOAT16, FLOAT32, FLOAT64 to another; an
/// integer type to a wider one.
bool CanConvert(DataType from, DataType to);

/// A copy in aligned storage. Widening is exact; FLOAT64 and FLOAT32 are rounded to nearest, ties to even.
/// REQUIRES: CanConvert.
Tensor Convert(const TensorView& view, DataType to);

}  // namespace fusion::worker
