#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/builder.h"
#include "graph/graph_index.h"
#include "graph/registry.h"
#include "graph/slicing.h"

namespace fusion::graph {
namespace {

v1::Operator CodecOperator(const v1::Edge& edge) {
  v1::Operator op;
  op.set_name(edge.value().index() == 0 ? absl::StrCat(edge.value().operator_(), ".codec.", edge.to_stage())
                                        : absl::StrCat(edge.value().operator_(), ".", edge.value().index(),
                                                       ".codec.", edge.to_stage()));
  op.set_kind(v1::Operator::NON_PARAMETRIC);
  op.set_type("fusion.codec");
  *op.add_args() = Read(edge.value());
  *op.add_args() = Text(edge.forward_codec());
  if (edge.per_sample()) *op.add_args() = Bool(true);
  *op.add_outputs() = edge.spec();
  return op;
}

void Redirect(const v1::ValueRef& from, const std::string& to, v1::Operator& reader) {
  const auto value = [&](v1::ValueRef& ref) {
    if (ref.operator_() != from.operator_() || ref.index() != from.index()) return;
    ref.set_operator_(to);
    ref.set_index(0);
  };
  const auto argument = [&](v1::Argument& a) {
    if (a.has_value()) value(*a.mutable_value());
    if (a.has_values()) {
      for (v1::ValueRef& item : *a.mutable_values()->mutable_items()) value(item);
    }
  };
  for (v1::Argument& a : *reader.mutable_args()) argument(a);
  for (v1::NamedArgument& a : *reader.mutable_kwargs()) argument(*a.mutable_argument());
}

}  // namespace

absl::StatusOr<v1::Graph> InsertCodecs(const v1::Graph& graph,
                                       const std::vector<v1::StageProgram>& programs) {
  const GraphIndex index(graph);
  v1::Graph changed = graph;
  std::map<int, std::vector<v1::Operator>> before;  // by position of the first reader
  for (const v1::StageProgram& program : programs) {
    for (const v1::Edge& edge : program.incoming()) {
      if (edge.forward_codec() != edge.backward_codec()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "edge ", edge.id(), " of '", edge.value().operator_(), "' has codecs '", edge.forward_codec(),
            "' and '", edge.backward_codec(), "'; one operator stands for both"));
      }
      if (edge.phases_size() > 0) {
        return absl::InvalidArgumentError(absl::StrCat("edge ", edge.id(), " of '", edge.value().operator_(),
                                                       "' changes its codec; an operator cannot"));
      }
      if (edge.forward_codec().empty() || edge.forward_codec() == kDenseCodec) continue;
      v1::Operator codec = CodecOperator(edge);
      for (const std::string& consumer : edge.consumers()) {
        const int position = index.Find(consumer);
        if (position < 0) {
          return absl::InvalidArgumentError(
              absl::StrCat("edge ", edge.id(), ": unknown operator '", consumer, "'"));
        }
        Redirect(edge.value(), codec.name(), *changed.mutable_operators(position));
      }
      before[index.Find(edge.consumers(0))].push_back(std::move(codec));
    }
  }
  v1::Graph result;
  result.set_name(graph.name());
  *result.mutable_loss() = graph.loss();
  for (int i = 0; i < changed.operators_size(); ++i) {
    for (v1::Operator& codec : before[i]) *result.add_operators() = std::move(codec);
    *result.add_operators() = std::move(*changed.mutable_operators(i));
  }
  if (auto status = ValidateGraph(result); !status.ok()) return status;
  return result;
}

}  // namespace fusion::graph
