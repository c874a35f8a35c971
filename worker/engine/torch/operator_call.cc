#include "worker/engine/torch/operator_call.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "graph/registry.h"
#include "worker/engine/torch/host_tensor.h"

namespace fusion::worker::engine {
namespace {

using graph::v1::AffineInt;
using graph::v1::Argument;

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

c10::TypePtr WithoutOptional(c10::TypePtr type) {
  while (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type;
}

bool IsListOf(const c10::Type& type, c10::TypeKind element) {
  const auto* list = type.castRaw<c10::ListType>();
  return list != nullptr && WithoutOptional(list->getElementType())->kind() == element;
}

// A Python number where the schema wants a tensor, as PyTorch's own binding passes it.
at::Tensor WrappedNumber(const at::Scalar& number) {
  at::Tensor tensor = at::scalar_tensor(
      number, number.isFloatingPoint() ? at::kDouble : (number.isBoolean() ? at::kBool : at::kLong));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// A constant as the schema's type takes it; empty where it does not fit.
std::optional<c10::IValue> Constant(const Argument& argument, const c10::Type& wanted) {
  const c10::TypeKind kind = wanted.kind();
  switch (argument.kind_case()) {
    case Argument::kInt: {
      const int64_t value = argument.int_().value();
      switch (kind) {
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType:
        case c10::TypeKind::NumberType:
          return c10::IValue(value);
        case c10::TypeKind::FloatType:
          return c10::IValue(static_cast<double>(value));
        case c10::TypeKind::TensorType:
          return c10::IValue(WrappedNumber(value));
        default:
          return std::nullopt;
      }
    }
    case Argument::kDouble:
      if (kind == c10::TypeKind::FloatType || kind == c10::TypeKind::NumberType) {
        return c10::IValue(argument.double_());
      }
      return kind == c10::TypeKind::TensorType ? std::optional(c10::IValue(WrappedNumber(argument.double_())))
                                               : std::nullopt;
    case Argument::kBool:
      if (kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType) {
        return c10::IValue(argument.bool_());
      }
      return std::nullopt;
    case Argument::kString:
      if (kind == c10::TypeKind::StringType) {
        return c10::IValue(argument.string());
      }
      return kind == c10::TypeKind::DeviceObjType ? std::optional(c10::IValue(c10::Device(argument.string())))
                                                  : std::nullopt;
    case Argument::kDtype:
      return kind == c10::TypeKind::IntType
                 ? std::optional(c10::IValue(static_cast<int64_t>(ScalarTypeOf(argument.dtype()))))
                 : std::nullopt;
    default:
      return std::nullopt;
  }
}

// Whether an operator that may draw random numbers is told to draw none: aten.lstm with dropout 0.
bool DropsNothing(const std::vector<c10::Argument>& wanted, const std::vector<const Argument*>& given) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].name() == "dropout" || wanted[i].name() == "dropout_p") {
      return given[i] != nullptr && (given[i]->has_double_() || given[i]->has_int_()) &&
             given[i]->double_() == 0 && given[i]->int_().value() == 0 && given[i]->int_().times_batch() == 0;
    }
  }
  return false;
}

std::string KindName(const Argument& argument) {
  switch (argument.kind_case()) {
    case Argument::kValue:
      return "a value";
    case Argument::kValues:
      return "a list of values";
    case Argument::kInt:
      return "an integer";
    case Argument::kInts:
      return "a list of integers";
    case Argument::kDouble:
      return "a double";
    case Argument::kBool:
      return "a bool";
    case Argument::kString:
      return "a string";
    case Argument::kDtype:
      return "a dtype";
    case Argument::kNone:
      return "none";
    case Argument::kRandomKey:
      return "a random key";
    case Argument::kTraining:
      return "the training flag";
    case Argument::KIND_NOT_SET:
      break;
  }
  return "nothing";
}

}  // namespace

std::string DescribeOperator(const graph::v1::Operator& op) {
  return absl::StrCat("operator '", op.name(), "' (", op.type(),
                      op.overload().empty() || op.overload() == "default" ? "" : ".",
                      op.overload() == "default" ? "" : op.overload(), ")");
}

absl::StatusOr<OperatorCall> OperatorCall::Bind(const graph::v1::Operator& op) {
  const std::string what = DescribeOperator(op);
  const size_t dot = op.type().find('.');
  if (dot == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": the type must be NAMESPACE.NAME, for example aten.linear"));
  }
  const c10::OperatorName name(absl::StrCat(op.type().substr(0, dot), "::", op.type().substr(dot + 1)),
                               op.overload() == "default" ? "" : op.overload());
  const std::optional<c10::OperatorHandle> handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle.has_value()) {
    return absl::NotFoundError(absl::StrCat(what, ": this engine (LibTorch) has no such operator"));
  }
  const c10::FunctionSchema& schema = handle->schema();
  if (schema.is_mutable()) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": it writes to its arguments; export the graph with functional operators, not in-place ones"));
  }

  const std::vector<c10::Argument>& wanted = schema.arguments();
  std::vector<const Argument*> given(wanted.size(), nullptr);
  const auto positional = static_cast<size_t>(std::count_if(
      wanted.begin(), wanted.end(), [](const c10::Argument& argument) { return !argument.kwarg_only(); }));
  if (static_cast<size_t>(op.args_size()) > positional) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", op.args_size(),
                                                   " positional arguments are given, its schema takes ",
                                                   positional, ": ", c10::toString(schema)));
  }
  for (int i = 0; i < op.args_size(); ++i) {
    given[static_cast<size_t>(i)] = &op.args(i);
  }
  for (const graph::v1::NamedArgument& named : op.kwargs()) {
    const std::optional<int> index = schema.argumentIndexWithName(named.name());
    if (!index.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": its schema has no argument '", named.name(), "': ", c10::toString(schema)));
    }
    if (given[static_cast<size_t>(*index)] != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": argument '", named.name(), "' is given twice"));
    }
    given[static_cast<size_t>(*index)] = &named.argument();
  }

  if (handle->hasTag(at::Tag::nondeterministic_seeded) && !graph::IsRegistered(op) &&
      !DropsNothing(wanted, given)) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": it draws random numbers that depend on where it runs; multiply by fusion.dropout_mask"));
  }

  OperatorCall call(*handle);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const bool none_as_default =
        given[i] != nullptr && given[i]->has_none() && wanted[i].default_value().has_value();
    if (given[i] == nullptr || none_as_default) {
      if (!wanted[i].default_value().has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat(what, ": argument '", wanted[i].name(), "' is missing: ", c10::toString(schema)));
      }
      call.arguments_.emplace_back(*wanted[i].default_value());
      continue;
    }
    absl::StatusOr<Slot> slot = call.MakeSlot(*given[i], wanted[i].type());
    if (!slot.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": argument '", wanted[i].name(), "' is ",
                                                     KindName(*given[i]), ", but its schema wants ",
                                                     wanted[i].type()->str()));
    }
    call.arguments_.push_back(*std::move(slot));
  }
  return call;
}

int OperatorCall::InputIndex(const graph::v1::ValueRef& ref) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].operator_() == ref.operator_() && inputs_[i].index() == ref.index()) {
      return static_cast<int>(i);
    }
  }
  inputs_.push_back(ref);
  return static_cast<int>(inputs_.size()) - 1;
}

absl::StatusOr<OperatorCall::Slot> OperatorCall::MakeSlot(const Argument& argument,
                                                          const c10::TypePtr& wanted) {
  const absl::Status misfit = absl::InvalidArgumentError("does not fit");
  const c10::TypePtr type = WithoutOptional(wanted);
  switch (argument.kind_case()) {
    case Argument::kNone:
      if (wanted->kind() != c10::TypeKind::OptionalType) {
        return misfit;
      }
      return Slot(c10::IValue());
    case Argument::kValue:
      if (type->kind() != c10::TypeKind::TensorType) {
        return misfit;
      }
      return Slot(Input{InputIndex(argument.value())});
    case Argument::kValues: {
      if (!IsListOf(*type, c10::TypeKind::TensorType)) {
        return misfit;
      }
      InputList list;
      list.optional_elements =
          type->expectRef<c10::ListType>().getElementType()->kind() == c10::TypeKind::OptionalType;
      for (const graph::v1::ValueRef& ref : argument.values().items()) {
        list.indexes.push_back(InputIndex(ref));
      }
      return Slot(std::move(list));
    }
    case Argument::kInts:
      if (!IsListOf(*type, c10::TypeKind::IntType) && !IsListOf(*type, c10::TypeKind::SymIntType)) {
        return misfit;
      }
      return Slot(AffineList{{argument.ints().items().begin(), argument.ints().items().end()}});
    case Argument::kRandomKey:
      if (type->kind() != c10::TypeKind::IntType) {
        return misfit;
      }
      return Slot(RandomKey{});
    case Argument::kTraining:
      if (type->kind() != c10::TypeKind::BoolType) {
        return misfit;
      }
      return Slot(Training{});
    case Argument::kInt:
      if (argument.int_().times_batch() != 0) {
        const bool real = type->kind() == c10::TypeKind::FloatType;
        if (!real && type->kind() != c10::TypeKind::IntType && type->kind() != c10::TypeKind::SymIntType &&
            type->kind() != c10::TypeKind::NumberType) {
          return misfit;
        }
        return Slot(AffineNumber{argument.int_(), real});
      }
      [[fallthrough]];
    default: {
      std::optional<c10::IValue> constant = Constant(argument, *type);
      if (!constant.has_value()) {
        return misfit;
      }
      return Slot(*std::move(constant));
    }
  }
}

c10::IValue OperatorCall::Evaluate(const Slot& slot, const CallContext& context,
                                   absl::Span<const at::Tensor> inputs) {
  return std::visit(
      Overloaded{[](const c10::IValue& constant) { return constant; },
                 [&](const Input& input) { return c10::IValue(inputs[static_cast<size_t>(input.index)]); },
                 [&](const InputList& list) {
                   if (list.optional_elements) {
                     c10::List<std::optional<at::Tensor>> tensors;
                     for (const int index : list.indexes) {
                       tensors.push_back(inputs[static_cast<size_t>(index)]);
                     }
                     return c10::IValue(std::move(tensors));
                   }
                   c10::List<at::Tensor> tensors;
                   for (const int index : list.indexes) {
                     tensors.push_back(inputs[static_cast<size_t>(index)]);
                   }
                   return c10::IValue(std::move(tensors));
                 },
                 [&](const AffineNumber& affine) {
                   const int64_t number = graph::ValueAt(affine.number, context.samples);
                   return affine.real ? c10::IValue(static_cast<double>(number)) : c10::IValue(number);
                 },
                 [&](const AffineList& affine) {
                   c10::List<int64_t> numbers;
                   for (const AffineInt& number : affine.numbers) {
                     numbers.push_back(graph::ValueAt(number, context.samples));
                   }
                   return c10::IValue(std::move(numbers));
                 },
                 [&](const RandomKey&) { return c10::IValue(context.random_key); },
                 [&](const Training&) { return c10::IValue(context.training); }},
      slot);
}

std::vector<at::Tensor> OperatorCall::Run(const CallContext& context,
                                          absl::Span<const at::Tensor> inputs) const {
  std::vector<c10::IValue> stack;
  stack.reserve(arguments_.size());
  for (const Slot& slot : arguments_) {
    stack.push_back(Evaluate(slot, context, inputs));
  }
  handle_.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (c10::IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        results.push_back(tensor);
      }
    } else if (value.isTensor()) {
      results.push_back(std::move(value).toTensor());
    } else {
      TORCH_CHECK(value.isNone(), "it returns a ", value.tagKind(), ", not a tensor");
      results.emplace_back();
    }
  }
  return results;
}

}  // namespace fusion::worker::engine
