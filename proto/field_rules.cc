#include "proto/field_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/quantity.h"
#include "re2/re2.h"

namespace fusion::api {
namespace {

using google::protobuf::FieldDescriptor;

bool Matches(absl::string_view value, absl::string_view pattern) {
  re2::RE2::Options options;
  options.set_log_errors(false);
  const re2::RE2 expression(re2::StringPiece(pattern.data(), pattern.size()), options);
  return re2::RE2::FullMatch(re2::StringPiece(value.data(), value.size()), expression);
}

bool HasControlCharacter(absl::string_view value) {
  return std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

std::string CheckFormat(options::Format format, absl::string_view value) {
  absl::Status status;
  switch (format) {
    case options::FORMAT_QUANTITY:
      status = ParseQuantity(value).status();
      break;
    case options::FORMAT_DURATION:
      status = ParseDuration(value).status();
      break;
    case options::FORMAT_BANDWIDTH:
      status = ParseBandwidth(value).status();
      break;
    case options::FORMAT_DNS_LABEL:
      if (!Matches(value, FormatPattern(format))) {
        return absl::StrCat(
            "\"", value,
            "\" is not a DNS label; use at most 63 of a-z, 0-9 and -, starting and ending with a "
            "letter or digit");
      }
      break;
    case options::FORMAT_URI:
      if (value.empty()) return "must not be empty; give a path or SCHEME://…";
      if (HasControlCharacter(value)) return "has a control character; give a path or SCHEME://…";
      break;
    default:
      break;
  }
  return std::string(status.message());
}

}  // namespace

const options::Field& OptionsOf(const FieldDescriptor& field) {
  return field.options().GetExtension(options::field);
}

absl::string_view FormatPattern(options::Format format) {
  switch (format) {
    case options::FORMAT_QUANTITY:
      return "^[0-9]+(\\.[0-9]+)?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$";
    case options::FORMAT_DURATION:
      return "^([0-9]+(\\.[0-9]+)?(ns|us|ms|s|m|h))+$";
    case options::FORMAT_BANDWIDTH:
      return "^[0-9]+(\\.[0-9]+)?[kMGT]?bps$";
    case options::FORMAT_DNS_LABEL:
      return "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$";
    default:
      return "";
  }
}

int64_t MaxLength(const FieldDescriptor& field) {
  const options::Field& options = OptionsOf(field);
  if (options.has_max_length()) return options.max_length();
  switch (options.format()) {
    case options::FORMAT_QUANTITY:
    case options::FORMAT_DURATION:
    case options::FORMAT_BANDWIDTH:
      return 32;
    case options::FORMAT_DNS_LABEL:
      return 63;
    default:
      return 0;
  }
}

std::vector<std::string> EnumNames(const google::protobuf::EnumDescriptor& descriptor) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor.value_count(); ++i) {
    if (descriptor.value(i)->number() != 0) names.push_back(descriptor.value(i)->name());
  }
  return names;
}

std::string CheckString(const FieldDescriptor& field, absl::string_view value) {
  const options::Field& options = OptionsOf(field);
  const int64_t max_length = MaxLength(field);
  // The apiserver counts characters, not bytes.
  const int64_t length = std::count_if(value.begin(), value.end(), [](char c) { return (c & 0xC0) != 0x80; });
  if (max_length > 0 && length > max_length) {
    return absl::StrCat("has ", length, " characters; at most ", max_length, " are allowed");
  }
  if (options.has_pattern() && !Matches(value, options.pattern())) {
    return absl::StrCat("\"", value, "\" does not match ", options.pattern());
  }
  const absl::string_view pattern = FormatPattern(options.format());
  std::string wrong = CheckFormat(options.format(), value);
  if (wrong.empty() && !pattern.empty() && !Matches(value, pattern)) {
    return absl::StrCat("\"", value, "\" does not match ", pattern);
  }
  return wrong;
}

std::string CheckBounds(const FieldDescriptor& field, double value) {
  const options::Field& options = OptionsOf(field);
  if (options.has_minimum() &&
      (options.exclusive_minimum() ? value <= options.minimum() : value < options.minimum())) {
    return absl::StrCat("is ", value, "; must be ", options.exclusive_minimum() ? "more than " : "at least ",
                        options.minimum());
  }
  if (options.has_maximum() && value > options.maximum()) {
    return absl::StrCat("is ", value, "; must be at most ", options.maximum());
  }
  return "";
}

}  // namespace fusion::api
