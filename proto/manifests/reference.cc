#include "proto/manifests/reference.h"

#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "proto/field_rules.h"
#include "proto/manifests/resources.h"

namespace fusion::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr char kIntroduction[] =
    R"(<!-- Made by `make manifests` from proto/fusion/v1alpha1/api.proto; do not edit. -->
# API reference: fusion.dev/v1alpha1

Names are written in camel case, enum values by their name. A *quantity* is an integer or a string as `10Gi`, a *duration* a
string as `30s` or `40ms`, a *bandwidth* a string as `8Mbps` (decimal bits per second), a *label* at most 63 of `a-z`, `0-9` and
`-`. Unknown fields and values of another type are refused. A field that is *not supported yet* is part of the API already, and
using it is refused.

)";

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"<", "&lt;"}});
}

std::string Link(const Descriptor& message) {
  return absl::StrCat("[", message.name(), "](#", absl::AsciiStrToLower(message.name()), ")");
}

std::string ValueType(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "boolean";
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return "number";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrCat("`", absl::StrJoin(EnumNames(*field.enum_type()), "` \\| `"), "`");
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Link(*field.message_type());
    case FieldDescriptor::CPPTYPE_STRING:
      break;
    default:
      return "integer";
  }
  switch (OptionsOf(field).format()) {
    case options::FORMAT_QUANTITY:
      return "quantity";
    case options::FORMAT_DURATION:
      return "duration";
    case options::FORMAT_BANDWIDTH:
      return "bandwidth";
    case options::FORMAT_DNS_LABEL:
      return "label";
    default:
      return "string";
  }
}

std::string Type(const FieldDescriptor& field) {
  if (field.is_map()) return absl::StrCat("map of ", ValueType(*field.message_type()->map_value()));
  return field.is_repeated() ? absl::StrCat("list of ", ValueType(field)) : ValueType(field);
}

std::string Bounds(const options::Field& options) {
  const std::string low =
      options.has_minimum()
          ? absl::StrCat(options.exclusive_minimum() ? "more than " : "from ", options.minimum())
          : "";
  const std::string high = options.has_maximum() ? absl::StrCat("to ", options.maximum()) : "";
  return absl::StrCat(low, low.empty() || high.empty() ? "" : " ", high);
}

/// The cell behind the type: comment, then what the options say.
std::string Description(const FieldDescriptor& field) {
  const options::Field& options = OptionsOf(field);
  std::vector<std::string> parts;
  if (const std::string comment = CommentOf(field); !comment.empty()) parts.push_back(Escaped(comment));
  if (options.required()) parts.emplace_back("**Required.**");
  if (const std::string bounds = Bounds(options); !bounds.empty()) {
    parts.push_back(absl::StrCat(bounds.substr(0, 1) == "f"   ? "From"
                                 : bounds.substr(0, 1) == "t" ? "To"
                                                              : "More",
                                 bounds.substr(bounds.find(' ')), "."));
  }
  if (options.has_max_items()) parts.push_back(absl::StrCat("At most ", options.max_items(), " items."));
  if (options.list_map_keys_size() > 0) {
    parts.push_back(absl::StrCat("One item for each ", absl::StrJoin(options.list_map_keys(), ", "), "."));
  }
  if (options.immutable()) parts.emplace_back("Cannot change.");
  if (options.has_unsupported())
    parts.push_back(absl::StrCat("*Not supported yet: ", options.unsupported(), ".*"));
  if (options.unsupported_values_size() > 0) {
    parts.push_back(
        absl::StrCat("*Not supported yet: ", absl::StrJoin(options.unsupported_values(), ", "), ".*"));
  }
  return absl::StrJoin(parts, " ");
}

void Append(const Descriptor& message, std::set<std::string>* seen, std::string* out) {
  if (!seen->insert(message.full_name()).second) return;
  absl::StrAppend(out, "### ", message.name(), "\n\n");
  if (const std::string comment = CommentOf(message); !comment.empty())
    absl::StrAppend(out, Escaped(comment), "\n\n");
  absl::StrAppend(out, "| Field | Type | Default | Meaning |\n|---|---|---|---|\n");
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const std::string& value = OptionsOf(field).default_value();
    absl::StrAppend(out, "| `", field.json_name(), "` | ", Type(field), " | ",
                    value.empty() ? "" : absl::StrCat("`", absl::StrReplaceAll(value, {{"\"", ""}}), "`"),
                    " | ", Description(field), " |\n");
  }
  for (int i = 0; i < message.options().ExtensionSize(options::rule); ++i) {
    absl::StrAppend(out, i == 0 ? "\nRules:\n\n" : "", "- ",
                    message.options().GetExtension(options::rule, i).message(), "\n");
  }
  absl::StrAppend(out, "\n");
  for (int i = 0; i < message.field_count(); ++i) {
    const Descriptor* nested = message.field(i)->message_type();
    if (nested != nullptr && !message.field(i)->is_map()) Append(*nested, seen, out);
  }
}

}  // namespace

std::string ApiReference(const google::protobuf::DescriptorPool& pool) {
  std::string out = kIntroduction;
  std::set<std::string> seen;
  for (const ResourceDefinition& definition : ResourceDefinitions()) {
    absl::StrAppend(&out, "## ", definition.plural, "\n\n");
    Append(*pool.FindMessageTypeByName(definition.message), &seen, &out);
  }
  while (out.size() > 1 && out[out.size() - 2] == '\n') out.pop_back();
  return out;
}

}  // namespace fusion::api
