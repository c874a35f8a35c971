#include "graph/registry.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/graph_index.h"
#include "graph/operator_row.h"
#include "graph/shapes.h"

namespace fusion::graph {
namespace {

/// Position of the operator `name` before `index`, found backwards: producers are mostly near. -1 if there is
/// none.
int ProducerBefore(const v1::Graph& graph, int index, const std::string& name) {
  for (int i = index - 1; i >= 0; --i) {
    if (graph.operators(i).name() == name) return i;
  }
  return -1;
}

absl::StatusOr<const v1::TensorSpec*> SpecBefore(const v1::Graph& graph, int index, const v1::ValueRef& ref) {
  const int producer = ProducerBefore(graph, index, ref.operator_());
  if (producer < 0 || ref.index() < 0 || ref.index() >= graph.operators(producer).outputs_size()) {
    return absl::InvalidArgumentError(absl::StrCat("operator '", graph.operators(index).name(),
                                                   "' reads unknown value '", ref.operator_(), "'"));
  }
  return &graph.operators(producer).outputs(ref.index());
}

/// One look back only, so that costs stay local: data, ids, buffers and masks get no gradient.
bool MayNeedGradient(const v1::Operator& producer) {
  if (producer.kind() == v1::Operator::PLACEHOLDER) return false;
  if (producer.kind() == v1::Operator::VARIABLE) return producer.variable().trainable();
  const RegisteredOperator* entry = FindRegistered(producer);
  return entry == nullptr || entry->row->differentiable;
}

OperatorCost DeclaredCost(const v1::Graph& graph, int index, int64_t samples) {
  const v1::Operator& op = graph.operators(index);
  OperatorCost cost;
  for (const v1::TensorSpec& spec : op.outputs())
    cost.output_bytes += static_cast<double>(BytesOf(spec, samples));
  if (op.kind() == v1::Operator::PLACEHOLDER || op.kind() == v1::Operator::VARIABLE) {
    cost.kind = OperatorClass::kMemory;
    return cost;
  }
  double inputs = 0;
  double elements = 0;
  bool backward = false;
  const auto count = [&elements, samples](const v1::TensorSpec& spec) {
    const auto bytes = static_cast<double>(BytesOf(spec, samples));
    elements += bytes / static_cast<double>(BytesPerElement(spec.dtype()));
    return bytes;
  };
  ForEachRead(op, [&](const v1::ValueRef& ref) {
    auto spec = SpecBefore(graph, index, ref);
    if (!spec.ok()) return;
    inputs += count(**spec);
    backward = backward || (IsFloating((*spec)->dtype()) &&
                            MayNeedGradient(graph.operators(ProducerBefore(graph, index, ref.operator_()))));
  });
  for (const v1::TensorSpec& spec : op.outputs()) count(spec);
  cost.forward_flops = op.has_flops() ? op.flops().forward() * static_cast<double>(samples) : elements;
  cost.backward_flops = op.has_flops() ? op.flops().backward() * static_cast<double>(samples)
                        : backward     ? 2 * elements
                                       : 0;
  cost.forward_bytes = inputs + cost.output_bytes;
  cost.backward_bytes = cost.backward_flops > 0 ? 2 * inputs + cost.output_bytes : 0;
  return cost;
}

void AppendArgument(const v1::Graph& graph, int index, int64_t samples, const v1::Argument& argument,
                    std::string* out) {
  const auto value = [&](const v1::ValueRef& ref) {
    auto spec = SpecBefore(graph, index, ref);
    if (!spec.ok()) return std::string("?");
    const int producer = ProducerBefore(graph, index, ref.operator_());
    return absl::StrCat(TypeText((*spec)->dtype()), "[", absl::StrJoin(ShapeOf(**spec, samples), ","), "]",
                        MayNeedGradient(graph.operators(producer)) ? "" : "!");
  };
  const auto number = [samples](const v1::AffineInt& n) { return ValueAt(n, samples); };
  switch (argument.kind_case()) {
    case v1::Argument::kValue:
      absl::StrAppend(out, value(argument.value()));
      break;
    case v1::Argument::kInt:
      absl::StrAppend(out, number(argument.int_()));
      break;
    case v1::Argument::kDouble:
      absl::StrAppend(out, argument.double_());
      break;
    case v1::Argument::kBool:
      absl::StrAppend(out, argument.bool_() ? "true" : "false");
      break;
    case v1::Argument::kString:
      absl::StrAppend(out, "'", argument.string(), "'");
      break;
    case v1::Argument::kInts:
      absl::StrAppend(
          out, "(",
          absl::StrJoin(argument.ints().items(), ",",
                        [&](std::string* text, const auto& n) { absl::StrAppend(text, number(n)); }),
          ")");
      break;
    case v1::Argument::kDtype:
      absl::StrAppend(out, TypeText(argument.dtype()));
      break;
    case v1::Argument::kValues:
      absl::StrAppend(
          out, "(",
          absl::StrJoin(argument.values().items(), ",",
                        [&](std::string* text, const auto& ref) { absl::StrAppend(text, value(ref)); }),
          ")");
      break;
    case v1::Argument::kNone:
      absl::StrAppend(out, "none");
      break;
    case v1::Argument::kRandomKey:
      absl::StrAppend(out, "key");
      break;
    case v1::Argument::kTraining:
      absl::StrAppend(out, "training");
      break;
    case v1::Argument::KIND_NOT_SET:
      break;
  }
}

}  // namespace

absl::StatusOr<std::vector<RegisteredOperator>> MakeRegistry(
    absl::Span<const absl::Span<const OperatorRow>> tables) {
  std::vector<RegisteredOperator> registry;
  for (const auto& table : tables) {
    for (const OperatorRow& row : table) {
      auto schema = ParseSchema(row.schema);
      if (!schema.ok()) return schema.status();
      registry.push_back({*std::move(schema), &row});
    }
  }
  const auto key = [](const RegisteredOperator& entry) {
    return std::tie(entry.schema.type, entry.schema.overload);
  };
  std::sort(registry.begin(), registry.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  for (size_t i = 1; i < registry.size(); ++i) {
    if (key(registry[i - 1]) == key(registry[i])) {
      return absl::AlreadyExistsError(
          absl::StrCat("two rows for operator ", registry[i].schema.type, " ", registry[i].schema.overload,
                       ": '", registry[i - 1].row->summary, "' and '", registry[i].row->summary, "'"));
    }
  }
  return registry;
}

const std::vector<RegisteredOperator>& Registry() {
  static const auto* const registry = [] {
    const absl::Span<const OperatorRow> tables[] = {MatmulRows(), ImageRows(), ReductionRows(),
                                                    ElementwiseRows(), MemoryRows()};
    auto made = MakeRegistry(tables);
    if (!made.ok()) ABSL_RAW_LOG(FATAL, "operator registry: %s", made.status().ToString().c_str());
    return new std::vector<RegisteredOperator>(*std::move(made));
  }();
  return *registry;
}

const RegisteredOperator* FindRegistered(absl::string_view type, absl::string_view overload) {
  if (overload == "default") overload = "";
  const auto& registry = Registry();
  const auto found = std::lower_bound(registry.begin(), registry.end(), std::make_pair(type, overload),
                                      [](const RegisteredOperator& entry, auto key) {
                                        return std::make_pair(absl::string_view(entry.schema.type),
                                                              absl::string_view(entry.schema.overload)) < key;
                                      });
  if (found == registry.end() || found->schema.type != type || found->schema.overload != overload)
    return nullptr;
  return &*found;
}

const RegisteredOperator* FindRegistered(const v1::Operator& op) {
  return op.recorded() ? nullptr : FindRegistered(op.type(), op.overload());
}

absl::StatusOr<std::vector<v1::TensorSpec>> InferOutputs(const RegisteredOperator& entry,
                                                         const v1::Operator& op,
                                                         const Call::Resolve& resolve) {
  auto call = Call::Bind(entry.schema, op, resolve);
  if (!call.ok()) return call.status();
  return entry.row->shapes(*call);
}

bool IsRegistered(const v1::Operator& op) { return FindRegistered(op.type(), op.overload()) != nullptr; }

absl::StatusOr<OperatorCost> CostOf(const v1::Graph& graph, int index, int64_t samples) {
  if (index < 0 || index >= graph.operators_size()) {
    return absl::OutOfRangeError(absl::StrCat("operator ", index, " of ", graph.operators_size()));
  }
  const v1::Operator& op = graph.operators(index);
  const RegisteredOperator* entry = FindRegistered(op);
  if (entry == nullptr) return DeclaredCost(graph, index, samples);
  auto call =
      Call::Bind(entry->schema, op, [&](const v1::ValueRef& ref) { return SpecBefore(graph, index, ref); });
  if (!call.ok()) return call.status();
  const Execution::NeedsGradient needs_gradient = [&](const v1::ValueRef& ref) {
    return MayNeedGradient(graph.operators(ProducerBefore(graph, index, ref.operator_())));
  };
  OperatorCost cost = entry->row->cost(Execution(*call, op, samples, needs_gradient));
  cost.kind = entry->row->kind;
  return cost;
}

absl::Status CheckTrains(const v1::Graph& graph, int64_t samples) {
  for (int i = 0; i < graph.operators_size(); ++i) {
    const v1::Operator& op = graph.operators(i);
    const RegisteredOperator* entry = FindRegistered(op);
    if (entry == nullptr || entry->row->trains == nullptr) continue;
    auto call =
        Call::Bind(entry->schema, op, [&](const v1::ValueRef& ref) { return SpecBefore(graph, i, ref); });
    if (!call.ok()) return call.status();
    const Execution::NeedsGradient unused = [](const v1::ValueRef&) { return false; };
    if (auto status = entry->row->trains(Execution(*call, op, samples, unused)); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("operator '", op.name(), "' (", op.type(), ") ", status.message()));
    }
  }
  return absl::OkStatus();
}

std::vector<v1::ValueRef> WrittenVariables(const v1::Operator& op) {
  std::vector<v1::ValueRef> written;
  const RegisteredOperator* entry = FindRegistered(op.type(), op.overload());
  if (entry != nullptr && !entry->row->updates[0].empty()) {
    static const v1::TensorSpec unknown;  // types play no part here
    const auto call = Call::Bind(entry->schema, op, [](const v1::ValueRef&) { return &unknown; });
    for (const absl::string_view argument : entry->row->updates) {
      if (call.ok() && call->Bool("training") && !argument.empty() && call->Has(argument)) {
        written.push_back(call->Reference(argument));
      }
    }
  }
  written.insert(written.end(), op.counters().begin(), op.counters().end());
  return written;
}

std::vector<int64_t> ShapeOf(const v1::TensorSpec& spec, int64_t samples) {
  std::vector<int64_t> shape;
  shape.reserve(spec.shape_size());
  for (const int64_t d : spec.shape()) {
    int64_t scaled = d;
    if (d < 0 && __builtin_mul_overflow(-d, samples, &scaled)) scaled = std::numeric_limits<int64_t>::max();
    shape.push_back(scaled);
  }
  return shape;
}

int64_t BytesOf(const v1::TensorSpec& spec, int64_t samples) {
  int64_t bytes = BytesPerElement(spec.dtype());
  for (const int64_t d : ShapeOf(spec, samples)) {
    if (__builtin_mul_overflow(bytes, d, &bytes)) return std::numeric_limits<int64_t>::max();
  }
  return bytes;
}

int64_t ValueAt(const v1::AffineInt& number, int64_t samples) {
  constexpr auto kMax = std::numeric_limits<int64_t>::max();
  constexpr auto kMin = std::numeric_limits<int64_t>::min();
  int64_t result = 0;
  if (__builtin_mul_overflow(number.times_batch(), samples, &result))
    return number.times_batch() > 0 ? kMax : kMin;
  if (__builtin_add_overflow(result, number.value(), &result)) return number.value() > 0 ? kMax : kMin;
  return result;
}

std::string OperatorSignature(const v1::Graph& graph, int index, int64_t samples) {
  const v1::Operator& op = graph.operators(index);
  std::string signature = op.type();
  if (!op.overload().empty()) absl::StrAppend(&signature, ".", op.overload());
  const char* separator = "(";
  for (const v1::Argument& argument : op.args()) {
    absl::StrAppend(&signature, separator);
    AppendArgument(graph, index, samples, argument, &signature);
    separator = ",";
  }
  for (const v1::NamedArgument& named : op.kwargs()) {
    absl::StrAppend(&signature, separator, named.name(), "=");
    AppendArgument(graph, index, samples, named.argument(), &signature);
    separator = ",";
  }
  return absl::StrCat(signature, *separator == '(' ? "()" : ")");
}

std::vector<bool> CarriesGradient(const v1::Graph& graph) {
  const GraphIndex index(graph);
  std::vector<bool> carries(graph.operators_size());
  for (int i = 0; i < graph.operators_size(); ++i) {
    const v1::Operator& op = graph.operators(i);
    if (op.kind() == v1::Operator::VARIABLE) {
      carries[i] = op.variable().trainable();
      continue;
    }
    const RegisteredOperator* entry = FindRegistered(op);
    if (entry != nullptr && !entry->row->differentiable) continue;
    ForEachRead(op, [&](const v1::ValueRef& ref) {
      const int producer = index.Find(ref.operator_());
      if (producer >= 0 && carries[producer] && IsFloating(index.At(producer).outputs(ref.index()).dtype())) {
        carries[i] = true;
      }
    });
  }
  return carries;
}

std::vector<bool> HoldsImages(const v1::Graph& graph) {
  constexpr int kImageRank = 4;
  const GraphIndex index(graph);
  std::vector<bool> holds(graph.operators_size());
  for (int i = 0; i < graph.operators_size(); ++i) {
    const v1::Operator& op = graph.operators(i);
    if (op.kind() == v1::Operator::VARIABLE || op.outputs(0).shape_size() != kImageRank) continue;
    const RegisteredOperator* entry = FindRegistered(op.type(), op.overload());
    holds[i] = op.kind() == v1::Operator::PLACEHOLDER || (entry != nullptr && entry->row->images);
    ForEachRead(op, [&](const v1::ValueRef& ref) {
      const int producer = index.Find(ref.operator_());
      if (producer < 0 || !holds[producer]) return;
      // Outside the registry nothing is known of what an operator does; images most likely stay images.
      if (entry == nullptr || ShapeFrom(op.outputs(0)) == ShapeFrom(index.At(producer).outputs(0))) {
        holds[i] = true;
      }
    });
  }
  return holds;
}

int64_t ParameterCount(const v1::Graph& graph) {
  int64_t count = 0;
  for (const v1::Operator& op : graph.operators()) {
    if (op.kind() != v1::Operator::VARIABLE || !op.variable().trainable()) continue;
    int64_t elements = 1;
    for (const int64_t d : op.outputs(0).shape()) elements *= d;
    count += elements;
  }
  return count;
}

}  // namespace fusion::graph
