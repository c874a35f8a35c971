#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/yaml.h"

namespace fusion::api {
namespace {

constexpr size_t kLongestPlainKey = 1000;  // YAML's limit is 1024 characters

/// Whether the text can stand without quotes and still be read as itself.
bool IsPlain(const std::string& text) {
  if (text.empty() || !absl::ascii_isalpha(static_cast<unsigned char>(text[0])) || text.back() == ' ')
    return false;
  const bool safe = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == ' ' || c == '.' || c == '-' || c == '_' || c == '/';
  });
  return safe && ResolvePlainScalar(text).is_string();
}

template <typename Json>
std::string Scalar(const Json& value) {
  if (value.is_string()) {
    const auto& text = value.template get_ref<const std::string&>();
    if (IsPlain(text)) return text;
  }
  if (value.is_number_float() && !std::isfinite(value.template get<double>())) return "null";
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename Json>
void Write(const Json& value, int indent, std::string* out);

/// A member or item after its "key:" or "-".
template <typename Json>
void WriteNested(const Json& value, int indent, bool item, std::string* out) {
  if (!value.is_structured() || value.empty()) {
    absl::StrAppend(out, " ", Scalar(value), "\n");
  } else if (item) {
    std::string nested;
    Write(value, indent, &nested);
    absl::StrAppend(out, " ", nested.substr(static_cast<size_t>(indent)));
  } else {
    out->push_back('\n');
    Write(value, indent, out);
  }
}

template <typename Json>
void Write(const Json& value, int indent, std::string* out) {
  const std::string margin(static_cast<size_t>(indent), ' ');
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, member] : value.items()) {
      const std::string text = Scalar(Json(key));
      // A longer key needs a mark before it.
      text.size() > kLongestPlainKey ? absl::StrAppend(out, margin, "? ", text, "\n", margin, ":")
                                     : absl::StrAppend(out, margin, text, ":");
      WriteNested(member, member.is_array() ? indent : indent + 2, false, out);
    }
  } else if (value.is_array() && !value.empty()) {
    for (const auto& item : value) {
      absl::StrAppend(out, margin, "-");
      WriteNested(item, indent + 2, true, out);
    }
  } else {
    absl::StrAppend(out, margin, Scalar(value), "\n");
  }
}

}  // namespace

template <typename Json>
std::string ToYaml(const Json& value) {
  std::string out;
  Write(value, 0, &out);
  return out;
}

template std::string ToYaml(const nlohmann::json&);
template std::string ToYaml(const nlohmann::ordered_json&);

}  // namespace fusion::api
