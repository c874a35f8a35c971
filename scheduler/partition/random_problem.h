// Small random scheduling problems for tests: unequal nodes and links, skip edges, pins, memory limits,
// shared variables.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/problem.h"

namespace fusion::scheduler {

/// Instance `seed` of a fixed family: at most 8 operators and 4 nodes. `rate` multiplies every bandwidth.
class RandomProblem {
 public:
  explicit RandomProblem(uint64_t seed, double rate = 1)
      : random_(seed * 0x9E3779B97F4A7C15 + 1), rate_(rate) {}

  Problem Make() {
    Problem problem;
    problem.micro_batches = Between(1, 8);
    problem.gpipe = Chance(0.15);
    problem.training = !Chance(0.1);
    AddOperators(problem);
    AddValues(problem);
    AddNodes(problem);
    AddPins(problem);
    problem.max_stages = Chance(0.25) ? Between(1, 3) : 4;
    if (Chance(0.25)) AddShared(problem);
    return problem;
  }

 private:
  int Between(int low, int high) { return low + static_cast<int>(random_() % (high - low + 1)); }
  double Uniform() { return static_cast<double>(random_() >> 11) / static_cast<double>(1ULL << 53); }
  bool Chance(double share) { return Uniform() < share; }
  double LogUniform(double low, double high) { return low * std::pow(high / low, Uniform()); }

  void AddOperators(Problem& problem) {
    const int count = Between(2, 8);
    for (int i = 0; i < count; ++i) {
      OperatorWork& op = problem.operators.emplace_back();
      op.name = absl::StrCat("op", i);
      const double seconds = Chance(0.2) ? 0 : LogUniform(1e-3, 1e-1);
      op.forward[Between(0, kOperatorClasses - 1)] = seconds;
      op.backward[0] = seconds * 2;
      op.flops = seconds * 3e9;
      op.parameters = Chance(0.5) ? Between(1, 1'000'000) : 0;
      op.variable_bytes = op.parameters * 4;
      op.optimizer_bytes = op.parameters * 12;
      op.output_bytes = static_cast<int64_t>(LogUniform(1e3, 1e7)) / 4 * 4;
      op.saved_bytes = op.output_bytes + (Chance(0.5) ? op.output_bytes : 0);
    }
  }

  // Every operator but the last is read; half of the graphs are chains with a few skip edges.
  void AddValues(Problem& problem) {
    const int count = static_cast<int>(problem.operators.size());
    std::vector<std::set<int>> consumers(count);
    const bool chain = Chance(0.5);
    for (int i = 1; i < count; ++i) consumers[chain ? i - 1 : Between(0, i - 1)].insert(i);
    for (int extra = Between(0, 3); extra > 0; --extra) {
      const int to = Between(1, count - 1);
      consumers[Between(0, to - 1)].insert(to);
    }
    for (int i = 0; i + 1 < count; ++i) {
      if (consumers[i].empty()) consumers[i].insert(Between(i + 1, count - 1));
      Value& value = problem.values.emplace_back();
      value.producer = i;
      value.consumers.assign(consumers[i].begin(), consumers[i].end());
      value.bytes = problem.operators[i].output_bytes;
      value.layout = {1, value.bytes / 4};
      value.floating = value.differentiable = i > 0 || Chance(0.5);
    }
  }

  void AddNodes(Problem& problem) {
    const int count = Between(1, 4);
    const bool tight = Chance(0.4);
    int64_t all = 0;
    for (const OperatorWork& op : problem.operators)
      all += op.variable_bytes + op.optimizer_bytes + 2 * op.saved_bytes;
    const bool own_links = Chance(0.5);
    const int clusters = own_links ? count : Between(1, std::min(count, 2));
    problem.network = Network(clusters);
    for (int i = 0; i < count; ++i) {
      Node& node = problem.nodes.emplace_back();
      node.name = absl::StrCat("n", i);
      const int cluster = own_links ? i : Between(0, clusters - 1);
      node.cluster = absl::StrCat("c", cluster);
      const double slowness = LogUniform(0.5, 4);
      node.seconds_per_work.fill(slowness);
      node.flops = 1e9 / slowness;
      node.update_seconds_per_parameter = 1e-9;
      node.memory_bytes = tight ? static_cast<int64_t>(static_cast<double>(all) * LogUniform(0.3, 1.5))
                                : std::numeric_limits<int64_t>::max();
      node.slots = Chance(0.1) ? 2 : 1;
      const double rate = rate_ * LogUniform(1e7, 1e9);
      problem.network.AddNode(cluster, {problem.network.AddResource(absl::StrCat("n", i, ">"), rate),
                                        problem.network.AddResource(absl::StrCat(">n", i), rate), 1e-4});
    }
    for (int a = 0; a < clusters; ++a) {
      for (int b = 0; b < clusters; ++b) {
        if (a == b) continue;
        const int resource =
            problem.network.AddResource(absl::StrCat("c", a, ">c", b), rate_ * LogUniform(1e6, 1e9));
        problem.network.SetClusterWay(a, b, problem.network.MakeWay({resource}, LogUniform(1e-4, 5e-2)));
      }
    }
  }

  void AddPins(Problem& problem) {
    const int nodes = static_cast<int>(problem.nodes.size());
    if (Chance(0.2)) {  // private data and labels
      problem.operators.front().pinned_node = problem.operators.back().pinned_node = Between(0, nodes - 1);
    } else if (Chance(0.3)) {
      const int op = Between(0, static_cast<int>(problem.operators.size()) - 1);
      problem.operators[op].pinned_node = Between(0, nodes - 1);
    }
  }

  void AddShared(Problem& problem) {
    const int count = static_cast<int>(problem.operators.size());
    const int first = Between(0, count - 2);
    problem.shared.push_back(
        {{first, Between(first + 1, count - 1)}, static_cast<int64_t>(LogUniform(1e4, 1e7))});
  }

  std::mt19937_64 random_;
  const double rate_;
};

}  // namespace fusion::scheduler
