// A tensor in host memory as the worker moves it between data, engine, codecs and transport. No LibTorch
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "fusion/graph/v1/graph.pb.h"

namespace fusion::worker {

using DataType = graph::v1::DataType;

/// Dense, contiguous, row-major. Copies share the storage; who shares it does not write to it.
struct Tensor {
  DataType dtype = graph::v1::FLOAT32;
  std::vector<int64_t> shape;
  std::shared_ptr<std::byte>
      data;  ///< first byte, 64-byte aligned where we allocate; keeps the storage alive

  int64_t elements() const;
  int64_t bytes() const;
  absl::Span<const float> floats() const;  ///< dtype FLOAT32
  absl::Span<float> mutable_floats();
};

/// 0 for an unknown type.
int64_t ElementBytes(DataType dtype);

/// Uninitialised storage, aligned to 64 bytes. REQUIRES: a known dtype, extents >= 0 whose product fits.
Tensor AllocateTensor(DataType dtype, std::vector<int64_t> shape);

}  // namespace fusion::worker
