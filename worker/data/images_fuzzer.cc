#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "worker/data/dataset.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fusion::worker::DatasetOptions options{
      .validation_fraction = 0.3, .seed = 1, .global_batch = 4, .validation_batches = 1};
  const auto images =
      fusion::worker::ParseImages({reinterpret_cast<const char*>(data), size}, options,
                                  {.channels = 1, .image_size = 2, .classes = 3, .scale = 0.5});
  if (!images.ok()) return 0;
  for (const bool training : {true, false}) {
    const fusion::worker::BatchSlice slice{
        .training = training, .batch = training ? 1 : 0, .first = 0, .count = 4};
    const auto labels = (*images)->Read(fusion::worker::Placeholder::kLabel, slice);
    const auto* first = reinterpret_cast<const int64_t*>(labels.data.get());
    for (int i = 0; i < 4; ++i) {
      if (first[i] < 0 || first[i] >= 3) std::abort();
    }
    if ((*images)->Read(fusion::worker::Placeholder::kInput, slice).elements() != 16) std::abort();
  }
  return 0;
}
