#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "worker/checkpoint/checkpoint_json.h"

// What is read is written, and reads as the same again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fusion::worker;  // NOLINT
  const auto parsed = ParseTrainingState({reinterpret_cast<const char*>(data), size});
  if (parsed.ok()) {
    const std::string text = TrainingStateJson(*parsed);
    const auto again = ParseTrainingState(text);
    if (!again.ok() || TrainingStateJson(*again) != text) {
      std::abort();
    }
  }
  return 0;
}
