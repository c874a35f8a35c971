#include "scheduler/link_load.h"

#include <map>
#include <tuple>

namespace fusion::scheduler {
namespace {

int64_t DenseBytes(const Value& value) {
  return value.floating ? value.layout.elements() * static_cast<int64_t>(sizeof(float)) : value.bytes;
}

Way WayBetween(const Problem& problem, const Partition& partition, int from_stage, int to_stage) {
  return problem.network.Between(partition.stages[from_stage].node, partition.stages[to_stage].node);
}

struct Load {
  int64_t dense = 0;
  int64_t bytes = 0;
};

}  // namespace

std::vector<SimulatedLink> LinkLoads(const Problem& problem, const Partition& partition,
                                     const Quotient& quotient) {
  std::map<std::tuple<int, int, bool>, Load> loads;  // false, the values, comes first
  for (const QuotientEdge& edge : quotient.edges) {
    const int from = edge.from_stage;
    const int to = edge.to_stage;
    const codec::Codec codec = CodecBetween(partition, from, to);
    const int64_t dense = DenseBytes(problem.values[edge.value]);
    Load& forward = loads[{from, to, false}];
    forward.dense += dense;
    forward.bytes += MessageBytes(ForwardBytes(problem, edge, codec),
                                  WayBetween(problem, partition, from, to).bytes_per_second);
    if (!edge.differentiable) continue;
    Load& backward = loads[{to, from, true}];
    backward.dense += dense * (codec == codec::Codec() ? edge.cotangents : 1);
    backward.bytes += MessageBytes(BackwardBytes(problem, edge, codec),
                                   WayBetween(problem, partition, to, from).bytes_per_second);
  }
  std::vector<SimulatedLink> links;
  for (const auto& [key, load] : loads) {
    const auto [from, to, backward] = key;
    const Way way = WayBetween(problem, partition, from, to);
    SimulatedLink& link = links.emplace_back();
    link.from_stage = from;
    link.to_stage = to;
    link.forward = !backward;
    link.dense_bytes = load.dense;
    link.bytes = load.bytes;
    link.seconds = way.latency_seconds + static_cast<double>(load.bytes) / way.bytes_per_second;
    link.busy_seconds = static_cast<double>(load.bytes) / way.bytes_per_second * problem.micro_batches;
  }
  return links;
}

std::vector<double> ResourceSeconds(const Problem& problem, const Partition& partition,
                                    const Quotient& quotient) {
  std::vector<double> seconds(problem.network.resources.size(), 0);
  const auto add = [&](int from, int to, double bytes) {
    for (const int resource : WayBetween(problem, partition, from, to).resources) {
      seconds[resource] += bytes / problem.network.resources[resource].bytes_per_second;
    }
  };
  for (const SimulatedLink& link : LinkLoads(problem, partition, quotient)) {
    add(link.from_stage, link.to_stage, static_cast<double>(link.bytes) * problem.micro_batches);
  }
  for (const QuotientLoan& loan : quotient.loans) {
    const auto bytes = static_cast<double>(problem.shared[loan.shared].bytes);
    add(loan.owner_stage, loan.user_stage, bytes);
    add(loan.user_stage, loan.owner_stage, bytes * loan.gradients);
  }
  return seconds;
}

}  // namespace fusion::scheduler
