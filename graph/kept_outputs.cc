#include <set>
#include <utility>
#include <vector>

#include "graph/graph_index.h"
#include "graph/operator_row.h"
#include "graph/registry.h"

namespace fusion::graph {
namespace {

/// Walks the operators from the last to the first, so that whether a view is kept is known before its source.
class KeptOutputs {
 public:
  KeptOutputs(const v1::Graph& graph, int64_t samples)
      : graph_(graph), samples_(samples), index_(graph), carries_gradient_(CarriesGradient(graph)) {}

  std::vector<double> Run() {
    std::vector<double> bytes(graph_.operators_size());
    for (int i = graph_.operators_size() - 1; i >= 0; --i) {
      const v1::Operator& op = graph_.operators(i);
      if (op.kind() == v1::Operator::VARIABLE) continue;
      const RegisteredOperator* entry = FindRegistered(op);
      if (op.kind() != v1::Operator::PLACEHOLDER) MarkReads(i, entry);
      if (entry != nullptr && entry->row->aliases) continue;  // its source has the bytes
      for (int output = 0; output < op.outputs_size(); ++output) {
        if (kept_.contains({i, output}))
          bytes[i] += static_cast<double>(BytesOf(op.outputs(output), samples_));
      }
    }
    return bytes;
  }

 private:
  void Keep(const v1::ValueRef& ref) { kept_.insert({index_.Find(ref.operator_()), ref.index()}); }

  void MarkReads(int i, const RegisteredOperator* entry) {
    const v1::Operator& op = graph_.operators(i);
    if (entry == nullptr) {
      if (carries_gradient_[i]) ForEachRead(op, [this](const v1::ValueRef& ref) { Keep(ref); });
      return;
    }
    if (entry->row->aliases) {
      if (kept_.contains({i, 0})) ForEachRead(op, [this](const v1::ValueRef& ref) { Keep(ref); });
      return;
    }
    if (entry->row->saves == nullptr) return;
    const auto call = Call::Bind(entry->schema, op,
                                 [this](const v1::ValueRef& ref) -> absl::StatusOr<const v1::TensorSpec*> {
                                   return &index_.At(index_.Find(ref.operator_())).outputs(ref.index());
                                 });
    if (!call.ok()) return;
    const Execution::NeedsGradient needs_gradient = [this](const v1::ValueRef& ref) {
      return carries_gradient_[index_.Find(ref.operator_())];
    };
    const SavedValues saved = entry->row->saves(Execution(*call, op, samples_, needs_gradient));
    for (const absl::string_view argument : saved.arguments) Keep(call->Reference(argument));
    for (int output = 0; saved.outputs && output < op.outputs_size(); ++output) kept_.insert({i, output});
  }

  const v1::Graph& graph_;
  const int64_t samples_;
  const GraphIndex index_;
  const std::vector<bool> carries_gradient_;
  std::set<std::pair<int, int>> kept_;  ///< (operator, output)
};

}  // namespace

std::vector<double> KeptOutputBytes(const v1::Graph& graph, int64_t samples) {
  return KeptOutputs(graph, samples).Run();
}

}  // namespace fusion::graph
