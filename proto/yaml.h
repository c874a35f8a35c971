// YAML and JSON texts to JSON values, as kubectl reads them, with the line of every value; and JSON values to
// YAML.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace fusion::api {

/// Limits against hostile texts: an alias may stand for many nodes, a nest may be deep.
inline constexpr size_t kMaxYamlBytes = 4 << 20;
inline constexpr size_t kMaxYamlNodes = 100'000;  ///< of a text, aliases expanded
inline constexpr size_t kMaxYamlDepth = 64;

/// One document of a text.
struct YamlDocument {
  int index = 0;  ///< from 1; documents without content count, but are not returned
  int line = 0;   ///< of its first value, from 1
  nlohmann::json value;
  std::map<std::string, int> lines;  ///< field path (proto/field_error.h) -> line

  /// The line of the field, or of the nearest enclosing one that stands in the text.
  int LineOf(absl::string_view field) const;
};

/// What is wrong with a text, and where.
struct YamlError {
  int document = 1;
  int line = 1;
  std::string field;  ///< empty, but for a duplicate key
  std::string message;
};

struct YamlStream {
  std::vector<YamlDocument> documents;  ///< those before the first error
  std::vector<YamlError> errors;        ///< at most one: what follows it cannot be trusted
};

/// Reads all documents. Plain scalars resolve as kubectl resolves them (YAML 1.1): y, n, yes, no, on, off and
/// their like are booleans, 012 and 0o12 are octal, 1_000 is a number, 1e3 is the integer 1000, .nan is a
/// number that no schema takes. Merge keys (<<) are expanded; duplicate keys, tags other than YAML's core
/// ones, bytes that are not UTF-8 and control characters are errors. Never throws.
YamlStream ParseYaml(absl::string_view text);

/// Block style with keys in the order of the value's own; ends with a newline. `Json` is nlohmann::json or
/// ordered_json.
template <typename Json>
std::string ToYaml(const Json& value);

extern template std::string ToYaml(const nlohmann::json&);
extern template std::string ToYaml(const nlohmann::ordered_json&);

/// A plain scalar as kubectl resolves it: null, a boolean, a number, else a string.
nlohmann::json ResolvePlainScalar(absl::string_view text);

}  // namespace fusion::api
