#include <cmath>
#include <cstdlib>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/graph_index.h"
#include "graph/operator_row.h"
#include "graph/registry.h"
#include "graph/shapes.h"

namespace fusion::graph {
namespace {

constexpr size_t kMaxName = 512;
constexpr int kMaxRank = 16;

bool IsPlainName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxName) return false;
  for (const char c : name) {
    // Globs over names use * ? and |, and messages quote with '.
    if (!absl::ascii_isgraph(c) || absl::string_view("*?|'\"\\").find(c) != absl::string_view::npos)
      return false;
  }
  return true;
}

/// An error of a member of an operator; Validator::Run puts the operator's path before it.
absl::Status Wrong(absl::string_view member, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(".", member, ": ", message));
}

/// "operators[4].outputs[0].dtype 'layers.1': message" of "." member ": " message, or of a message alone.
absl::Status AtOperator(int index, const v1::Operator& op, absl::string_view message) {
  absl::string_view member;
  if (absl::StartsWith(message, ".")) {
    const size_t colon = message.find(": ");
    member = message.substr(0, colon);
    message.remove_prefix(colon + 2);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("operators[", index, "]", member, " '", op.name(), "': ", message));
}

absl::Status CheckSpec(int output, const v1::TensorSpec& spec) {
  const std::string path = absl::StrCat("outputs[", output, "]");
  if (BytesPerElement(spec.dtype()) == 0) {
    return Wrong(path + ".dtype", absl::StrCat("output has no known dtype: ", SpecText(spec)));
  }
  if (spec.shape_size() > kMaxRank) {
    return Wrong(path + ".shape",
                 absl::StrCat("output has ", spec.shape_size(), " dimensions, not 0 to ", kMaxRank));
  }
  const absl::Status status = CountElements(ShapeFrom(spec)).status();
  return status.ok() ? status : Wrong(path + ".shape", status.message());
}

absl::Status CheckSource(const v1::Operator& op) {
  if (!op.type().empty() || op.args_size() > 0 || op.kwargs_size() > 0) {
    return Wrong(!op.type().empty()   ? "type"
                 : op.args_size() > 0 ? "args"
                                      : "kwargs",
                 "a placeholder or variable has neither type nor arguments");
  }
  if (op.outputs_size() != 1) {
    return Wrong("outputs", absl::StrCat("must have 1 output, not ", op.outputs_size()));
  }
  return absl::OkStatus();
}

absl::Status CheckInit(const v1::Init& init) {
  const auto finite = [](std::initializer_list<double> numbers) {
    for (const double number : numbers) {
      if (!std::isfinite(number)) return false;
    }
    return true;
  };
  switch (init.kind()) {
    case v1::Init::ZEROS:
    case v1::Init::ONES:
    case v1::Init::STORED:
      return absl::OkStatus();
    case v1::Init::NORMAL:
      if (finite({init.mean(), init.standard_deviation()}) && init.standard_deviation() >= 0)
        return absl::OkStatus();
      return Wrong("variable.init", "NORMAL needs a finite mean and a standardDeviation of at least 0");
    case v1::Init::UNIFORM:
      if (finite({init.low(), init.high()}) && init.low() <= init.high()) return absl::OkStatus();
      return Wrong("variable.init", "UNIFORM needs finite low <= high");
    case v1::Init::CONSTANT:
      if (finite({init.value()})) return absl::OkStatus();
      return Wrong("variable.init.value", "CONSTANT needs a finite value");
    default:
      return Wrong("variable.init.kind", "variable.init has no kind");
  }
}

absl::Status CheckVariable(const v1::Operator& op) {
  if (auto status = CheckSource(op); !status.ok()) return status;
  if (!IsPlainName(op.variable().tensor_name())) {
    return Wrong("variable.tensorName", "variable.tensorName is empty or not a plain name");
  }
  for (int i = 0; i < op.outputs(0).shape_size(); ++i) {
    if (op.outputs(0).shape(i) < 0) {
      return Wrong(absl::StrCat("outputs[0].shape[", i, "]"),
                   "a variable's shape cannot depend on the batch");
    }
  }
  if (op.variable().trainable() && !IsFloating(op.outputs(0).dtype())) {
    return Wrong("outputs[0].dtype", absl::StrCat("a trainable variable must be floating, not ",
                                                  TypeText(op.outputs(0).dtype())));
  }
  const v1::Init& init = op.variable().init();
  if (auto status = CheckInit(init); !status.ok()) return status;
  for (const double number :
       {init.mean(), init.standard_deviation(), init.low(), init.high(), init.value()}) {
    if (!std::isfinite(number)) return Wrong("variable.init", "has a number that is not finite");
  }
  return absl::OkStatus();
}

absl::Status CheckType(const v1::Operator& op) {
  const size_t dot = op.type().find('.');
  if (!IsPlainName(op.type()) || dot == 0 || dot == std::string::npos || dot + 1 == op.type().size() ||
      op.type().find('.', dot + 1) != std::string::npos) {
    return Wrong("type", absl::StrCat("type '", op.type(), "' is not NAMESPACE.NAME"));
  }
  if (!op.overload().empty() && !IsPlainName(op.overload())) {
    return Wrong("overload", "overload is not a plain name");
  }
  const bool dunder = absl::EndsWith(op.type(), "__");  // aten.__and__ is not in place, aten.add_ is
  const bool in_place = absl::EndsWith(op.type(), "_") && !dunder;
  if (in_place || op.overload() == "out" || absl::EndsWith(op.overload(), "_out")) {
    return Wrong(in_place ? "type" : "overload",
                 absl::StrCat(op.type(),
                              " writes into its arguments; export the model with functional operators only"));
  }
  return absl::OkStatus();
}

absl::Status CheckArgument(const std::string& path, const v1::Argument& argument) {
  const auto in_range = [](const v1::AffineInt& n) { return std::abs(n.times_batch() / 2) < kMaxElements; };
  switch (argument.kind_case()) {
    case v1::Argument::KIND_NOT_SET:
      return Wrong(path, "the argument has no value");
    case v1::Argument::kDtype:
      if (BytesPerElement(argument.dtype()) > 0) return absl::OkStatus();
      return Wrong(path + ".dtype", "is no known data type");
    case v1::Argument::kInt:
      if (in_range(argument.int_())) return absl::OkStatus();
      return Wrong(path + ".timesBatch",
                   absl::StrCat("is ", argument.int_().times_batch(), ", out of range"));
    case v1::Argument::kInts:
      for (int i = 0; i < argument.ints().items_size(); ++i) {
        const v1::AffineInt& item = argument.ints().items(i);
        if (!in_range(item)) {
          return Wrong(absl::StrCat(path, ".ints[", i, "].timesBatch"),
                       absl::StrCat("is ", item.times_batch(), ", out of range"));
        }
      }
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

absl::Status CheckArguments(const v1::Operator& op) {
  for (int i = 0; i < op.args_size(); ++i) {
    if (auto status = CheckArgument(absl::StrCat("args[", i, "]"), op.args(i)); !status.ok()) return status;
  }
  absl::flat_hash_set<absl::string_view> names;
  for (int i = 0; i < op.kwargs_size(); ++i) {
    const std::string path = absl::StrCat("kwargs[", i, "]");
    if (op.kwargs(i).name().empty()) return Wrong(path + ".name", "the argument has no name");
    if (!names.insert(op.kwargs(i).name()).second)
      return Wrong(path + ".name", absl::StrCat("argument '", op.kwargs(i).name(), "' is given twice"));
    if (auto status = CheckArgument(path + ".argument", op.kwargs(i).argument()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckCompute(const v1::Operator& op, const Call::Resolve& resolve) {
  if (auto status = CheckType(op); !status.ok()) return status;
  if (auto status = CheckArguments(op); !status.ok()) return status;
  if (op.outputs().empty()) return Wrong("outputs", "has no outputs");
  const RegisteredOperator* entry = FindRegistered(op);
  if (entry == nullptr) return absl::OkStatus();
  auto outputs = InferOutputs(*entry, op, resolve);
  if (!outputs.ok()) return outputs.status();
  if (static_cast<int>(outputs->size()) != op.outputs_size()) {
    return Wrong("outputs",
                 absl::StrCat(op.type(), " has ", outputs->size(), " outputs, not ", op.outputs_size()));
  }
  for (int i = 0; i < op.outputs_size(); ++i) {
    const v1::TensorSpec& inferred = (*outputs)[i];
    if (inferred.dtype() != op.outputs(i).dtype() || ShapeFrom(inferred) != ShapeFrom(op.outputs(i))) {
      return Wrong(absl::StrCat("outputs[", i, "]"),
                   absl::StrCat("output ", i, " of ", op.type(), " is ", SpecText(inferred), ", not ",
                                SpecText(op.outputs(i))));
    }
  }
  return absl::OkStatus();
}

/// Where the `ordinal`-th value that ForEachRead visits stands.
std::string PathOfRead(const v1::Operator& op, int ordinal) {
  const auto within = [&ordinal](const v1::Argument& argument) -> std::string {
    if (argument.has_value() && ordinal-- == 0) return ".value";
    for (int i = 0; i < argument.values().items_size(); ++i) {
      if (ordinal-- == 0) return absl::StrCat(".values[", i, "]");
    }
    return "";
  };
  for (int i = 0; i < op.args_size(); ++i) {
    if (const std::string path = within(op.args(i)); !path.empty())
      return absl::StrCat("args[", i, "]", path);
  }
  for (int i = 0; i < op.kwargs_size(); ++i) {
    if (const std::string path = within(op.kwargs(i).argument()); !path.empty())
      return absl::StrCat("kwargs[", i, "].argument", path);
  }
  return "args";
}

/// Checks operators in order, each against those before it.
class Validator {
 public:
  explicit Validator(const v1::Graph& graph)
      : graph_(graph), index_(graph), reads_(graph.operators_size()), writer_(graph.operators_size(), -1) {}

  absl::Status Run() {
    if (graph_.operators().empty()) return absl::InvalidArgumentError("graph has no operators");
    for (int i = 0; i < graph_.operators_size(); ++i) {
      if (auto status = CheckOperator(i); !status.ok()) {
        return AtOperator(i, graph_.operators(i), status.message());
      }
    }
    for (int i = 0; i < graph_.operators_size(); ++i) {
      if (graph_.operators(i).kind() == v1::Operator::VARIABLE && reads_[i] == 0) {
        return absl::InvalidArgumentError(absl::StrCat("operators[", i, "] '", graph_.operators(i).name(),
                                                       "': nothing reads this variable"));
      }
      if (writer_[i] >= 0 && reads_[i] > 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "operators[", i, "] '", graph_.operators(i).name(), "': is read ", reads_[i], " times, but '",
            graph_.operators(writer_[i]).name(), "' writes to it, so nothing else may read it"));
      }
    }
    return CheckLoss();
  }

 private:
  absl::Status CheckOperator(int i) {
    const v1::Operator& op = graph_.operators(i);
    if (!IsPlainName(op.name())) {
      return Wrong("name", "name is empty, longer than 512, or has blanks, quotes or one of * ? | \\");
    }
    if (index_.Find(op.name()) != i) {
      return Wrong("name", absl::StrCat("name is taken by operators[", index_.Find(op.name()), "]"));
    }
    for (int output = 0; output < op.outputs_size(); ++output) {
      if (auto status = CheckSpec(output, op.outputs(output)); !status.ok()) return status;
    }
    if (op.has_flops() && !(op.flops().forward() >= 0 && op.flops().backward() >= 0 &&
                            std::isfinite(op.flops().forward()) && std::isfinite(op.flops().backward()))) {
      return Wrong("flops", "flops must be finite and at least 0");
    }
    if (op.has_variable() != (op.kind() == v1::Operator::VARIABLE)) {
      return Wrong("variable", "`variable` is set exactly for kind VARIABLE");
    }
    switch (op.kind()) {
      case v1::Operator::PLACEHOLDER:
        return CheckSource(op);
      case v1::Operator::VARIABLE:
        if (auto status = CheckVariable(op); !status.ok()) return status;
        if (!tensor_names_.insert(op.variable().tensor_name()).second) {
          return Wrong("variable.tensorName", absl::StrCat("tensorName '", op.variable().tensor_name(),
                                                           "' is taken by another variable"));
        }
        return absl::OkStatus();
      case v1::Operator::PARAMETRIC:
      case v1::Operator::NON_PARAMETRIC:
        break;
      default:
        return Wrong("kind", "kind is not set");
    }
    bool parametric = false;
    absl::Status reads;
    int read = 0;
    ForEachRead(op, [&](const v1::ValueRef& ref) {
      auto spec = Resolve(i, ref);
      if (!spec.ok() && reads.ok()) reads = Wrong(PathOfRead(op, read), spec.status().message());
      ++read;
      if (!spec.ok()) return;
      const int producer = index_.Find(ref.operator_());
      ++reads_[producer];
      parametric = parametric || graph_.operators(producer).kind() == v1::Operator::VARIABLE;
    });
    if (!reads.ok()) return reads;
    if (parametric != (op.kind() == v1::Operator::PARAMETRIC)) {
      return Wrong("kind", parametric ? "reads a variable, so its kind must be PARAMETRIC"
                                      : "reads no variable, so its kind must be NON_PARAMETRIC");
    }
    auto status = CheckCompute(op, [this, i](const v1::ValueRef& ref) { return Resolve(i, ref); });
    return status.ok() ? CheckWrites(i) : status;
  }

  /// What passes of an operator change must be its own.
  absl::Status CheckWrites(int writer) {
    const v1::Operator& op = graph_.operators(writer);
    for (const v1::ValueRef& ref : op.counters()) {
      const v1::TensorSpec& spec = **Resolve(writer, ref);
      if (spec.dtype() == v1::INT64 && spec.shape().empty()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("counter '", ref.operator_(), "' must be int64[], not ", SpecText(spec)));
    }
    for (const v1::ValueRef& ref : WrittenVariables(op)) {
      const int target = index_.Find(ref.operator_());
      const v1::Operator& variable = graph_.operators(target);
      if (variable.kind() != v1::Operator::VARIABLE || variable.variable().trainable()) {
        return absl::InvalidArgumentError(
            absl::StrCat("writes to '", ref.operator_(), "', which must be a variable with trainable false"));
      }
      writer_[target] = writer;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const v1::TensorSpec*> Resolve(int reader, const v1::ValueRef& ref) const {
    const int producer = index_.Find(ref.operator_());
    if (producer < 0)
      return absl::InvalidArgumentError(absl::StrCat("reads unknown operator '", ref.operator_(), "'"));
    if (producer >= reader) {
      return absl::InvalidArgumentError(absl::StrCat(
          "reads '", ref.operator_(), "', which is not before it; operators stand in topological order"));
    }
    const int outputs = graph_.operators(producer).outputs_size();
    if (ref.index() < 0 || ref.index() >= outputs) {
      return absl::InvalidArgumentError(
          absl::StrCat("reads output ", ref.index(), " of '", ref.operator_(), "', which has ", outputs));
    }
    return &graph_.operators(producer).outputs(ref.index());
  }

  absl::Status CheckLoss() const {
    auto spec = Resolve(graph_.operators_size(), graph_.loss());
    if (!spec.ok()) return absl::InvalidArgumentError(absl::StrCat("loss: ", spec.status().message()));
    if (!IsFloating((*spec)->dtype()) || (*spec)->shape_size() > 0) {
      return absl::InvalidArgumentError(absl::StrCat("loss '", graph_.loss().operator_(),
                                                     "' must be a floating scalar, not ", SpecText(**spec)));
    }
    const v1::Operator::Kind kind = graph_.operators(index_.Find(graph_.loss().operator_())).kind();
    if (kind == v1::Operator::VARIABLE || kind == v1::Operator::PLACEHOLDER) {
      return absl::InvalidArgumentError(
          absl::StrCat("loss '", graph_.loss().operator_(), "' is not computed"));
    }
    return absl::OkStatus();
  }

  const v1::Graph& graph_;
  const GraphIndex index_;
  std::vector<int> reads_;
  std::vector<int> writer_;  ///< of a variable: the operator whose passes change it, or -1
  absl::flat_hash_set<absl::string_view> tensor_names_;
};

}  // namespace

absl::Status ValidateGraph(const v1::Graph& graph) { return Validator(graph).Run(); }

}  // namespace fusion::graph
