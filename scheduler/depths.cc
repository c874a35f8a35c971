#include <algorithm>
#include <cmath>

#include "scheduler/estimate.h"
#include "scheduler/memory.h"
#include "scheduler/quotient.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {
namespace {

/// A deeper pipeline must shorten the step by this share to be worth its memory.
constexpr double kWorthwhile = 0.005;

/// Share by which more micro-batches are in flight than the simulated step needs, where delays of links are
/// what needs them. Tasks and messages take now more, now less than simulated; a pipeline without spare ones
/// stands still each time. Measured over links of 40 ms: 4 to 5 % of the step (bench/overlap.py).
constexpr double kSpare = 0.25;

/// By sub-DAG: edges that cross stages on the longest way to a sub-DAG without readers, plus 1. For a chain
/// of S stages this is 1F1B's S - i.
std::vector<int> LongestWay(const Quotient& quotient) {
  std::vector<int> hops(quotient.sub_dags.size(), 0);
  const std::vector<int> order = TopologicalOrder(quotient);
  for (auto s = order.rbegin(); s != order.rend(); ++s) {
    const QuotientSubDag& sub_dag = quotient.sub_dags[*s];
    for (const int source : sub_dag.reads_from) hops[source] = std::max(hops[source], hops[*s]);
    for (const int edge : sub_dag.incoming) {
      int& before = hops[quotient.edges[edge].from_sub_dag];
      before = std::max(before, hops[*s] + 1);
    }
  }
  for (int& hop : hops) ++hop;
  return hops;
}

std::vector<int*> Depths(Partition& partition) {
  std::vector<int*> depths;
  for (PlacedStage& stage : partition.stages) {
    for (PlacedSubDag& sub_dag : stage.sub_dags) depths.push_back(&sub_dag.depth);
  }
  return depths;
}

/// Lowers the depths of stages that do not fit, towards `least`; false when some stage does not fit even so.
bool Fit(const Problem& problem, const std::vector<int>& least, Partition& partition) {
  while (true) {
    const Quotient quotient = MakeQuotient(problem, partition);
    const std::vector<MemoryParts> parts = MemoryOfStages(problem, partition, quotient);
    const std::vector<int*> depths = Depths(partition);
    bool fits = true;
    bool lowered = false;
    for (int s = 0; s < quotient.stages(); ++s) {
      if (parts[s].total() <= problem.nodes[partition.stages[s].node].memory_bytes) continue;
      fits = false;
      for (int d = quotient.first_sub_dag[s]; d < quotient.first_sub_dag[s + 1]; ++d) {
        if (*depths[d] > least[d]) {
          --*depths[d];
          lowered = true;
        }
      }
      // What a stage receives is bounded by its producers' depths.
      for (const QuotientEdge& edge : quotient.edges) {
        if (edge.to_stage != s || *depths[edge.from_sub_dag] <= least[edge.from_sub_dag]) continue;
        --*depths[edge.from_sub_dag];
        lowered = true;
      }
    }
    if (fits || !lowered) return fits;
  }
}

/// Adds spare micro-batches to the depths `best` that are above `least`, if they fit and do not lengthen the
/// simulated step.
void AddSpare(const Problem& problem, const SimulationOptions& options, const std::vector<int>& least,
              const std::vector<int>& best, double best_seconds, Partition& partition) {
  const std::vector<int*> depths = Depths(partition);
  for (size_t d = 0; d < depths.size(); ++d) {
    const int spare = best[d] > least[d] ? static_cast<int>(std::ceil(kSpare * best[d])) : 0;
    *depths[d] = std::min(problem.micro_batches, best[d] + spare);
  }
  // Fit lowers from here, at worst to `best`, which fits.
  if (Fit(problem, best, partition) &&
      SimulateStepSeconds(problem, partition, options) < best_seconds * (1 + kWorthwhile)) {
    return;
  }
  for (size_t d = 0; d < depths.size(); ++d) *depths[d] = best[d];
}

}  // namespace

void ChooseDepths(const Problem& problem, Partition& partition, const SimulationOptions& options) {
  const std::vector<int*> depths = Depths(partition);
  if (problem.gpipe) {
    for (int* depth : depths) *depth = problem.micro_batches;
    return;
  }
  const Quotient quotient = MakeQuotient(problem, partition);
  const Passage passage = PassageOfOne(problem, partition, quotient, options);
  std::vector<int> least = LongestWay(quotient);
  for (int& depth : least) depth = std::min(depth, problem.micro_batches);
  // Little's law: to start a micro-batch every `bottleneck`, a sub-DAG holds (its way to the loss and back /
  // bottleneck) of them. Queues want more; the simulator says how much more pays.
  std::vector<int> best;
  std::vector<int> tried;
  double best_seconds = 0;
  int vain = 0;  // tries beyond Little's law that did not pay
  for (const double share : {0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0}) {
    std::vector<int> wanted = least;
    for (size_t d = 0; d < wanted.size(); ++d) {
      const double held =
          (passage.end[d] - passage.forward_start[d]) / std::max(passage.bottleneck_seconds, 1e-12);
      const double scaled = std::min<double>(problem.micro_batches, std::ceil(share * held));
      wanted[d] = std::max(wanted[d], static_cast<int>(scaled));
      *depths[d] = wanted[d];
    }
    if (!Fit(problem, least, partition)) continue;
    std::vector<int> fitting(depths.size());
    for (size_t d = 0; d < depths.size(); ++d) fitting[d] = *depths[d];
    if (fitting == tried) continue;
    tried = fitting;
    const double seconds = SimulateStepSeconds(problem, partition, options);
    if (best.empty() || seconds < best_seconds * (1 - kWorthwhile)) {
      best = fitting;
      best_seconds = seconds;
      vain = 0;
    } else if (share >= 1 && ++vain == 2) {
      break;
    }
  }
  if (!best.empty()) return AddSpare(problem, options, least, best, best_seconds, partition);
  for (size_t d = 0; d < depths.size(); ++d) *depths[d] = least[d];
}

}  // namespace fusion::scheduler
