#include <cmath>
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

absl::Status CheckSpec(const v1::TensorSpec& spec) {
  if (BytesPerElement(spec.dtype()) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("output has no known dtype: ", SpecText(spec)));
  }
  if (spec.shape_size() > kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("output has ", spec.shape_size(), " dimensions, not 0 to ", kMaxRank));
  }
  return CountElements(ShapeFrom(spec)).status();
}

absl::Status CheckSource(const v1::Operator& op) {
  if (!op.type().empty() || op.args_size() > 0 || op.kwargs_size() > 0) {
    return absl::InvalidArgumentError("a placeholder or variable has neither type nor arguments");
  }
  if (op.outputs_size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("must have 1 output, not ", op.outputs_size()));
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
      return absl::OkStatus();
    case v1::Init::NORMAL:
      if (finite({init.mean(), init.standard_deviation()}) && init.standard_deviation() >= 0)
        return absl::OkStatus();
      return absl::InvalidArgumentError("NORMAL needs a finite mean and a standardDeviation of at least 0");
    case v1::Init::UNIFORM:
      if (finite({init.low(), init.high()}) && init.low() <= init.high()) return absl::OkStatus();
      return absl::InvalidArgumentError("UNIFORM needs finite low <= high");
    case v1::Init::CONSTANT:
      if (finite({init.value()})) return absl::OkStatus();
      return absl::InvalidArgumentError("CONSTANT needs a finite value");
    default:
      return absl::InvalidArgumentError("variable.init has no kind");
  }
}

absl::Status CheckVariable(const v1::Operator& op) {
  if (auto status = CheckSource(op); !status.ok()) return status;
  if (!IsPlainName(op.variable().tensor_name())) {
    return absl::InvalidArgumentError("variable.tensorName is empty or not a plain name");
  }
  for (const int64_t d : op.outputs(0).shape()) {
    if (d < 0) return absl::InvalidArgumentError("a variable's shape cannot depend on the batch");
  }
  if (op.variable().trainable() && !IsFloating(op.outputs(0).dtype())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a trainable variable must be floating, not ", TypeText(op.outputs(0).dtype())));
  }
  return CheckInit(op.variable().init());
}

absl::Status CheckType(const v1::Operator& op) {
  const size_t dot = op.type().find('.');
  if (!IsPlainName(op.type()) || dot == 0 || dot == std::string::npos || dot + 1 == op.type().size() ||
      op.type().find('.', dot + 1) != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("type '", op.type(), "' is not NAMESPACE.NAME"));
  }
  if (!op.overload().empty() && !IsPlainName(op.overload())) {
    return absl::InvalidArgumentError("overload is not a plain name");
  }
  const bool dunder = absl::EndsWith(op.type(), "__");  // aten.__and__ is not in place, aten.add_ is
  if ((absl::EndsWith(op.type(), "_") && !dunder) || op.overload() == "out" ||
      absl::EndsWith(op.overload(), "_out")) {
    return absl::InvalidArgumentError(absl::StrCat(
        op.type(), " writes into its arguments; export the model with functional operators only"));
  }
  return absl::OkStatus();
}

absl::Status CheckArguments(const v1::Operator& op) {
  int unset = 0;
  for (const v1::Argument& argument : op.args()) unset += argument.kind_case() == v1::Argument::KIND_NOT_SET;
  for (const v1::NamedArgument& named : op.kwargs()) {
    unset += named.argument().kind_case() == v1::Argument::KIND_NOT_SET;
  }
  if (unset == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(unset, " arguments have no value"));
}

absl::Status CheckCompute(const v1::Operator& op, const Call::Resolve& resolve) {
  if (auto status = CheckType(op); !status.ok()) return status;
  if (auto status = CheckArguments(op); !status.ok()) return status;
  if (op.outputs().empty()) return absl::InvalidArgumentError("has no outputs");
  if (op.has_flops() && !(op.flops().forward() >= 0 && op.flops().backward() >= 0 &&
                          std::isfinite(op.flops().forward()) && std::isfinite(op.flops().backward()))) {
    return absl::InvalidArgumentError("flops must be finite and at least 0");
  }
  const RegisteredOperator* entry = FindRegistered(op.type(), op.overload());
  if (entry == nullptr) {
    if (op.has_flops()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(op.type(), op.overload().empty() ? "" : ".", op.overload(),
                                                   " is not in the registry and declares no flops"));
  }
  auto outputs = InferOutputs(*entry, op, resolve);
  if (!outputs.ok()) return outputs.status();
  if (static_cast<int>(outputs->size()) != op.outputs_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(op.type(), " has ", outputs->size(), " outputs, not ", op.outputs_size()));
  }
  for (int i = 0; i < op.outputs_size(); ++i) {
    const v1::TensorSpec& inferred = (*outputs)[i];
    if (inferred.dtype() != op.outputs(i).dtype() || ShapeFrom(inferred) != ShapeFrom(op.outputs(i))) {
      return absl::InvalidArgumentError(absl::StrCat("output ", i, " of ", op.type(), " is ",
                                                     SpecText(inferred), ", not ", SpecText(op.outputs(i))));
    }
  }
  return absl::OkStatus();
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
        return absl::InvalidArgumentError(
            absl::StrCat("operators[", i, "] '", graph_.operators(i).name(), "': ", status.message()));
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
      return absl::InvalidArgumentError(
          "name is empty, longer than 512, or has blanks, quotes or one of * ? | \\");
    }
    if (index_.Find(op.name()) != i) {
      return absl::InvalidArgumentError(
          absl::StrCat("name is taken by operators[", index_.Find(op.name()), "]"));
    }
    for (const v1::TensorSpec& spec : op.outputs()) {
      if (auto status = CheckSpec(spec); !status.ok()) return status;
    }
    if (op.has_variable() != (op.kind() == v1::Operator::VARIABLE)) {
      return absl::InvalidArgumentError("`variable` is set exactly for kind VARIABLE");
    }
    switch (op.kind()) {
      case v1::Operator::PLACEHOLDER:
        return CheckSource(op);
      case v1::Operator::VARIABLE:
        if (auto status = CheckVariable(op); !status.ok()) return status;
        if (!tensor_names_.insert(op.variable().tensor_name()).second) {
          return absl::InvalidArgumentError(
              absl::StrCat("tensorName '", op.variable().tensor_name(), "' is taken by another variable"));
        }
        return absl::OkStatus();
      case v1::Operator::PARAMETRIC:
      case v1::Operator::NON_PARAMETRIC:
        break;
      default:
        return absl::InvalidArgumentError("kind is not set");
    }
    bool parametric = false;
    absl::Status reads;
    ForEachRead(op, [&](const v1::ValueRef& ref) {
      auto spec = Resolve(i, ref);
      if (!spec.ok()) {
        reads.Update(spec.status());
        return;
      }
      const int producer = index_.Find(ref.operator_());
      ++reads_[producer];
      parametric = parametric || graph_.operators(producer).kind() == v1::Operator::VARIABLE;
    });
    if (!reads.ok()) return reads;
    if (parametric != (op.kind() == v1::Operator::PARAMETRIC)) {
      return absl::InvalidArgumentError(parametric ? "reads a variable, so its kind must be PARAMETRIC"
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
      return absl::InvalidArgumentError(
          absl::StrCat("reads '", ref.operator_(), "', which is not before it"));
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
