#include "graph/schema.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace fusion::graph {
namespace {

struct KindName {
  const char* text;
  ParameterKind kind;
};
constexpr KindName kKindNames[] = {
    {"Tensor", ParameterKind::kTensor},
    {"Tensor[]", ParameterKind::kTensors},
    {"int", ParameterKind::kInt},
    {"SymInt", ParameterKind::kSize},
    {"SymInt[]", ParameterKind::kSizes},
    {"int[]", ParameterKind::kSizes},
    {"Scalar", ParameterKind::kScalar},
    {"float", ParameterKind::kScalar},
    {"bool", ParameterKind::kBool},
    {"str", ParameterKind::kString},
    {"ScalarType", ParameterKind::kDataType},
    {"Key", ParameterKind::kKey},
    {"Training", ParameterKind::kTraining},
    {"Layout", ParameterKind::kAbsent},
    {"Device", ParameterKind::kAbsent},
    {"MemoryFormat", ParameterKind::kAbsent},
};

const char* NameOf(ParameterKind kind) {
  for (const KindName& entry : kKindNames) {
    if (entry.kind == kind) return entry.text;
  }
  return "?";
}

absl::StatusOr<v1::Argument> ParseDefault(absl::string_view text, ParameterKind kind) {
  v1::Argument argument;
  if (text == "None") {
    argument.mutable_none();
    return argument;
  }
  int64_t integer = 0;
  double number = 0;
  switch (kind) {
    case ParameterKind::kInt:
    case ParameterKind::kSize:
      if (!absl::SimpleAtoi(text, &integer)) break;
      argument.mutable_int_()->set_value(integer);
      return argument;
    case ParameterKind::kScalar:
      if (!absl::SimpleAtod(text, &number)) break;
      argument.set_double_(number);
      return argument;
    case ParameterKind::kSizes:
      argument.mutable_ints();
      if (text == "[]") return argument;
      if (!absl::SimpleAtoi(text, &integer)) break;
      argument.mutable_ints()->add_items()->set_value(integer);
      return argument;
    case ParameterKind::kBool:
      if (text != "True" && text != "False") break;
      argument.set_bool_(text == "True");
      return argument;
    case ParameterKind::kString:
      if (!absl::ConsumePrefix(&text, "'") || !absl::ConsumeSuffix(&text, "'")) break;
      argument.set_string(std::string(text));
      return argument;
    default:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("default '", text, "' does not fit type ", NameOf(kind)));
}

absl::StatusOr<Parameter> ParseParameter(absl::string_view text) {
  const size_t space = text.find(' ');
  if (space == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("parameter '", text, "' has no name"));
  }
  absl::string_view type = text.substr(0, space);
  absl::string_view name = text.substr(space + 1);
  Parameter parameter;
  parameter.optional = absl::ConsumeSuffix(&type, "?");
  std::string sizeless;  // int[2] is int[]: rows check lengths
  if (const size_t bracket = type.find('[');
      bracket != absl::string_view::npos && absl::EndsWith(type, "]")) {
    const absl::string_view size = type.substr(bracket + 1, type.size() - bracket - 2);
    if (std::all_of(size.begin(), size.end(), absl::ascii_isdigit)) {
      sizeless = absl::StrCat(type.substr(0, bracket), "[]");
      type = sizeless;
    }
  }
  const KindName* found = nullptr;
  for (const KindName& entry : kKindNames) {
    if (type == entry.text) found = &entry;
  }
  if (found == nullptr) return absl::InvalidArgumentError(absl::StrCat("unknown type '", type, "'"));
  parameter.kind = found->kind;
  if (const size_t equals = name.find('='); equals != absl::string_view::npos) {
    auto value = ParseDefault(name.substr(equals + 1), parameter.kind);
    if (!value.ok()) return value.status();
    parameter.default_value = *std::move(value);
    name = name.substr(0, equals);
  }
  parameter.name = std::string(name);
  return parameter;
}

const char* KindOf(const v1::Argument& argument) {
  switch (argument.kind_case()) {
    case v1::Argument::kValue:
      return "a value";
    case v1::Argument::kInt:
      return "an int";
    case v1::Argument::kDouble:
      return "a double";
    case v1::Argument::kBool:
      return "a bool";
    case v1::Argument::kString:
      return "a string";
    case v1::Argument::kInts:
      return "a list of ints";
    case v1::Argument::kDtype:
      return "a dtype";
    case v1::Argument::kNone:
      return "none";
    case v1::Argument::kValues:
      return "a list of values";
    case v1::Argument::kRandomKey:
      return "randomKey";
    case v1::Argument::kTraining:
      return "training";
    case v1::Argument::KIND_NOT_SET:
      return "nothing";
  }
  return "nothing";
}

bool Fits(const Parameter& parameter, const v1::Argument& argument) {
  if (argument.has_none()) return parameter.optional || parameter.kind == ParameterKind::kAbsent;
  switch (parameter.kind) {
    case ParameterKind::kTensor:
      return argument.has_value();
    case ParameterKind::kTensors:
      return argument.has_values();
    case ParameterKind::kInt:
      return argument.has_int_() && argument.int_().times_batch() == 0;
    case ParameterKind::kSize:
      return argument.has_int_();
    case ParameterKind::kSizes:
      return argument.has_ints();
    case ParameterKind::kScalar:
      if (argument.has_double_()) return !std::isnan(argument.double_());
      return argument.has_int_();
    case ParameterKind::kBool:
      return argument.has_bool_() || (argument.has_training() && parameter.name == "training");
    case ParameterKind::kString:
      return argument.has_string();
    case ParameterKind::kDataType:
      return argument.has_dtype() && argument.dtype() != v1::DATA_TYPE_UNSPECIFIED;
    case ParameterKind::kKey:
      return argument.has_random_key();
    case ParameterKind::kTraining:
      return argument.has_training();
    case ParameterKind::kAbsent:
      return false;
  }
  return false;
}

}  // namespace

absl::StatusOr<Schema> ParseSchema(absl::string_view text) {
  const auto error = [text](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("schema '", text, "': ", what));
  };
  const size_t open = text.find('(');
  const size_t close = text.rfind(") -> ");
  if (open == absl::string_view::npos || close == absl::string_view::npos || close < open) {
    return error("is not NAME(PARAMETERS) -> RETURN");
  }
  Schema schema;
  absl::string_view name = text.substr(0, open);
  absl::string_view space = "aten";
  if (const size_t colons = name.find("::"); colons != absl::string_view::npos) {
    space = name.substr(0, colons);
    name = name.substr(colons + 2);
  }
  if (const size_t dot = name.find('.'); dot != absl::string_view::npos) {
    schema.overload = std::string(name.substr(dot + 1));
    name = name.substr(0, dot);
  }
  schema.type = absl::StrCat(space, ".", name);
  const absl::string_view returns = text.substr(close + 5);
  schema.returns_list = returns == "Tensor[]";
  if (!schema.returns_list && returns != "Tensor") return error("returns neither Tensor nor Tensor[]");

  bool keyword_only = false;
  const absl::string_view list = text.substr(open + 1, close - open - 1);
  if (list.empty()) return schema;
  for (const absl::string_view item : absl::StrSplit(list, ", ")) {
    if (item == "*") {
      keyword_only = true;
      continue;
    }
    auto parameter = ParseParameter(item);
    if (!parameter.ok()) return error(parameter.status().message());
    parameter->keyword_only = keyword_only;
    schema.parameters.push_back(*std::move(parameter));
  }
  return schema;
}

absl::StatusOr<Call> Call::Bind(const Schema& schema, const v1::Operator& op, const Resolve& resolve) {
  Call call;
  call.schema_ = &schema;
  const auto take = [&call, &resolve](const Parameter& parameter,
                                      const v1::Argument& argument) -> absl::Status {
    if (!Fits(parameter, argument)) {
      return absl::InvalidArgumentError(
          absl::StrCat("argument '", parameter.name, "' must be ", NameOf(parameter.kind),
                       parameter.optional ? " or none" : "", ", not ", KindOf(argument)));
    }
    if (!call.arguments_.emplace(parameter.name, argument).second) {
      return absl::InvalidArgumentError(absl::StrCat("argument '", parameter.name, "' is given twice"));
    }
    if (argument.has_value()) {
      auto spec = resolve(argument.value());
      if (!spec.ok()) return spec.status();
      call.tensors_.emplace(parameter.name, *spec);
    }
    return absl::OkStatus();
  };

  size_t position = 0;
  for (const v1::Argument& argument : op.args()) {
    if (position == schema.parameters.size() || schema.parameters[position].keyword_only) {
      return absl::InvalidArgumentError(
          absl::StrCat("takes at most ", position, " positional arguments, not ", op.args_size()));
    }
    if (auto status = take(schema.parameters[position++], argument); !status.ok()) return status;
  }
  for (const v1::NamedArgument& named : op.kwargs()) {
    const Parameter* found = nullptr;
    for (const Parameter& parameter : schema.parameters) {
      if (parameter.name == named.name()) found = &parameter;
    }
    if (found == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("unknown argument '", named.name(), "'"));
    if (auto status = take(*found, named.argument()); !status.ok()) return status;
  }
  for (const Parameter& parameter : schema.parameters) {
    if (call.arguments_.contains(parameter.name)) continue;
    if (!parameter.default_value) {
      return absl::InvalidArgumentError(absl::StrCat("argument '", parameter.name, "' is missing"));
    }
    call.arguments_.emplace(parameter.name, *parameter.default_value);
  }
  return call;
}

const v1::Argument& Call::Get(absl::string_view name) const {
  const auto found = arguments_.find(name);
  if (found == arguments_.end()) {
    ABSL_RAW_LOG(FATAL, "the schema of %s has no argument %s", schema_->type.c_str(),
                 std::string(name).c_str());
  }
  return found->second;
}

bool Call::Has(absl::string_view name) const { return !Get(name).has_none(); }

const v1::TensorSpec& Call::Tensor(absl::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    ABSL_RAW_LOG(FATAL, "argument %s of %s is no tensor", std::string(name).c_str(), schema_->type.c_str());
  }
  return *found->second;
}

const v1::ValueRef& Call::Reference(absl::string_view name) const { return Get(name).value(); }
bool Call::HasInt(absl::string_view name) const { return Get(name).has_int_(); }
int64_t Call::Int(absl::string_view name) const { return Get(name).int_().value(); }
v1::AffineInt Call::Size(absl::string_view name) const { return Get(name).int_(); }

std::vector<v1::AffineInt> Call::Sizes(absl::string_view name) const {
  const auto& items = Get(name).ints().items();
  return {items.begin(), items.end()};
}

double Call::Scalar(absl::string_view name) const {
  const v1::Argument& argument = Get(name);
  return argument.has_int_() ? static_cast<double>(argument.int_().value()) : argument.double_();
}

bool Call::Bool(absl::string_view name) const {
  const v1::Argument& argument = Get(name);
  return argument.bool_() || argument.has_training();
}
const std::string& Call::String(absl::string_view name) const { return Get(name).string(); }
v1::DataType Call::Type(absl::string_view name) const { return Get(name).dtype(); }

}  // namespace fusion::graph
