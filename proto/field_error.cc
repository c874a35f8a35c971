#include "proto/field_error.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fusion::api {
namespace {

bool IsIdentifier(absl::string_view key) {
  if (key.empty() || absl::ascii_isdigit(static_cast<unsigned char>(key[0]))) return false;
  for (unsigned char c : key) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '-') return false;
  }
  return true;
}

}  // namespace

std::string MemberPath(absl::string_view path, absl::string_view key) {
  if (!IsIdentifier(key)) return absl::StrCat(path, "[\"", absl::Utf8SafeCEscape(key), "\"]");
  return path.empty() ? std::string(key) : absl::StrCat(path, ".", key);
}

std::string ItemPath(absl::string_view path, size_t index) { return absl::StrCat(path, "[", index, "]"); }

absl::Status ToStatus(const FieldErrors& errors) {
  if (errors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrJoin(errors, "; ", [](std::string* out, const FieldError& error) {
        absl::StrAppend(out, error.field, error.field.empty() ? "" : ": ", error.message);
      }));
}

}  // namespace fusion::api
