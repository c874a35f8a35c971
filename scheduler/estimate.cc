#include "scheduler/estimate.h"

#include <algorithm>

namespace fusion::scheduler {
namespace {

class Walker {
 public:
  Walker(const Problem& problem, const Partition& partition, const Quotient& quotient,
         const SimulationOptions& options)
      : problem_(problem), partition_(partition), quotient_(quotient), free_links_(options.free_links) {}

  Passage Walk() {
    const size_t count = quotient_.sub_dags.size();
    passage_.forward_start.assign(count, 0);
    passage_.end.assign(count, -1);
    forward_end_.assign(count, 0);
    stage_load_.assign(quotient_.stages(), 0);
    resource_load_.assign(problem_.network.resources.size(), 0);
    WeighEdges();
    for (const int s : TopologicalOrder(quotient_)) Forward(s);
    for (size_t s = 0; s < count; ++s)
      passage_.seconds = std::max(passage_.seconds, End(static_cast<int>(s)));
    for (const double load : stage_load_) {
      passage_.bottleneck_seconds = std::max(passage_.bottleneck_seconds, load);
    }
    for (const double load : resource_load_) {
      passage_.bottleneck_seconds = std::max(passage_.bottleneck_seconds, load);
    }
    return std::move(passage_);
  }

 private:
  double Carry(int from_stage, int to_stage, int64_t bytes) {
    const Way way =
        problem_.network.Between(partition_.stages[from_stage].node, partition_.stages[to_stage].node);
    if (free_links_ || way.resources.empty()) return way.latency_seconds;
    const auto sent = static_cast<double>(MessageBytes(bytes, way.bytes_per_second));
    for (const int resource : way.resources) {
      resource_load_[resource] += sent / problem_.network.resources[resource].bytes_per_second;
    }
    return way.latency_seconds + sent / way.bytes_per_second;
  }

  void WeighEdges() {
    for (const QuotientEdge& edge : quotient_.edges) {
      const codec::Codec codec = CodecBetween(partition_, edge.from_stage, edge.to_stage);
      value_seconds_.push_back(Carry(edge.from_stage, edge.to_stage, ForwardBytes(problem_, edge, codec)));
      gradient_seconds_.push_back(
          edge.differentiable ? Carry(edge.to_stage, edge.from_stage, BackwardBytes(problem_, edge, codec))
                              : 0);
    }
  }

  void Forward(int s) {
    const QuotientSubDag& sub_dag = quotient_.sub_dags[s];
    double start = 0;
    for (const int source : sub_dag.reads_from) start = std::max(start, forward_end_[source]);
    for (const int edge : sub_dag.incoming) {
      start = std::max(start, forward_end_[quotient_.edges[edge].from_sub_dag] + value_seconds_[edge]);
    }
    passage_.forward_start[s] = start;
    forward_end_[s] = start + sub_dag.forward_seconds;
    stage_load_[sub_dag.stage] += sub_dag.forward_seconds + sub_dag.backward_seconds;
  }

  double End(int s) {
    if (passage_.end[s] >= 0) return passage_.end[s];
    const QuotientSubDag& sub_dag = quotient_.sub_dags[s];
    double end = forward_end_[s];
    if (sub_dag.backward) {
      for (const int edge : sub_dag.outgoing) {
        if (!quotient_.edges[edge].differentiable) continue;
        end = std::max(end, End(quotient_.edges[edge].to_sub_dags.front()) + gradient_seconds_[edge]);
      }
      for (const int other : sub_dag.waits_for) end = std::max(end, End(other));
      end += sub_dag.backward_seconds;
    }
    return passage_.end[s] = end;
  }

  const Problem& problem_;
  const Partition& partition_;
  const Quotient& quotient_;
  const bool free_links_;
  Passage passage_;
  std::vector<double> forward_end_;
  std::vector<double> value_seconds_;     ///< by edge
  std::vector<double> gradient_seconds_;  ///< by edge
  std::vector<double> stage_load_;
  std::vector<double> resource_load_;
};

}  // namespace

Passage PassageOfOne(const Problem& problem, const Partition& partition, const Quotient& quotient,
                     const SimulationOptions& options) {
  return Walker(problem, partition, quotient, options).Walk();
}

double EstimateStepSeconds(const Problem& problem, const Partition& partition) {
  const Quotient quotient = MakeQuotient(problem, partition);
  const Passage passage = PassageOfOne(problem, partition, quotient, {});
  double seconds = passage.seconds + (problem.micro_batches - 1) * passage.bottleneck_seconds;
  if (!problem.training) return seconds;
  double update = 0;
  for (size_t s = 0; s < partition.stages.size(); ++s) {
    const Node& node = problem.nodes[partition.stages[s].node];
    update =
        std::max(update, node.update_seconds_per_parameter * static_cast<double>(quotient.parameters[s]));
  }
  double loan = 0;
  for (const QuotientLoan& lent : quotient.loans) {
    const int owner = partition.stages[lent.owner_stage].node;
    const int user = partition.stages[lent.user_stage].node;
    const auto bytes = static_cast<double>(problem.shared[lent.shared].bytes);
    loan = std::max(loan, problem.network.Seconds(owner, user, bytes) +
                              problem.network.Seconds(user, owner, bytes * lent.gradients));
  }
  return seconds + update + loan;
}

}  // namespace fusion::scheduler
