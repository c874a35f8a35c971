#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "worker/checkpoint/checkpoint_json.h"

// What is read is written, and reads as the same again; no name leads out of the folder.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fusion::worker;  // NOLINT
  const auto parsed = ParseShardIndex({reinterpret_cast<const char*>(data), size});
  if (parsed.ok()) {
    for (const auto& [tensor, file] : *parsed) {
      if (file.find('/') != std::string::npos || file.front() == '.') {
        std::abort();
      }
    }
    const auto again = ParseShardIndex(ShardIndexJson(*parsed, 1));
    if (!again.ok() || *again != *parsed) {
      std::abort();
    }
  }
  return 0;
}
