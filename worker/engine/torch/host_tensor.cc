#include "worker/engine/torch/host_tensor.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fusion::worker::engine {
namespace {

constexpr uintptr_t kAlignment = 64;

std::string Describe(at::ScalarType type, const std::vector<int64_t>& shape) {
  const DataType dtype = DataTypeOf(type);
  return absl::StrCat(
      dtype == graph::v1::DATA_TYPE_UNSPECIFIED ? c10::toString(type) : graph::v1::DataType_Name(dtype), "[",
      absl::StrJoin(shape, ", "), "]");
}

// Storage of the worker's, seen by LibTorch.
struct Loan {
  std::shared_ptr<std::byte> data;
  std::shared_ptr<MemoryAccount> account;
  int64_t bytes;

  Loan(std::shared_ptr<std::byte> data_, std::shared_ptr<MemoryAccount> account_, int64_t bytes_)
      : data(std::move(data_)), account(std::move(account_)), bytes(bytes_) {
    account->Charge(bytes);
  }
  ~Loan() { account->Discharge(bytes); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
};

}  // namespace

at::ScalarType ScalarTypeOf(DataType dtype) {
  switch (dtype) {
    case graph::v1::FLOAT32:
      return at::kFloat;
    case graph::v1::FLOAT16:
      return at::kHalf;
    case graph::v1::BFLOAT16:
      return at::kBFloat16;
    case graph::v1::FLOAT64:
      return at::kDouble;
    case graph::v1::INT64:
      return at::kLong;
    case graph::v1::INT32:
      return at::kInt;
    case graph::v1::BOOL:
      return at::kBool;
    case graph::v1::UINT8:
      return at::kByte;
    default:
      return at::ScalarType::Undefined;
  }
}

DataType DataTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return graph::v1::FLOAT32;
    case at::kHalf:
      return graph::v1::FLOAT16;
    case at::kBFloat16:
      return graph::v1::BFLOAT16;
    case at::kDouble:
      return graph::v1::FLOAT64;
    case at::kLong:
      return graph::v1::INT64;
    case at::kInt:
      return graph::v1::INT32;
    case at::kBool:
      return graph::v1::BOOL;
    case at::kByte:
      return graph::v1::UINT8;
    default:
      return graph::v1::DATA_TYPE_UNSPECIFIED;
  }
}

at::Tensor Canonical(const at::Tensor& given) {
  at::Tensor tensor = given.is_contiguous() ? given : given.contiguous();
  // A dimension of one element may have any stride, from which some kernels read a memory format.
  const c10::DimVector strides = c10::contiguous_strides(tensor.sizes());
  if (!std::equal(strides.begin(), strides.end(), tensor.strides().begin())) {
    tensor = tensor.as_strided(tensor.sizes(), strides);
  }
  if (reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment != 0) {
    return tensor.clone(at::MemoryFormat::Contiguous);
  }
  return tensor;
}

at::Tensor Borrow(const Tensor& tensor, const std::shared_ptr<MemoryAccount>& account) {
  auto loan = std::make_unique<Loan>(tensor.data, account, tensor.bytes());
  at::Tensor view = at::from_blob(
      tensor.data.get(), tensor.shape, [held = loan.get()](void*) { delete held; },
      at::TensorOptions().dtype(ScalarTypeOf(tensor.dtype)));
  loan.release();  // NOLINT(bugprone-unused-return-value): the view's deleter owns it now
  return Canonical(view);
}

Tensor Lend(const at::Tensor& tensor) {
  auto holder = std::make_shared<at::Tensor>(tensor);
  return {.dtype = DataTypeOf(tensor.scalar_type()),
          .shape = tensor.sizes().vec(),
          .data = std::shared_ptr<std::byte>(holder, static_cast<std::byte*>(holder->mutable_data_ptr()))};
}

Tensor Copy(const at::Tensor& tensor) {
  const at::Tensor source = tensor.contiguous();
  Tensor copy = AllocateTensor(DataTypeOf(source.scalar_type()), source.sizes().vec());
  if (copy.bytes() > 0) {
    std::memcpy(copy.data.get(), source.const_data_ptr(), static_cast<size_t>(copy.bytes()));
  }
  return copy;
}

absl::Status CheckSpec(const std::string& what, const graph::v1::TensorSpec& spec, int64_t samples,
                       const at::Tensor& tensor) {
  bool equal = tensor.scalar_type() == ScalarTypeOf(spec.dtype()) && tensor.dim() == spec.shape_size();
  for (int i = 0; equal && i < spec.shape_size(); ++i) {
    const int64_t extent = spec.shape(i) >= 0 ? spec.shape(i) : -spec.shape(i) * samples;
    equal = tensor.size(i) == extent;
  }
  if (equal) {
    return absl::OkStatus();
  }
  std::vector<int64_t> expected;
  for (const int64_t extent : spec.shape()) {
    expected.push_back(extent >= 0 ? extent : -extent * samples);
  }
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", DescribeTensor(tensor),
                                                 ", but the graph says ",
                                                 Describe(ScalarTypeOf(spec.dtype()), expected)));
}

std::string DescribeTensor(const at::Tensor& tensor) {
  return Describe(tensor.scalar_type(), tensor.sizes().vec());
}

}  // namespace fusion::worker::engine
