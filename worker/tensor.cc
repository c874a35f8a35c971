#include "worker/tensor.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace fusion::worker {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    count *= extent;
  }
  return count;
}

int64_t Tensor::bytes() const { return elements() * ElementBytes(dtype); }

absl::Span<const float> Tensor::floats() const {
  return {reinterpret_cast<const float*>(data.get()), static_cast<size_t>(elements())};
}

absl::Span<float> Tensor::mutable_floats() {
  return {reinterpret_cast<float*>(data.get()), static_cast<size_t>(elements())};
}

int64_t ElementBytes(DataType dtype) {
  switch (dtype) {
    case graph::v1::FLOAT64:
    case graph::v1::INT64:
      return 8;
    case graph::v1::FLOAT32:
    case graph::v1::INT32:
      return 4;
    case graph::v1::FLOAT16:
    case graph::v1::BFLOAT16:
      return 2;
    case graph::v1::BOOL:
    case graph::v1::UINT8:
      return 1;
    default:
      return 0;
  }
}

Tensor AllocateTensor(DataType dtype, std::vector<int64_t> shape) {
  Tensor tensor{.dtype = dtype, .shape = std::move(shape), .data = nullptr};
  const auto wanted = static_cast<size_t>(tensor.bytes());
  const size_t rounded = (wanted / kAlignment + 1) * kAlignment;  // never 0: data is never null
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  tensor.data =
      std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); });
  return tensor;
}

}  // namespace fusion::worker
