#include "scheduler/workload.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/graph_index.h"
#include "graph/registry.h"
#include "proto/validation.h"

namespace fusion::scheduler {
namespace {

using graph::OperatorCost;

bool HasMomentum(const v1alpha1::Training& training, const std::string& parameter) {
  for (const v1alpha1::ParameterGroup& group : training.parameter_groups()) {
    if (!api::MatchesGlob(group.match(), parameter)) continue;
    if (group.optimizer().has_momentum()) return group.optimizer().momentum() > 0;
    break;
  }
  return training.optimizer().momentum() > 0;
}

/// Copies of a parameter's size that its gradient and optimizer state take.
int64_t OptimizerCopies(const v1alpha1::Training& training, const std::string& parameter) {
  constexpr int64_t kGradient = 1;
  if (training.optimizer().type() != v1alpha1::Optimizer::SGD) return kGradient + 2;  // both moments of Adam
  return kGradient + (HasMomentum(training, parameter) ? 1 : 0);
}

class Estimator {
 public:
  Estimator(const graph::v1::Graph& graph, int64_t samples, const v1alpha1::Training& training,
            const MachineProfile& machine, Problem& problem)
      : graph_(graph),
        samples_(samples),
        training_(training),
        machine_(machine),
        problem_(problem),
        index_(graph),
        carries_gradient_(graph::CarriesGradient(graph)),
        holds_images_(graph::HoldsImages(graph)),
        kept_output_bytes_(graph::KeptOutputBytes(graph, samples)),
        operator_of_(graph.operators_size(), -1) {}

  absl::Status Run() {
    for (int i = 0; i < graph_.operators_size(); ++i) {
      if (graph_.operators(i).kind() == graph::v1::Operator::VARIABLE) continue;
      operator_of_[i] = static_cast<int>(problem_.operators.size());
      if (absl::Status status = AddOperator(i); !status.ok()) return status;
    }
    for (auto& [variable, readers] : readers_) {
      if (readers.size() < 2) continue;
      const graph::v1::Operator& op = graph_.operators(variable);
      problem_.shared.push_back(
          {readers, graph::BytesOf(op.outputs(0), samples_), op.variable().trainable()});
    }
    problem_.loss = operator_of_[index_.Find(graph_.loss().operator_())];
    return absl::OkStatus();
  }

 private:
  double Seconds(const OperatorCost& cost, double flops, double bytes) const {
    double seconds = machine_.operator_seconds;
    seconds += flops / (machine_.lambda[static_cast<int>(cost.kind)] * machine_.flops);
    if (machine_.memory_bytes_per_second > 0) seconds += bytes / machine_.memory_bytes_per_second;
    return seconds;
  }

  absl::Status AddOperator(int i) {
    const graph::v1::Operator& op = graph_.operators(i);
    const absl::StatusOr<OperatorCost> cost = graph::CostOf(graph_, i, samples_);
    if (!cost.ok()) return cost.status();
    OperatorWork& work = problem_.operators.emplace_back();
    work.name = op.name();
    work.output_bytes = static_cast<int64_t>(cost->output_bytes);
    work.internal_bytes = static_cast<int64_t>(cost->saved_bytes);
    work.saved_bytes = static_cast<int64_t>(cost->saved_bytes + kept_output_bytes_[i]);
    work.fed = op.kind() == graph::v1::Operator::PLACEHOLDER;
    if (!work.fed) AddSeconds(i, *cost, work);
    AddReads(i, work);
    return absl::OkStatus();
  }

  void AddSeconds(int i, const OperatorCost& cost, OperatorWork& work) {
    OperatorSeconds seconds;
    const auto measured = machine_.operators.empty()
                              ? machine_.operators.end()
                              : machine_.operators.find(graph::OperatorSignature(graph_, i, samples_));
    if (measured != machine_.operators.end()) {
      seconds = measured->second;
    } else {
      seconds.forward = Seconds(cost, cost.forward_flops, cost.forward_bytes);
      seconds.backward = Seconds(cost, cost.backward_flops, cost.backward_bytes);
    }
    const auto kind = static_cast<size_t>(cost.kind);
    work.flops = cost.forward_flops * (training_.recompute() ? 2 : 1);
    work.forward[kind] = seconds.forward;
    work.backward[kind] = training_.recompute() ? seconds.forward : 0;
    if (!carries_gradient_[i]) return;
    work.flops += cost.backward_flops;
    work.backward[kind] += seconds.backward;
  }

  void AddReads(int i, OperatorWork& work) {
    const int reader = operator_of_[i];
    graph::ForEachRead(graph_.operators(i), [&](const graph::v1::ValueRef& ref) {
      const int producer = index_.Find(ref.operator_());
      const graph::v1::Operator& source = graph_.operators(producer);
      if (source.kind() != graph::v1::Operator::VARIABLE) return AddValue(producer, ref.index(), reader);
      std::vector<int>& readers = readers_[producer];
      if (readers.empty()) Own(source, work);
      if (readers.empty() || readers.back() != reader) readers.push_back(reader);
    });
  }

  void Own(const graph::v1::Operator& variable, OperatorWork& work) const {
    const int64_t bytes = graph::BytesOf(variable.outputs(0), samples_);
    work.variable_bytes += bytes;
    if (!variable.variable().trainable()) return;
    int64_t elements = 1;
    for (const int64_t dimension : graph::ShapeOf(variable.outputs(0), samples_)) elements *= dimension;
    work.parameters += elements;
    work.optimizer_bytes += bytes * OptimizerCopies(training_, variable.variable().tensor_name());
  }

  void AddValue(int producer, int output, int reader) {
    const auto [place, added] = value_of_.emplace(std::pair(producer, output), problem_.values.size());
    if (added) {
      const graph::v1::TensorSpec& spec = graph_.operators(producer).outputs(output);
      Value& value = problem_.values.emplace_back();
      value.producer = operator_of_[producer];
      value.bytes = graph::BytesOf(spec, samples_);
      value.layout = codec::LayoutOf(graph::ShapeOf(spec, samples_), holds_images_[producer]);
      value.floating = graph::IsFloating(spec.dtype());
      value.kept = kept_output_bytes_[producer] > 0;
      value.differentiable = value.floating && carries_gradient_[producer];
    }
    std::vector<int>& consumers = problem_.values[place->second].consumers;
    if (consumers.empty() || consumers.back() != reader) consumers.push_back(reader);
  }

  const graph::v1::Graph& graph_;
  const int64_t samples_;
  const v1alpha1::Training& training_;
  const MachineProfile& machine_;
  Problem& problem_;
  const graph::GraphIndex index_;
  const std::vector<bool> carries_gradient_;     ///< by graph operator
  const std::vector<bool> holds_images_;         ///< by graph operator
  const std::vector<double> kept_output_bytes_;  ///< by graph operator
  std::vector<int> operator_of_;                 ///< Problem's index by the graph's, -1 for variables
  std::map<std::pair<int, int>, int> value_of_;  ///< by (graph operator, output)
  std::map<int, std::vector<int>> readers_;      ///< of variables, by graph operator
};

}  // namespace

absl::Status AddWorkload(const graph::v1::Graph& graph, int64_t samples, const v1alpha1::Training& training,
                         const MachineProfile& machine, Problem& problem) {
  return Estimator(graph, samples, training, machine, problem).Run();
}

double ReachedShare(const Problem& problem, const MachineProfile& machine) {
  double flops = 0;
  double seconds = 0;
  for (const OperatorWork& work : problem.operators) {
    flops += work.flops;
    for (const double part : work.forward) seconds += part;
    for (const double part : work.backward) seconds += part;
  }
  return seconds > 0 && flops > 0 ? flops / (seconds * machine.flops) : 1;
}

}  // namespace fusion::scheduler
