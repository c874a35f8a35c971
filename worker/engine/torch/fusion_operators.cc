// Operators of our own, known to the dispatcher like any other.
//
//   fusion::dropout_mask(int[] size, float p, int key, bool training) -> Tensor
//     float32. Element i is 0 where Uniform(Bits(key, i)) < p, else 1 / (1 - p) (engine/random.h); all ones
//     unless training. Dropout is a multiplication by it.

#include <ATen/Functions.h>
#include <torch/library.h>

#include <cstdint>

#include "worker/engine/random.h"

namespace fusion::worker::engine {
namespace {

at::Tensor DropoutMask(at::IntArrayRef size, double p, int64_t key, bool training) {
  TORCH_CHECK(p >= 0 && p < 1, "the probability of dropping must be in [0, 1), it is ", p);
  if (!training || p == 0) {
    return at::ones(size, at::TensorOptions().dtype(at::kFloat));
  }
  at::Tensor mask = at::empty(size, at::TensorOptions().dtype(at::kFloat));
  auto* data = mask.mutable_data_ptr<float>();
  const int64_t count = mask.numel();
  const auto kept = static_cast<float>(1 / (1 - p));
  for (int64_t i = 0; i < count; ++i) {
    data[i] = Uniform(Bits(static_cast<uint64_t>(key), static_cast<uint64_t>(i))) < p ? 0.0F : kept;
  }
  return mask;
}

}  // namespace
}  // namespace fusion::worker::engine

TORCH_LIBRARY(fusion, library) {
  library.def("dropout_mask(int[] size, float p, int key, bool training) -> Tensor");
}

TORCH_LIBRARY_IMPL(fusion, CompositeExplicitAutograd, library) {
  library.impl("dropout_mask", &fusion::worker::engine::DropoutMask);
}
