// Between the worker's tensors and LibTorch's, without copying.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "fusion/graph/v1/graph.pb.h"
#include "worker/engine/torch/memory_account.h"
#include "worker/tensor.h"

namespace fusion::worker::engine {

/// Undefined for DATA_TYPE_UNSPECIFIED.
at::ScalarType ScalarTypeOf(DataType dtype);
/// DATA_TYPE_UNSPECIFIED for a type that graphs do not have.
DataType DataTypeOf(at::ScalarType type);

/// The tensor, or a copy of it, contiguous and with its first element on a 64-byte boundary: the form of
/// every value and cotangent between operators. Kernels take other paths, with other last bits, for other
/// layouts; in this form a value is the same whether or not it crossed a link.
at::Tensor Canonical(const at::Tensor& tensor);

/// A view of `tensor`, which keeps its storage alive and charges it to `account` for as long.
at::Tensor Borrow(const Tensor& tensor, const std::shared_ptr<MemoryAccount>& account);
/// A view of `tensor`, which must be canonical; keeps its storage alive.
Tensor Lend(const at::Tensor& tensor);
/// A copy.
Tensor Copy(const at::Tensor& tensor);

/// INVALID_ARGUMENT, beginning with `what`, unless dtype and shape are those of `spec` for `samples` samples.
absl::Status CheckSpec(const std::string& what, const graph::v1::TensorSpec& spec, int64_t samples,
                       const at::Tensor& tensor);

/// float32[4, 128].
std::string DescribeTensor(const at::Tensor& tensor);

}  // namespace fusion::worker::engine
