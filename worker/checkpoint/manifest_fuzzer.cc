#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "worker/checkpoint/checkpoint_json.h"

// What is read is written, and reads as the same again.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fusion::worker;  // NOLINT
  const auto parsed = ParseManifest({reinterpret_cast<const char*>(data), size});
  if (parsed.ok()) {
    const std::string text = ManifestJson(*parsed);
    const auto again = ParseManifest(text);
    if (!again.ok() || ManifestJson(*again) != text) {
      std::abort();
    }
  }
  return 0;
}
