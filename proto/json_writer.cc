#include <charconv>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/argument_json.h"
#include "proto/field_rules.h"
#include "proto/json_mapper.h"

namespace fusion::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::json;

/// The double whose shortest text is the shortest text of `value`.
double Widened(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  double wide = value;
  if (error == std::errc()) std::from_chars(text, end, wide);
  return wide;
}

json Number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

/// An integer's canonical text as a number, all else as a string.
json Quantity(const std::string& text) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && absl::StrCat(number) == text) return number;
  return text;
}

json Text(const FieldDescriptor& field, const std::string& text) {
  if (field.type() == FieldDescriptor::TYPE_BYTES) return absl::Base64Escape(text);
  if (OptionsOf(field).format() == options::FORMAT_QUANTITY) return Quantity(text);
  return text;
}

/// The value of a singular field; null where JSON has none for it (non-finite, the zero of an enum).
json Singular(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(Widened(reflection.GetFloat(message, &field)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = reflection.GetEnumValue(message, &field);
      return number == 0 ? json(nullptr) : json(reflection.GetEnum(message, &field)->name());
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(field, reflection.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(reflection.GetMessage(message, &field));
  }
  return nullptr;
}

json Item(const Message& message, const FieldDescriptor& field, int i) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetRepeatedInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetRepeatedInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetRepeatedUInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetRepeatedUInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(reflection.GetRepeatedDouble(message, &field, i));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(Widened(reflection.GetRepeatedFloat(message, &field, i)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetRepeatedBool(message, &field, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.GetRepeatedEnum(message, &field, i)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(field, reflection.GetRepeatedString(message, &field, i));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(reflection.GetRepeatedMessage(message, &field, i));
  }
  return nullptr;
}

json List(const Message& message, const FieldDescriptor& field) {
  json list = json::array();
  const int size = message.GetReflection()->FieldSize(message, &field);
  for (int i = 0; i < size; ++i) list.push_back(Item(message, field, i));
  return list;
}

json Map(const Message& message, const FieldDescriptor& field) {
  json object = json::object();
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    const json key = Singular(entry, *field.message_type()->map_key());
    object[key.is_string() ? key.get<std::string>() : key.dump()] =
        Singular(entry, *field.message_type()->map_value());
  }
  return object;
}

/// Whether the message's scalars have no presence: then all of it is printed, empty lists too.
bool PrintsEverything(const Descriptor& descriptor) {
  for (int i = 0; i < descriptor.field_count(); ++i) {
    if (!descriptor.field(i)->is_repeated() && !descriptor.field(i)->has_presence()) return true;
  }
  return false;
}

void FindUnsupported(const Message& message, const std::string& path, FieldErrors* errors);

void FindUnsupportedIn(const Message& message, const FieldDescriptor& field, const std::string& path,
                       FieldErrors* errors) {
  const options::Field& options = OptionsOf(field);
  const Reflection& reflection = *message.GetReflection();
  const bool used =
      field.is_repeated() ? reflection.FieldSize(message, &field) > 0 : reflection.HasField(message, &field);
  if (!used) return;
  const json value = field.is_map()        ? Map(message, field)
                     : field.is_repeated() ? List(message, field)
                                           : Singular(message, field);
  if (options.has_default_value() && value == json::parse(options.default_value(), nullptr, false)) return;
  if (options.has_unsupported()) {
    errors->push_back({path, absl::StrCat("not supported yet: ", options.unsupported(), "; leave it out")});
    return;
  }
  for (const std::string& name : options.unsupported_values()) {
    if (value == name)
      errors->push_back({path, absl::StrCat("not supported yet: ", name, "; choose another value")});
  }
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field.is_map()) return;
  if (!field.is_repeated()) {
    FindUnsupported(reflection.GetMessage(message, &field), path, errors);
    return;
  }
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    FindUnsupported(reflection.GetRepeatedMessage(message, &field, i), ItemPath(path, static_cast<size_t>(i)),
                    errors);
  }
}

void FindUnsupported(const Message& message, const std::string& path, FieldErrors* errors) {
  const Descriptor& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    FindUnsupportedIn(message, field, MemberPath(path, field.json_name()), errors);
  }
}

}  // namespace

json ToJson(const Message& message) {
  const Descriptor& descriptor = *message.GetDescriptor();
  if (HasArgumentForm(descriptor)) return WriteArgumentForm(message);
  const bool everything = PrintsEverything(descriptor);
  json object = json::object();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (field.is_repeated()) {
      if (!everything && message.GetReflection()->FieldSize(message, &field) == 0) continue;
      object[field.json_name()] = field.is_map() ? Map(message, field) : List(message, field);
      continue;
    }
    if (field.has_presence() && !message.GetReflection()->HasField(message, &field)) continue;
    json value = Singular(message, field);
    if (!value.is_null()) object[field.json_name()] = std::move(value);
  }
  return object;
}

FieldErrors CheckSupported(const Message& message) {
  FieldErrors errors;
  FindUnsupported(message, "", &errors);
  return errors;
}

}  // namespace fusion::api
