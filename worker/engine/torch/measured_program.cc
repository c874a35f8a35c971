#include "worker/engine/torch/measured_program.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "graph/registry.h"

namespace fusion::worker::engine {
namespace {

using graph::v1::Argument;
using graph::v1::Edge;
using graph::v1::Graph;
using graph::v1::Operator;
using graph::v1::ValueRef;

template <class Visit>
void ForEachReference(Operator& op, const Visit& visit) {
  const auto argument = [&](Argument& a) {
    if (a.has_value()) {
      visit(*a.mutable_value());
    }
    if (a.has_values()) {
      for (ValueRef& ref : *a.mutable_values()->mutable_items()) {
        visit(ref);
      }
    }
  };
  for (Argument& a : *op.mutable_args()) {
    argument(a);
  }
  for (graph::v1::NamedArgument& named : *op.mutable_kwargs()) {
    argument(*named.mutable_argument());
  }
}

class Maker {
 public:
  Maker(const Graph& graph, int64_t samples)
      : graph_(graph), samples_(samples), carries_gradient_(graph::CarriesGradient(graph)) {
    for (int i = 0; i < graph.operators_size(); ++i) {
      index_of_[graph.operators(i).name()] = i;
      std::set<std::pair<std::string, int>> read;
      Operator copy = graph.operators(i);
      ForEachReference(copy, [&](const ValueRef& ref) { read.insert({ref.operator_(), ref.index()}); });
      for (const auto& value : read) {
        ++readers_[value];
      }
    }
  }

  absl::StatusOr<MeasuredProgram> Make(const std::function<bool(const std::string& signature)>& wanted) {
    result_.program.add_sub_dags()->set_depth(1);
    std::set<std::string> seen;
    for (int i = 0; i < graph_.operators_size(); ++i) {
      const Operator& op = graph_.operators(i);
      if (op.kind() == Operator::PLACEHOLDER || op.kind() == Operator::VARIABLE) {
        continue;
      }
      std::string signature = graph::OperatorSignature(graph_, i, samples_);
      if (!seen.insert(signature).second || !wanted(signature)) {
        continue;
      }
      result_.signatures.push_back(std::move(signature));
      if (absl::Status status = Add(i); !status.ok()) {
        return status;
      }
    }
    return std::move(result_);
  }

 private:
  absl::Status Add(int index) {
    Operator op = graph_.operators(index);
    op.set_name(absl::StrCat("measured.", index));
    op.clear_counters();
    absl::Status status;
    std::map<std::pair<std::string, int>, std::string> edges;
    ForEachReference(op, [&](ValueRef& ref) {
      const auto producer = index_of_.find(ref.operator_());
      if (producer == index_of_.end() || producer->second >= index || ref.index() < 0 ||
          ref.index() >= graph_.operators(producer->second).outputs_size()) {
        status = absl::InvalidArgumentError(absl::StrCat("operator '", graph_.operators(index).name(),
                                                         "' reads unknown value '", ref.operator_(), "'"));
        return;
      }
      if (graph_.operators(producer->second).kind() == Operator::VARIABLE) {
        AddVariable(producer->second);
        return;
      }
      std::string& name = edges[{ref.operator_(), ref.index()}];
      if (name.empty()) {
        name = AddIncoming(producer->second, ref.index(), op.name());
      }
      ref.set_operator_(name);
      ref.set_index(0);
    });
    if (!status.ok()) {
      return status;
    }
    (*result_.program.mutable_positions())[op.name()] = index;
    for (int output = 0; output < op.outputs_size(); ++output) {
      AddOutgoing(index, output, op.name());
    }
    *result_.program.mutable_sub_dags(0)->add_operators() = std::move(op);
    return absl::OkStatus();
  }

  void AddVariable(int index) {
    const Operator& variable = graph_.operators(index);
    if (variables_.insert(variable.name()).second) {
      *result_.program.mutable_sub_dags(0)->add_operators() = variable;
    }
  }

  Edge MakeEdge(int producer, int output, const std::string& value, const std::string& consumer) {
    const graph::v1::TensorSpec& spec = graph_.operators(producer).outputs(output);
    Edge edge;
    edge.set_id(next_edge_++);
    edge.mutable_value()->set_operator_(value);
    edge.mutable_value()->set_index(output);
    *edge.mutable_spec() = spec;
    edge.add_consumers(consumer);
    edge.set_differentiable(carries_gradient_[static_cast<size_t>(producer)] &&
                            graph::IsFloating(spec.dtype()));
    return edge;
  }

  std::string AddIncoming(int producer, int output, const std::string& consumer) {
    std::string name = absl::StrCat("given.", next_edge_);
    Edge edge = MakeEdge(producer, output, name, consumer);
    edge.mutable_value()->set_index(0);
    edge.set_from_stage(1);
    edge.add_to_sub_dags(0);
    *result_.program.add_incoming() = std::move(edge);
    return name;
  }

  void AddOutgoing(int index, int output, const std::string& value) {
    const int readers = std::max(1, readers_[{graph_.operators(index).name(), output}]);
    for (int reader = 0; reader < readers; ++reader) {
      const std::string sink = absl::StrCat("sink.", next_edge_);
      (*result_.program.mutable_positions())[sink] = graph_.operators_size() + next_edge_;
      Edge edge = MakeEdge(index, output, value, sink);
      edge.set_to_stage(1);
      *result_.program.add_outgoing() = std::move(edge);
    }
  }

  const Graph& graph_;
  const int64_t samples_;
  const std::vector<bool> carries_gradient_;
  std::map<std::string, int> index_of_;
  std::map<std::pair<std::string, int>, int> readers_;
  std::set<std::string> variables_;
  int32_t next_edge_ = 0;
  MeasuredProgram result_;
};

}  // namespace

absl::StatusOr<MeasuredProgram> ProgramOfDistinctOperators(
    const Graph& graph, int64_t samples, const std::function<bool(const std::string& signature)>& wanted) {
  return Maker(graph, samples).Make(wanted);
}

}  // namespace fusion::worker::engine
