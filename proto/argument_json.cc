#include "proto/argument_json.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "fusion/graph/v1/graph.pb.h"
#include "nlohmann/json.hpp"

namespace fusion::api {
namespace {

using google::protobuf::Message;
using graph::v1::AffineInt;
using graph::v1::Argument;
using graph::v1::ValueRef;
using nlohmann::json;

/// Reads the three types; appends errors.
class FormReader {
 public:
  FormReader(Mode mode, FieldErrors* errors) : mode_(mode), errors_(*errors) {}

  void Read(const json& value, const std::string& path, ValueRef* out);
  void Read(const json& value, const std::string& path, AffineInt* out);
  void Read(const json& value, const std::string& path, Argument* out);

 private:
  void Error(const std::string& path, std::string text) { errors_.push_back({path, std::move(text)}); }
  /// An object with `required` and perhaps `optional`; false, with errors, when it is not.
  bool CheckMembers(const json& value, const std::string& path, const std::string& required,
                    const std::string& optional);
  std::optional<int64_t> Integer(const json& value, const std::string& path);
  void ReadDouble(const json& value, const std::string& path, Argument* out);
  void ReadDtype(const json& value, const std::string& path, Argument* out);
  void ReadMarker(const json& value, const std::string& path);
  template <typename Items>
  void ReadItems(const json& value, const std::string& path, Items* out);

  const Mode mode_;
  FieldErrors& errors_;
};

bool FormReader::CheckMembers(const json& value, const std::string& path, const std::string& required,
                              const std::string& optional) {
  if (!value.is_object() || !value.contains(required)) {
    Error(path, absl::StrCat("must be an object with \"", required, "\""));
    return false;
  }
  if (mode_ == Mode::kLenient) return true;
  for (const auto& [key, member] : value.items()) {
    if (key != required && key != optional) {
      Error(MemberPath(path, key), absl::StrCat("unknown field beside ", required));
      return false;
    }
  }
  return true;
}

std::optional<int64_t> FormReader::Integer(const json& value, const std::string& path) {
  const bool fits =
      value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int64_t>::max());
  if (fits) return value.get<int64_t>();
  Error(path, "must be an integer of 64 bits");
  return std::nullopt;
}

void FormReader::Read(const json& value, const std::string& path, ValueRef* out) {
  if (!CheckMembers(value, path, "value", "index")) return;
  if (!value["value"].is_string()) return Error(MemberPath(path, "value"), "must be an operator's name");
  out->set_operator_(value["value"].get<std::string>());
  if (!value.contains("index")) return;
  const std::optional<int64_t> index = Integer(value["index"], MemberPath(path, "index"));
  if (!index.has_value()) return;
  if (*index < 0 || *index > std::numeric_limits<int32_t>::max()) {
    return Error(MemberPath(path, "index"),
                 absl::StrCat("is ", *index, "; must be an output's index, from 0"));
  }
  out->set_index(static_cast<int32_t>(*index));
}

void FormReader::Read(const json& value, const std::string& path, AffineInt* out) {
  if (!CheckMembers(value, path, "int", "timesBatch")) return;
  if (const auto number = Integer(value["int"], MemberPath(path, "int"))) out->set_value(*number);
  if (!value.contains("timesBatch")) return;
  if (const auto times = Integer(value["timesBatch"], MemberPath(path, "timesBatch")))
    out->set_times_batch(*times);
}

template <typename Items>
void FormReader::ReadItems(const json& value, const std::string& path, Items* out) {
  if (!value.is_array()) return Error(path, "must be a list");
  for (size_t i = 0; i < value.size(); ++i) Read(value[i], ItemPath(path, i), out->add_items());
}

void FormReader::ReadDouble(const json& value, const std::string& path, Argument* out) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.is_number() && std::isfinite(value.get<double>())) {
    out->set_double_(value.get<double>());
  } else if (value == "inf" || value == "-inf") {
    out->set_double_(value == "inf" ? kInfinity : -kInfinity);
  } else if (value == "nan") {
    out->set_double_(std::numeric_limits<double>::quiet_NaN());
  } else {
    Error(path, "must be a number, \"inf\", \"-inf\" or \"nan\"");
  }
}

void FormReader::ReadDtype(const json& value, const std::string& path, Argument* out) {
  graph::v1::DataType dtype = graph::v1::DATA_TYPE_UNSPECIFIED;
  if (!value.is_string() || !graph::v1::DataType_Parse(value.get<std::string>(), &dtype) ||
      dtype == graph::v1::DATA_TYPE_UNSPECIFIED) {
    return Error(path, "must be a data type as FLOAT32 or INT64");
  }
  out->set_dtype(dtype);
}

void FormReader::ReadMarker(const json& value, const std::string& path) {
  if (value != true) Error(path, "must be true");
}

void FormReader::Read(const json& value, const std::string& path, Argument* out) {
  if (value.is_object() && value.contains("value")) return Read(value, path, out->mutable_value());
  if (value.is_object() && value.contains("int")) return Read(value, path, out->mutable_int_());
  if (!value.is_object() || value.size() != 1) {
    return Error(path,
                 "must be an object with one of value, int, double, bool, string, ints, dtype, none, values, "
                 "randomKey, training");
  }
  const std::string& key = value.begin().key();
  const json& member = value.begin().value();
  const std::string member_path = MemberPath(path, key);
  if (key == "double") {
    ReadDouble(member, member_path, out);
  } else if (key == "bool") {
    member.is_boolean() ? out->set_bool_(member.get<bool>()) : Error(member_path, "must be true or false");
  } else if (key == "string") {
    member.is_string() ? out->set_string(member.get<std::string>()) : Error(member_path, "must be a string");
  } else if (key == "ints") {
    ReadItems(member, member_path, out->mutable_ints());
  } else if (key == "values") {
    ReadItems(member, member_path, out->mutable_values());
  } else if (key == "dtype") {
    ReadDtype(member, member_path, out);
  } else if (key == "none") {
    out->mutable_none();
    ReadMarker(member, member_path);
  } else if (key == "randomKey") {
    out->mutable_random_key();
    ReadMarker(member, member_path);
  } else if (key == "training") {
    out->mutable_training();
    ReadMarker(member, member_path);
  } else {
    Error(member_path, "unknown kind of argument");
  }
}

json Write(const ValueRef& value) { return {{"value", value.operator_()}, {"index", value.index()}}; }

json Write(const AffineInt& value) { return {{"int", value.value()}, {"timesBatch", value.times_batch()}}; }

template <typename Items>
json WriteItems(const Items& items) {
  json list = json::array();
  for (const auto& item : items.items()) list.push_back(Write(item));
  return list;
}

json WriteDouble(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

json Write(const Argument& argument) {
  switch (argument.kind_case()) {
    case Argument::kValue:
      return Write(argument.value());
    case Argument::kInt:
      return Write(argument.int_());
    case Argument::kDouble:
      return {{"double", WriteDouble(argument.double_())}};
    case Argument::kBool:
      return {{"bool", argument.bool_()}};
    case Argument::kString:
      return {{"string", argument.string()}};
    case Argument::kInts:
      return {{"ints", WriteItems(argument.ints())}};
    case Argument::kDtype:
      return {{"dtype", graph::v1::DataType_Name(argument.dtype())}};
    case Argument::kNone:
      return {{"none", true}};
    case Argument::kValues:
      return {{"values", WriteItems(argument.values())}};
    case Argument::kRandomKey:
      return {{"randomKey", true}};
    case Argument::kTraining:
      return {{"training", true}};
    case Argument::KIND_NOT_SET:
      break;
  }
  return json::object();
}

}  // namespace

bool HasArgumentForm(const google::protobuf::Descriptor& descriptor) {
  return &descriptor == Argument::descriptor() || &descriptor == ValueRef::descriptor() ||
         &descriptor == AffineInt::descriptor();
}

void ReadArgumentForm(const json& json, const std::string& path, Mode mode, Message* message,
                      FieldErrors* errors) {
  FormReader reader(mode, errors);
  if (message->GetDescriptor() == Argument::descriptor()) {
    reader.Read(json, path, static_cast<Argument*>(message));
  } else if (message->GetDescriptor() == ValueRef::descriptor()) {
    reader.Read(json, path, static_cast<ValueRef*>(message));
  } else {
    reader.Read(json, path, static_cast<AffineInt*>(message));
  }
}

json WriteArgumentForm(const Message& message) {
  if (message.GetDescriptor() == Argument::descriptor()) return Write(static_cast<const Argument&>(message));
  if (message.GetDescriptor() == ValueRef::descriptor()) return Write(static_cast<const ValueRef&>(message));
  return Write(static_cast<const AffineInt&>(message));
}

}  // namespace fusion::api
