// Small scheduling problems for tests.
#pragma once

#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/problem.h"

namespace fusion::scheduler {

/// A chain of operators, one node each, every ordered pair of nodes with a link of its own.
struct Chain {
  std::vector<double> forward;  ///< seconds, by operator
  std::vector<double> backward;
  int64_t columns = 1000;  ///< of the fp32 value between neighbours: 1 row
  double bytes_per_second = 1e12;
  double latency_seconds = 0;
  int micro_batches = 8;
};

inline Chain UniformChain(int operators, double forward, double backward) {
  Chain chain;
  chain.forward.assign(operators, forward);
  chain.backward.assign(operators, backward);
  return chain;
}

inline Problem MakeChainProblem(const Chain& chain) {
  Problem problem;
  const int count = static_cast<int>(chain.forward.size());
  problem.micro_batches = chain.micro_batches;
  problem.max_stages = count;
  problem.network = Network(count);
  for (int i = 0; i < count; ++i) {
    OperatorWork& work = problem.operators.emplace_back();
    work.name = absl::StrCat("op", i);
    work.forward[0] = chain.forward[i];
    work.backward[0] = chain.backward[i];
    work.output_bytes = work.saved_bytes = chain.columns * 4;
    if (i + 1 < count) {
      Value& value = problem.values.emplace_back();
      value.producer = i;
      value.consumers = {i + 1};
      value.bytes = chain.columns * 4;
      value.layout = {1, chain.columns};
    }
    Node& node = problem.nodes.emplace_back();
    node.name = node.cluster = absl::StrCat("n", i);
    node.seconds_per_work.fill(1);
    node.flops = 1;
    node.memory_bytes = INT64_MAX;
    problem.network.AddNode(i, Port());
  }
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      if (a == b) continue;
      const int resource = problem.network.AddResource(absl::StrCat("n", a, ">n", b), chain.bytes_per_second);
      problem.network.SetClusterWay(a, b, problem.network.MakeWay({resource}, chain.latency_seconds));
    }
  }
  return problem;
}

/// Changes the rate and latency between two neighbours, both ways.
inline void SetLink(Problem& problem, int a, int b, double bytes_per_second, double latency_seconds) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    const int resource = problem.network.Between(from, to).resources[0];
    problem.network.resources[resource].bytes_per_second = bytes_per_second;
    problem.network.SetClusterWay(from, to, problem.network.MakeWay({resource}, latency_seconds));
  }
}

/// Operator i on node i, at 1F1B's depths S - i plus `more`.
inline Partition OneOperatorANode(const Problem& problem, int more = 0) {
  Partition partition;
  const int count = static_cast<int>(problem.operators.size());
  for (int i = 0; i < count; ++i) partition.stages.push_back({i, {{{i}, count - i + more}}});
  return partition;
}

}  // namespace fusion::scheduler
