#include "proto/manifests/crd.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/field_rules.h"
#include "proto/yaml.h"

namespace fusion::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using Json = nlohmann::ordered_json;

/// A bound as people write it: without a point where it is whole.
Json BoundNumber(double value) {
  if (value == std::trunc(value) && std::abs(value) < 9e15) return static_cast<int64_t>(value);
  return value;
}

Json Rule(const std::string& expression, const std::string& message) {
  return {{"rule", expression}, {"message", message}};
}

void AddBounds(const options::Field& options, Json* schema) {
  if (options.has_minimum()) (*schema)["minimum"] = BoundNumber(options.minimum());
  if (options.exclusive_minimum()) (*schema)["exclusiveMinimum"] = true;
  if (options.has_maximum()) (*schema)["maximum"] = BoundNumber(options.maximum());
}

void AddString(const FieldDescriptor& field, Json* schema) {
  const options::Field& options = OptionsOf(field);
  if (options.format() == options::FORMAT_QUANTITY) {
    (*schema)["x-kubernetes-int-or-string"] = true;
    (*schema)["anyOf"] = {{{"type", "integer"}}, {{"type", "string"}}};
  } else {
    (*schema)["type"] = "string";
  }
  if (options.format() == options::FORMAT_URI) (*schema)["minLength"] = 1;
  if (const int64_t length = MaxLength(field); length > 0) (*schema)["maxLength"] = length;
  if (options.has_pattern()) (*schema)["pattern"] = options.pattern();
  if (const absl::string_view pattern = FormatPattern(options.format()); !pattern.empty()) {
    (*schema)["pattern"] = std::string(pattern);
  }
}

/// The schema of one value: of a singular field, an item or a map's value.
Json ValueSchema(const FieldDescriptor& field) {
  Json schema = Json::object();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      schema["type"] = "integer";
      schema["format"] = "int64";
      AddBounds(OptionsOf(field), &schema);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      schema["type"] = "number";
      schema["format"] = "double";
      AddBounds(OptionsOf(field), &schema);
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      schema["type"] = "boolean";
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      schema["type"] = "string";
      schema["enum"] = EnumNames(*field.enum_type());
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      AddString(field, &schema);
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageSchema(*field.message_type());
  }
  return schema;
}

Json ListSchema(const FieldDescriptor& field) {
  const options::Field& options = OptionsOf(field);
  Json schema = {{"type", "array"}};
  if (options.has_min_items()) schema["minItems"] = options.min_items();
  if (options.has_max_items()) schema["maxItems"] = options.max_items();
  if (options.list_map_keys_size() > 0) {
    schema["x-kubernetes-list-type"] = "map";
    for (const std::string& key : options.list_map_keys())
      schema["x-kubernetes-list-map-keys"].push_back(key);
  } else {
    schema["x-kubernetes-list-type"] = "atomic";
  }
  schema["items"] = ValueSchema(field);
  return schema;
}

Json MapSchema(const FieldDescriptor& field) {
  Json value = ValueSchema(*field.message_type()->map_value());
  if (const int64_t length = MaxLength(field); length > 0) value["maxLength"] = length;
  Json schema = {{"type", "object"}};
  if (OptionsOf(field).has_max_items()) schema["maxProperties"] = OptionsOf(field).max_items();
  schema["additionalProperties"] = std::move(value);
  return schema;
}

Json FieldSchema(const FieldDescriptor& field) {
  Json schema = field.is_map()        ? MapSchema(field)
                : field.is_repeated() ? ListSchema(field)
                                      : ValueSchema(field);
  std::string description = CommentOf(field);
  const options::Field& options = OptionsOf(field);
  if (options.has_unsupported()) {
    absl::StrAppend(&description, description.empty() ? "" : " ",
                    "Not supported yet: ", options.unsupported(), ".");
  }
  if (!description.empty()) schema["description"] = description;
  if (options.has_default_value()) schema["default"] = Json::parse(options.default_value());
  if (options.immutable()) {
    schema["x-kubernetes-validations"].push_back(
        Rule("self == oldSelf", absl::StrCat(field.json_name(), " cannot change")));
  }
  return schema;
}

}  // namespace

Json MessageSchema(const Descriptor& message) {
  Json schema = {{"type", "object"}};
  if (const std::string comment = CommentOf(message); !comment.empty()) schema["description"] = comment;
  Json required = Json::array();
  Json rules = Json::array();
  Json properties = Json::object();
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const options::Field& options = OptionsOf(field);
    const std::string& name = field.json_name();
    properties[name] = FieldSchema(field);
    if (options.required()) required.push_back(name);
    if (options.immutable() && !options.required() && !options.has_default_value()) {
      // A rule on the field itself is silent when the field comes or goes.
      rules.push_back(Rule(absl::StrCat("has(self.", name, ") == has(oldSelf.", name, ")"),
                           absl::StrCat(name, " cannot be added or removed")));
    }
  }
  for (int i = 0; i < message.options().ExtensionSize(options::rule); ++i) {
    const options::Rule& rule = message.options().GetExtension(options::rule, i);
    rules.push_back(Rule(rule.expression(), rule.message()));
  }
  if (!required.empty()) schema["required"] = std::move(required);
  if (!rules.empty()) schema["x-kubernetes-validations"] = std::move(rules);
  schema["properties"] = std::move(properties);
  return schema;
}

std::string CrdYaml(const ResourceDefinition& definition, const Descriptor& message) {
  Json schema = MessageSchema(message);
  Json& properties = schema["properties"];
  properties["apiVersion"] = {{"type", "string"}};
  properties["kind"] = {{"type", "string"}};
  // Of metadata an apiserver lets a schema restrict the name alone.
  Json name = properties["metadata"]["properties"]["name"];
  properties["metadata"] = {{"type", "object"}, {"properties", {{"name", std::move(name)}}}};

  Json columns = Json::array();
  for (const PrinterColumn& column : definition.columns) {
    columns.push_back({{"name", column.name}, {"type", column.type}, {"jsonPath", column.path}});
  }
  const Json version = {{"name", "v1alpha1"},
                        {"served", true},
                        {"storage", true},
                        {"subresources", {{"status", Json::object()}}},
                        {"additionalPrinterColumns", std::move(columns)},
                        {"schema", {{"openAPIV3Schema", std::move(schema)}}}};
  const Json crd = {{"apiVersion", "apiextensions.k8s.io/v1"},
                    {"kind", "CustomResourceDefinition"},
                    {"metadata", {{"name", absl::StrCat(definition.plural, ".fusion.dev")}}},
                    {"spec",
                     {{"group", "fusion.dev"},
                      {"scope", definition.namespaced ? "Namespaced" : "Cluster"},
                      {"names",
                       {{"kind", definition.kind},
                        {"listKind", absl::StrCat(definition.kind, "List")},
                        {"plural", definition.plural},
                        {"singular", definition.singular},
                        {"shortNames", {definition.short_name}},
                        {"categories", {"fusion"}}}},
                      {"versions", {version}}}}};
  return absl::StrCat("# Made by `make manifests` from proto/fusion/v1alpha1/api.proto; do not edit.\n",
                      ToYaml(crd));
}

}  // namespace fusion::api
