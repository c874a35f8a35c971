#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "proto/argument_json.h"
#include "proto/field_rules.h"
#include "proto/json_mapper.h"
#include "proto/suggestion.h"

namespace fusion::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::json;

/// "a list", "the string \"8\"": what stands where something else should.
std::string Describe(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "a list";
    case json::value_t::string: {
      const std::string text = absl::Utf8SafeCEscape(value.get_ref<const std::string&>());
      return absl::StrCat("the string \"", text.size() > 40 ? text.substr(0, 40) + "…" : text, "\"");
    }
    case json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case json::value_t::number_float:
      if (std::isnan(value.get<double>())) return "NaN";
      if (std::isinf(value.get<double>())) return value.get<double>() > 0 ? "infinity" : "-infinity";
      return absl::StrCat("the number ", value.dump());
    default:
      return absl::StrCat("the number ", value.dump());
  }
}

/// An integer in [low, high]. Numbers with a zero fraction count: YAML's 1e3 reaches an apiserver as 1000.
std::optional<int64_t> IntegerOf(const json& value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) <= kExact) || number != std::trunc(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

/// Reads one document; collects errors and goes on.
class Reader {
 public:
  Reader(Mode mode, FieldErrors* errors) : mode_(mode), errors_(*errors) {}

  void ReadMessage(const json& value, const std::string& path, Message* message);

 private:
  bool strict() const { return mode_ == Mode::kStrict; }
  void Error(const std::string& path, std::string text) { errors_.push_back({path, std::move(text)}); }
  void WrongType(const std::string& path, absl::string_view expected, const json& value) {
    Error(path, absl::StrCat("must be ", expected, ", not ", Describe(value)));
  }

  void ReadField(const json& value, const std::string& path, const FieldDescriptor& field, Message* message);
  void ReadList(const json& value, const std::string& path, const FieldDescriptor& field, Message* message);
  void ReadMap(const json& value, const std::string& path, const FieldDescriptor& field, Message* message);
  void ReadSingular(const json& value, const std::string& path, const FieldDescriptor& field,
                    Message* message);
  /// Sets the field, or adds to it where it is repeated; false when the value is in error.
  bool ReadScalar(const json& value, const std::string& path, const FieldDescriptor& field, Message* message);
  bool ReadInteger(const json& value, const std::string& path, const FieldDescriptor& field,
                   Message* message);
  bool ReadDouble(const json& value, const std::string& path, const FieldDescriptor& field, Message* message);
  bool ReadString(const json& value, const std::string& path, const FieldDescriptor& field, Message* message);
  bool ReadEnum(const json& value, const std::string& path, const FieldDescriptor& field, Message* message);
  void AddPlaceholder(const FieldDescriptor& field, Message* message);
  void CheckListKeys(const std::string& path, const FieldDescriptor& field, const Message& message);
  void UnknownField(const std::string& path, const std::string& key, const Descriptor& descriptor);

  const Mode mode_;
  FieldErrors& errors_;
};

const FieldDescriptor* FindField(const Descriptor& descriptor, const std::string& json_name) {
  for (int i = 0; i < descriptor.field_count(); ++i) {
    if (descriptor.field(i)->json_name() == json_name) return descriptor.field(i);
  }
  return nullptr;
}

void Reader::ReadMessage(const json& value, const std::string& path, Message* message) {
  const Descriptor& descriptor = *message->GetDescriptor();
  if (HasArgumentForm(descriptor)) {
    ReadArgumentForm(value, path, mode_, message, &errors_);
    return;
  }
  if (!value.is_object()) {
    WrongType(path, "an object", value);
    return;
  }
  for (const auto& [key, member] : value.items()) {
    const FieldDescriptor* field = FindField(descriptor, key);
    if (field == nullptr) {
      if (strict()) UnknownField(path, key, descriptor);
      continue;
    }
    // An apiserver drops a null where a default stands ready, and refuses it elsewhere.
    if (member.is_null() && (OptionsOf(*field).has_default_value() || !strict())) continue;
    ReadField(member, MemberPath(path, key), *field, message);
  }
  if (!strict()) return;
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (OptionsOf(field).required() && !value.contains(field.json_name())) {
      Error(MemberPath(path, field.json_name()), "is required");
    }
  }
}

void Reader::UnknownField(const std::string& path, const std::string& key, const Descriptor& descriptor) {
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(descriptor.field_count()));
  for (int i = 0; i < descriptor.field_count(); ++i) names.push_back(descriptor.field(i)->json_name());
  const std::string closest = ClosestName(key, names);
  Error(MemberPath(path, key), closest.empty()
                                   ? absl::StrCat("unknown field; known are ", absl::StrJoin(names, ", "))
                                   : absl::StrCat("unknown field; did you mean ", closest, "?"));
}

void Reader::ReadField(const json& value, const std::string& path, const FieldDescriptor& field,
                       Message* message) {
  if (field.is_map()) {
    ReadMap(value, path, field, message);
  } else if (field.is_repeated()) {
    ReadList(value, path, field, message);
  } else {
    ReadSingular(value, path, field, message);
  }
}

void Reader::ReadSingular(const json& value, const std::string& path, const FieldDescriptor& field,
                          Message* message) {
  const auto* oneof = field.real_containing_oneof();
  if (oneof != nullptr && message->GetReflection()->HasOneof(*message, oneof)) {
    const FieldDescriptor* other = message->GetReflection()->GetOneofFieldDescriptor(*message, oneof);
    Error(path, absl::StrCat("excludes ", other->json_name(), "; give one of them"));
    return;
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    ReadMessage(value, path, message->GetReflection()->MutableMessage(message, &field));
  } else {
    ReadScalar(value, path, field, message);
  }
}

void Reader::ReadList(const json& value, const std::string& path, const FieldDescriptor& field,
                      Message* message) {
  if (!value.is_array()) {
    WrongType(path, "a list", value);
    return;
  }
  const options::Field& options = OptionsOf(field);
  const auto size = static_cast<int64_t>(value.size());
  if (strict() && options.has_max_items() && size > options.max_items()) {
    Error(path, absl::StrCat("has ", size, " items; at most ", options.max_items(), " are allowed"));
    return;
  }
  if (strict() && options.has_min_items() && size < options.min_items()) {
    Error(path, absl::StrCat("has ", size, " items; at least ", options.min_items(), " are needed"));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string item_path = ItemPath(path, i);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      ReadMessage(value[i], item_path, message->GetReflection()->AddMessage(message, &field));
    } else if (!ReadScalar(value[i], item_path, field, message)) {
      AddPlaceholder(field, message);
    }
  }
  if (strict() && options.list_map_keys_size() > 0) CheckListKeys(path, field, *message);
}

/// Keeps the indexes of a list whose item is in error.
void Reader::AddPlaceholder(const FieldDescriptor& field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.AddInt32(message, &field, 0);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.AddInt64(message, &field, 0);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.AddUInt32(message, &field, 0);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.AddUInt64(message, &field, 0);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.AddDouble(message, &field, 0);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.AddFloat(message, &field, 0);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.AddBool(message, &field, false);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.AddEnumValue(message, &field, 0);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.AddString(message, &field, "");
    case FieldDescriptor::CPPTYPE_MESSAGE:
      reflection.AddMessage(message, &field);
  }
}

/// The text of a key field: its value, or its default.
std::string KeyText(const Message& item, const FieldDescriptor& key) {
  if (!item.GetReflection()->HasField(item, &key)) {
    const json value = json::parse(OptionsOf(key).default_value(), nullptr, false);
    return value.is_string() ? value.get<std::string>() : "";
  }
  if (key.cpp_type() == FieldDescriptor::CPPTYPE_ENUM)
    return item.GetReflection()->GetEnum(item, &key)->name();
  return item.GetReflection()->GetString(item, &key);
}

void Reader::CheckListKeys(const std::string& path, const FieldDescriptor& field, const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  std::map<std::vector<std::string>, int> seen;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& item = reflection.GetRepeatedMessage(message, &field, i);
    std::vector<std::string> key;
    bool complete = true;
    for (const std::string& name : OptionsOf(field).list_map_keys()) {
      const FieldDescriptor& key_field = *FindField(*field.message_type(), name);
      key.push_back(KeyText(item, key_field));
      if (key.back().empty()) complete = false;
    }
    if (!complete) continue;  // a missing key is an error of its own
    const auto [other, inserted] = seen.emplace(key, i);
    if (!inserted) {
      Error(ItemPath(path, static_cast<size_t>(i)),
            absl::StrCat("has the same ", absl::StrJoin(OptionsOf(field).list_map_keys(), ", "), " (",
                         absl::StrJoin(key, ", "), ") as item ", other->second, "; remove one of them"));
    }
  }
}

void Reader::ReadMap(const json& value, const std::string& path, const FieldDescriptor& field,
                     Message* message) {
  if (!value.is_object()) {
    WrongType(path, "an object", value);
    return;
  }
  const options::Field& options = OptionsOf(field);
  if (strict() && options.has_max_items() && static_cast<int64_t>(value.size()) > options.max_items()) {
    Error(path,
          absl::StrCat("has ", value.size(), " entries; at most ", options.max_items(), " are allowed"));
    return;
  }
  const FieldDescriptor& key_field = *field.message_type()->map_key();
  const FieldDescriptor& value_field = *field.message_type()->map_value();
  for (const auto& [key, member] : value.items()) {
    const std::string member_path = MemberPath(path, key);
    Message* entry = message->GetReflection()->AddMessage(message, &field);
    json key_value = key;
    int64_t number = 0;
    if (key_field.cpp_type() != FieldDescriptor::CPPTYPE_STRING && absl::SimpleAtoi(key, &number))
      key_value = number;
    const bool ok = ReadScalar(key_value, member_path, key_field, entry);
    const size_t errors = errors_.size();
    ReadSingular(member, member_path, value_field, entry);
    // Options stand on the map's field; its entries have none.
    const std::string wrong =
        strict() && member.is_string() ? CheckString(field, member.get<std::string>()) : "";
    if (!wrong.empty()) Error(member_path, wrong);
    if (!ok || errors_.size() > errors) message->GetReflection()->RemoveLast(message, &field);
  }
}

bool Reader::ReadScalar(const json& value, const std::string& path, const FieldDescriptor& field,
                        Message* message) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return ReadInteger(value, path, field, message);
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return ReadDouble(value, path, field, message);
    case FieldDescriptor::CPPTYPE_STRING:
      return ReadString(value, path, field, message);
    case FieldDescriptor::CPPTYPE_ENUM:
      return ReadEnum(value, path, field, message);
    case FieldDescriptor::CPPTYPE_BOOL:
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return false;
  }
  if (!value.is_boolean()) {
    WrongType(path, "true or false", value);
    return false;
  }
  const Reflection& reflection = *message->GetReflection();
  if (field.is_repeated()) {
    reflection.AddBool(message, &field, value.get<bool>());
  } else {
    reflection.SetBool(message, &field, value.get<bool>());
  }
  return true;
}

bool Reader::ReadInteger(const json& value, const std::string& path, const FieldDescriptor& field,
                         Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const bool add = field.is_repeated();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64 && value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    add ? reflection.AddUInt64(message, &field, number) : reflection.SetUInt64(message, &field, number);
    return true;
  }
  const std::optional<int64_t> number = IntegerOf(value);
  if (!number.has_value()) {
    const bool huge =
        value.is_number_unsigned() || (value.is_number_float() && std::isfinite(value.get<double>()) &&
                                       value.get<double>() == std::trunc(value.get<double>()));
    huge ? Error(path, absl::StrCat("is out of range; ", Describe(value), " does not fit 64 bits"))
         : WrongType(path, "an integer", value);
    return false;
  }
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    low = std::numeric_limits<int32_t>::min();
    high = std::numeric_limits<int32_t>::max();
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    low = 0;
    high = std::numeric_limits<uint32_t>::max();
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
    low = 0;
  }
  if (*number < low || *number > high) {
    Error(path, absl::StrCat("is out of range; ", *number, " is not in ", low, " … ", high));
    return false;
  }
  const std::string wrong = strict() ? CheckBounds(field, static_cast<double>(*number)) : "";
  if (!wrong.empty()) {
    Error(path, wrong);
    return false;
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      const auto narrow = static_cast<int32_t>(*number);
      add ? reflection.AddInt32(message, &field, narrow) : reflection.SetInt32(message, &field, narrow);
      break;
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      const auto narrow = static_cast<uint32_t>(*number);
      add ? reflection.AddUInt32(message, &field, narrow) : reflection.SetUInt32(message, &field, narrow);
      break;
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      const auto wide = static_cast<uint64_t>(*number);
      add ? reflection.AddUInt64(message, &field, wide) : reflection.SetUInt64(message, &field, wide);
      break;
    }
    default:
      add ? reflection.AddInt64(message, &field, *number) : reflection.SetInt64(message, &field, *number);
  }
  return true;
}

bool Reader::ReadDouble(const json& value, const std::string& path, const FieldDescriptor& field,
                        Message* message) {
  if (!value.is_number()) {
    WrongType(path, "a number", value);
    return false;
  }
  const double number = value.get<double>();
  if (!std::isfinite(number)) {
    Error(path, absl::StrCat("must be a finite number, not ", Describe(value)));
    return false;
  }
  const std::string wrong = strict() ? CheckBounds(field, number) : "";
  if (!wrong.empty()) {
    Error(path, wrong);
    return false;
  }
  const Reflection& reflection = *message->GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
    const auto narrow = static_cast<float>(number);
    field.is_repeated() ? reflection.AddFloat(message, &field, narrow)
                        : reflection.SetFloat(message, &field, narrow);
  } else {
    field.is_repeated() ? reflection.AddDouble(message, &field, number)
                        : reflection.SetDouble(message, &field, number);
  }
  return true;
}

bool Reader::ReadString(const json& value, const std::string& path, const FieldDescriptor& field,
                        Message* message) {
  std::string text;
  const bool quantity = OptionsOf(field).format() == options::FORMAT_QUANTITY;
  if (value.is_string()) {
    text = value.get<std::string>();
  } else if (quantity && IntegerOf(value).has_value()) {
    text = absl::StrCat(*IntegerOf(value));
  } else {
    WrongType(path, quantity ? "an integer or a string as 10Gi" : "a string", value);
    return false;
  }
  const std::string wrong = strict() ? CheckString(field, text) : "";
  if (!wrong.empty()) {
    Error(path, wrong);
    return false;
  }
  if (field.type() == FieldDescriptor::TYPE_BYTES) {
    std::string bytes;
    if (!absl::Base64Unescape(text, &bytes)) {
      Error(path, "is not base64");
      return false;
    }
    text = std::move(bytes);
  }
  const Reflection& reflection = *message->GetReflection();
  field.is_repeated() ? reflection.AddString(message, &field, std::move(text))
                      : reflection.SetString(message, &field, std::move(text));
  return true;
}

bool Reader::ReadEnum(const json& value, const std::string& path, const FieldDescriptor& field,
                      Message* message) {
  if (!value.is_string()) {
    WrongType(path, absl::StrCat("one of ", absl::StrJoin(EnumNames(*field.enum_type()), ", ")), value);
    return false;
  }
  const EnumValueDescriptor* found = field.enum_type()->FindValueByName(value.get_ref<const std::string&>());
  if (found == nullptr || found->number() == 0) {
    if (!strict()) return false;  // a newer version's value
    WrongType(path, absl::StrCat("one of ", absl::StrJoin(EnumNames(*field.enum_type()), ", ")), value);
    return false;
  }
  const Reflection& reflection = *message->GetReflection();
  field.is_repeated() ? reflection.AddEnum(message, &field, found)
                      : reflection.SetEnum(message, &field, found);
  return true;
}

}  // namespace

FieldErrors ReadJson(const json& json, Mode mode, Message* message) {
  message->Clear();
  FieldErrors errors;
  Reader(mode, &errors).ReadMessage(json, "", message);
  return errors;
}

absl::Status FromJson(const json& json, Mode mode, Message* message) {
  return ToStatus(ReadJson(json, mode, message));
}

void ApplyDefaults(Message* message) {
  const Descriptor& descriptor = *message->GetDescriptor();
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (!field.is_repeated() && OptionsOf(field).has_default_value() &&
        !reflection.HasField(*message, &field)) {
      FieldErrors errors;
      const json value = json::parse(OptionsOf(field).default_value(), nullptr, false);
      const std::unique_ptr<Message> defaults(message->New());
      Reader(Mode::kLenient, &errors).ReadMessage({{field.json_name(), value}}, "", defaults.get());
      message->MergeFrom(*defaults);
    }
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field.is_map()) continue;
    if (field.is_repeated()) {
      for (int k = 0; k < reflection.FieldSize(*message, &field); ++k) {
        ApplyDefaults(reflection.MutableRepeatedMessage(message, &field, k));
      }
    } else if (reflection.HasField(*message, &field)) {
      ApplyDefaults(reflection.MutableMessage(message, &field));
    }
  }
}

}  // namespace fusion::api
