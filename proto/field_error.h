// A finding about one field of an object, and the paths that name fields.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fusion::api {

/// `field` is a path from the object's root, as spec.links[1].peer or metadata.labels["a.b"]; empty means the
/// object itself. `message` says what is wrong and, after a semicolon, what to do.
struct FieldError {
  std::string field;
  std::string message;

  bool operator==(const FieldError&) const = default;
};

using FieldErrors = std::vector<FieldError>;

/// The path of a member: ".key" after `path`, or ["key"] where the key is not an identifier.
std::string MemberPath(absl::string_view path, absl::string_view key);

/// The path of a list's item: [index] after `path`.
std::string ItemPath(absl::string_view path, size_t index);

/// OK without errors, else INVALID_ARGUMENT with all of them: "spec.x: what is wrong; spec.y[0]: …".
absl::Status ToStatus(const FieldErrors& errors);

}  // namespace fusion::api
