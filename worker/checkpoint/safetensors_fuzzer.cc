#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "worker/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensors = fusion::worker::ParseSafetensors({reinterpret_cast<const std::byte*>(data), size});
  if (tensors.ok()) {
    for (const auto& [name, view] : *tensors) {
      const fusion::worker::Tensor copy = fusion::worker::CopyTensor(view);
      if (copy.bytes() != static_cast<int64_t>(view.bytes.size())) {
        std::abort();
      }
    }
  }
  return 0;
}
