// Operators of a graph by name.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "fusion/graph/v1/graph.pb.h"

namespace fusion::graph {

/// Calls `visit(ref)` for every value that an operator reads, in argument order, repeated ones repeatedly,
/// then for its counters.
template <typename Visitor>
void ForEachRead(const v1::Operator& op, Visitor visit) {
  const auto argument = [&visit](const v1::Argument& a) {
    if (a.has_value()) visit(a.value());
    for (const v1::ValueRef& item : a.values().items()) visit(item);
  };
  for (const v1::Argument& a : op.args()) argument(a);
  for (const v1::NamedArgument& a : op.kwargs()) argument(a.argument());
  for (const v1::ValueRef& counter : op.counters()) visit(counter);
}

/// Positions of operators in a graph, which must outlive the index and not change.
class GraphIndex {
 public:
  explicit GraphIndex(const v1::Graph& graph) : graph_(graph) {
    positions_.reserve(graph.operators_size());
    for (int i = 0; i < graph.operators_size(); ++i) positions_.try_emplace(graph.operators(i).name(), i);
  }

  /// -1 for an unknown name; the first of several operators with one name.
  int Find(absl::string_view name) const {
    const auto found = positions_.find(name);
    return found == positions_.end() ? -1 : found->second;
  }
  const v1::Operator& At(int position) const { return graph_.operators(position); }

 private:
  const v1::Graph& graph_;
  absl::flat_hash_map<absl::string_view, int> positions_;
};

}  // namespace fusion::graph
