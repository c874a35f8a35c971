// The resolution rules of YAML 1.1's plain scalars as Kubernetes' tools apply them.
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "proto/yaml.h"

namespace fusion::api {
namespace {

using nlohmann::json;

const absl::flat_hash_map<absl::string_view, json>& Words() {
  static const auto& words = *[] {
    auto* map = new absl::flat_hash_map<absl::string_view, json>;
    for (const char* text : {"", "~", "null", "Null", "NULL"}) (*map)[text] = nullptr;
    for (const char* text : {"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}) {
      (*map)[text] = true;
    }
    for (const char* text : {"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}) {
      (*map)[text] = false;
    }
    for (const char* text : {".nan", ".NaN", ".NAN"}) (*map)[text] = std::numeric_limits<double>::quiet_NaN();
    for (const char* text : {".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"}) {
      (*map)[text] = std::numeric_limits<double>::infinity();
    }
    for (const char* text : {"-.inf", "-.Inf", "-.INF"})
      (*map)[text] = -std::numeric_limits<double>::infinity();
    return map;
  }();
  return words;
}

int DigitOf(char c) {
  if (absl::ascii_isdigit(static_cast<unsigned char>(c))) return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
}

/// 12, -012, 0o17, 0x1F, 0b11: an integer of 64 bits, signed or not.
std::optional<json> Integer(absl::string_view text) {
  const bool negative = text[0] == '-';
  if (text[0] == '-' || text[0] == '+') text.remove_prefix(1);
  uint64_t base = 10;
  if (text.size() > 1 && text[0] == '0') {
    switch (text[1]) {
      case 'x':
      case 'X':
        base = 16;
        break;
      case 'b':
      case 'B':
        base = 2;
        break;
      case 'o':
      case 'O':
        base = 8;
        break;
      default:
        base = 0;
    }
    text.remove_prefix(base == 0 ? 1 : 2);
    if (base == 0) base = 8;
  }
  if (text.empty()) return std::nullopt;
  uint64_t value = 0;
  for (char c : text) {
    const auto digit = static_cast<uint64_t>(DigitOf(c));
    if (digit >= base) return std::nullopt;
    if (value > (std::numeric_limits<uint64_t>::max() - digit) / base) return std::nullopt;
    value = value * base + digit;
  }
  constexpr uint64_t kLowest = uint64_t{1} << 63;
  if (negative) {
    if (value > kLowest) return std::nullopt;
    return json(value == kLowest ? std::numeric_limits<int64_t>::min() : -static_cast<int64_t>(value));
  }
  if (value < kLowest) return json(static_cast<int64_t>(value));
  return json(value);
}

/// [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?
bool LooksLikeFloat(absl::string_view text) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t start = i;
    while (i < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[i]))) ++i;
    return i - start;
  };
  if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
  const bool whole = digits() > 0;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0 && !whole) return false;
  } else if (!whole) {
    return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

std::optional<json> Float(absl::string_view text) {
  double value = 0;
  if (!LooksLikeFloat(text) || !absl::SimpleAtod(text, &value) || !std::isfinite(value)) return std::nullopt;
  // On its way through JSON a whole float becomes an integer.
  if (value == std::trunc(value) && std::abs(value) < 9.2e18) return json(static_cast<int64_t>(value));
  return json(value);
}

}  // namespace

json ResolvePlainScalar(absl::string_view text) {
  const auto word = Words().find(text);
  if (word != Words().end()) return word->second;
  const auto first = static_cast<unsigned char>(text[0]);
  if (absl::ascii_isdigit(first) || first == '+' || first == '-' || first == '.') {
    const std::string plain = absl::StrReplaceAll(text, {{"_", ""}});
    if (plain.empty()) return std::string(text);
    if (first != '.') {
      if (std::optional<json> integer = Integer(plain)) return *std::move(integer);
    }
    if (std::optional<json> number = Float(first == '.' ? std::string(text) : plain))
      return *std::move(number);
  }
  return std::string(text);
}

}  // namespace fusion::api
