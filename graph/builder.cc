#include "graph/builder.h"

#include "absl/strings/str_cat.h"
#include "graph/graph_index.h"
#include "graph/operator_row.h"
#include "graph/registry.h"

namespace fusion::graph {

v1::Argument Read(const v1::ValueRef& value) {
  v1::Argument argument;
  *argument.mutable_value() = value;
  return argument;
}

v1::Argument Int(int64_t value) {
  v1::Argument argument;
  argument.mutable_int_()->set_value(value);
  return argument;
}

v1::Argument Size(int64_t size) {
  v1::Argument argument;
  *argument.mutable_int_() = Sizes({size}).ints().items(0);
  return argument;
}

v1::Argument Double(double value) {
  v1::Argument argument;
  argument.set_double_(value);
  return argument;
}

v1::Argument Bool(bool value) {
  v1::Argument argument;
  argument.set_bool_(value);
  return argument;
}

v1::Argument Text(absl::string_view value) {
  v1::Argument argument;
  argument.set_string(std::string(value));
  return argument;
}

v1::Argument Type(v1::DataType value) {
  v1::Argument argument;
  argument.set_dtype(value);
  return argument;
}

v1::Argument Sizes(absl::Span<const int64_t> sizes) {
  v1::Argument argument;
  v1::Argument::Ints* ints = argument.mutable_ints();
  for (const int64_t size : sizes) {
    v1::AffineInt* item = ints->add_items();
    if (size < 0) {
      item->set_times_batch(-size);
    } else {
      item->set_value(size);
    }
  }
  return argument;
}

v1::Argument None() {
  v1::Argument argument;
  argument.mutable_none();
  return argument;
}

v1::Argument RandomKey() {
  v1::Argument argument;
  argument.mutable_random_key();
  return argument;
}

v1::Argument Training() {
  v1::Argument argument;
  argument.mutable_training();
  return argument;
}

v1::Init Zeros() {
  v1::Init init;
  init.set_kind(v1::Init::ZEROS);
  return init;
}

v1::Init Ones() {
  v1::Init init;
  init.set_kind(v1::Init::ONES);
  return init;
}

v1::Init Normal(double standard_deviation) {
  v1::Init init;
  init.set_kind(v1::Init::NORMAL);
  init.set_standard_deviation(standard_deviation);
  return init;
}

v1::Init Uniform(double low, double high) {
  v1::Init init;
  init.set_kind(v1::Init::UNIFORM);
  init.set_low(low);
  init.set_high(high);
  return init;
}

v1::ValueRef GraphBuilder::Placeholder(absl::string_view name, v1::DataType dtype, const Shape& shape) {
  positions_.try_emplace(std::string(name), graph_.operators_size());
  v1::Operator* op = graph_.add_operators();
  op->set_name(std::string(name));
  op->set_kind(v1::Operator::PLACEHOLDER);
  *op->add_outputs() = MakeSpec(dtype, shape);
  v1::ValueRef value;
  value.set_operator_(op->name());
  return value;
}

v1::ValueRef GraphBuilder::Variable(absl::string_view name, const Shape& shape, const v1::Init& init) {
  v1::ValueRef value = Placeholder(name, v1::FLOAT32, shape);
  v1::Operator* op = graph_.mutable_operators(graph_.operators_size() - 1);
  op->set_kind(v1::Operator::VARIABLE);
  op->mutable_variable()->set_tensor_name(std::string(name));
  op->mutable_variable()->set_trainable(true);
  *op->mutable_variable()->mutable_init() = init;
  return value;
}

v1::ValueRef GraphBuilder::Buffer(absl::string_view name, v1::DataType dtype, const Shape& shape,
                                  const v1::Init& init) {
  v1::ValueRef value = Variable(name, shape, init);
  v1::Operator* op = graph_.mutable_operators(graph_.operators_size() - 1);
  op->mutable_variable()->set_trainable(false);
  op->mutable_outputs(0)->set_dtype(dtype);
  return value;
}

void GraphBuilder::CountPasses(const v1::ValueRef& counter) {
  *graph_.mutable_operators(graph_.operators_size() - 1)->add_counters() = counter;
}

v1::ValueRef GraphBuilder::Add(absl::string_view name, absl::string_view type, std::vector<v1::Argument> args,
                               const KeywordArguments& kwargs) {
  std::vector<v1::ValueRef> values = AddMany(name, type, std::move(args), kwargs);
  return values.empty() ? v1::ValueRef() : values.front();
}

std::vector<v1::ValueRef> GraphBuilder::AddMany(absl::string_view name, absl::string_view type,
                                                std::vector<v1::Argument> args,
                                                const KeywordArguments& kwargs) {
  if (!status_.ok()) return {};
  v1::Operator op;
  op.set_name(std::string(name));
  const size_t overload = type.find('.', type.find('.') + 1);
  op.set_type(std::string(type.substr(0, overload)));
  if (overload != absl::string_view::npos) op.set_overload(std::string(type.substr(overload + 1)));
  for (v1::Argument& argument : args) *op.add_args() = std::move(argument);
  for (const auto& [key, argument] : kwargs) {
    v1::NamedArgument* named = op.add_kwargs();
    named->set_name(key);
    *named->mutable_argument() = argument;
  }
  op.set_kind(v1::Operator::NON_PARAMETRIC);
  ForEachRead(op, [&](const v1::ValueRef& ref) {
    const auto found = positions_.find(ref.operator_());
    if (found != positions_.end() && graph_.operators(found->second).kind() == v1::Operator::VARIABLE) {
      op.set_kind(v1::Operator::PARAMETRIC);
    }
  });
  auto outputs = Outputs(op);
  if (!outputs.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat("operator '", name, "': ", outputs.status().message()));
    return {};
  }
  std::vector<v1::ValueRef> values(outputs->size());
  for (size_t i = 0; i < outputs->size(); ++i) {
    *op.add_outputs() = std::move((*outputs)[i]);
    values[i].set_operator_(op.name());
    values[i].set_index(static_cast<int32_t>(i));
  }
  positions_.try_emplace(op.name(), graph_.operators_size());
  *graph_.add_operators() = std::move(op);
  return values;
}

absl::StatusOr<std::vector<v1::TensorSpec>> GraphBuilder::Outputs(const v1::Operator& op) const {
  const RegisteredOperator* entry = FindRegistered(op.type(), op.overload());
  if (entry == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(op.type(), ".", op.overload(), " is not in the registry"));
  }
  return InferOutputs(*entry, op, [this](const v1::ValueRef& ref) -> absl::StatusOr<const v1::TensorSpec*> {
    const auto found = positions_.find(ref.operator_());
    if (found == positions_.end() || ref.index() >= graph_.operators(found->second).outputs_size()) {
      return absl::InvalidArgumentError(absl::StrCat("reads unknown value '", ref.operator_(), "'"));
    }
    return &graph_.operators(found->second).outputs(ref.index());
  });
}

absl::StatusOr<v1::Graph> GraphBuilder::Finish(const v1::ValueRef& loss) {
  if (!status_.ok()) return status_;
  *graph_.mutable_loss() = loss;
  if (auto status = ValidateGraph(graph_); !status.ok()) return status;
  return std::move(graph_);
}

}  // namespace fusion::graph
