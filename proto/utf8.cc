#include "proto/utf8.h"

#include <cstdint>

namespace fusion::api {
namespace {

/// The length of the character at the front, or 0: overlong forms, surrogates and values above U+10FFFF are
/// none.
size_t CharacterLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    const bool control = (first < 0x20 && first != '\t' && first != '\n' && first != '\r') || first == 0x7f;
    return control ? 0 : 1;
  }
  const size_t length = first >= 0xF5 ? 0 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  if (first == 0xE0 && second < 0xA0) return 0;
  if (first == 0xED && second > 0x9F) return 0;
  if (first == 0xF0 && second < 0x90) return 0;
  if (first == 0xF4 && second > 0x8F) return 0;
  return length;
}

}  // namespace

size_t ValidTextPrefix(absl::string_view text) {
  size_t valid = 0;
  while (valid < text.size()) {
    const size_t length = CharacterLength(text.substr(valid));
    if (length == 0) break;
    valid += length;
  }
  return valid;
}

}  // namespace fusion::api
