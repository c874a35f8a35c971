// A vocabulary, then a zero byte, then text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "worker/data/word_piece.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const bool lowercase = size % 2 == 0;
  // So that any text is split, whatever the vocabulary is.
  for (const absl::string_view vocabulary :
       {bytes.substr(0, end), absl::string_view("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##a")}) {
    const auto tokenizer = fusion::worker::WordPiece::Parse(vocabulary, lowercase);
    if (!tokenizer.ok()) continue;
    for (const int32_t token : tokenizer->EncodeWithEnds(bytes.substr(end), 16)) {
      if (token < 0 || token >= tokenizer->size()) std::abort();
    }
  }
  return 0;
}
