#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "worker/data/text_pairs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  for (const fusion::worker::TextPair& pair : fusion::worker::SplitPairs(text)) {
    const bool inside = pair.first.data() >= text.data() &&
                        pair.second.data() + pair.second.size() <= text.data() + text.size();
    if (pair.first.empty() || pair.second.empty() || !inside) std::abort();
  }
  return 0;
}
