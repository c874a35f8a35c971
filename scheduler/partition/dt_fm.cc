// DT-FM's search (Yuan et al. 2022) with one replica: a genetic search over the order of the nodes whose cost
// is the sum of the link times of one micro-batch there and back. It knows neither compute nor memory.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "scheduler/partition.h"
#include "scheduler/partition/baselines.h"
#include "scheduler/partition/feasibility.h"
#include "scheduler/partition/step_cost.h"

namespace fusion::scheduler {
namespace {

constexpr int kPopulation = 100;
constexpr int kTrials = 2000;

using Order = std::vector<int>;

class GeneticSearch {
 public:
  GeneticSearch(const Problem& problem, const StepCost& cost, uint64_t seed)
      : problem_(problem), cost_(cost), random_(seed), bytes_(CutBytes()) {}

  Order Run() {
    std::vector<Order> population;
    std::vector<double> seconds;
    for (int i = 0; i < kPopulation; ++i) {
      Order order = FileOrder(cost_.places());
      for (size_t k = order.size(); k > 1; --k) std::swap(order[k - 1], order[Below(k)]);
      seconds.push_back(Seconds(order));
      population.push_back(std::move(order));
    }
    for (int i = 0; i < kTrials; ++i) {
      const size_t a = Below(population.size());
      const size_t b = Below(population.size());
      Order child = Mutated(Crossed(population[a], population[b]));
      const double child_seconds = Seconds(child);
      const size_t worse = seconds[a] > seconds[b] ? a : b;
      if (child_seconds > seconds[worse]) continue;
      population[worse] = std::move(child);
      seconds[worse] = child_seconds;
    }
    return population[std::min_element(seconds.begin(), seconds.end()) - seconds.begin()];
  }

 private:
  size_t Below(size_t bound) { return random_() % bound; }

  // DT-FM sends one activation size over every hop: here the mean over all cuts.
  double CutBytes() const {
    double bytes = 0;
    for (const Value& value : problem_.values) {
      if (value.consumers.empty()) continue;
      const int last = *std::max_element(value.consumers.begin(), value.consumers.end());
      bytes += cost_.ForwardBytes(value) * (last - value.producer);
    }
    return bytes / std::max<double>(1, static_cast<double>(problem_.operators.size()) - 1);
  }

  double Seconds(const Order& order) const {
    const Order used = UsedPlaces(problem_, cost_.places(), order);
    double seconds = 0;
    for (size_t i = 1; i < used.size(); ++i) {
      const Way way = cost_.WayBetween(cost_.places().node[used[i - 1]], cost_.places().node[used[i]]);
      seconds += 2 * (way.latency_seconds + bytes_ / way.bytes_per_second);
    }
    return seconds;
  }

  // Order crossover: a piece of one parent in its place, the rest in the other's order.
  Order Crossed(const Order& a, const Order& b) {
    size_t from = Below(a.size());
    size_t to = Below(a.size());
    if (from > to) std::swap(from, to);
    std::vector<char> taken(a.size(), 0);
    for (size_t i = from; i <= to; ++i) taken[a[i]] = 1;
    Order child;
    for (int place : b) {
      if (child.size() == from)
        child.insert(child.end(), a.begin() + static_cast<int>(from), a.begin() + static_cast<int>(to) + 1);
      if (!taken[place]) child.push_back(place);
    }
    if (child.size() == from)
      child.insert(child.end(), a.begin() + static_cast<int>(from), a.begin() + static_cast<int>(to) + 1);
    return child;
  }

  // Half of the children have a piece turned round.
  Order Mutated(Order order) {
    if (Below(2) == 0) return order;
    size_t from = Below(order.size());
    size_t to = Below(order.size());
    if (from > to) std::swap(from, to);
    std::reverse(order.begin() + static_cast<int>(from), order.begin() + static_cast<int>(to) + 1);
    return order;
  }

  const Problem& problem_;
  const StepCost& cost_;
  std::mt19937_64 random_;
  const double bytes_;
};

}  // namespace

absl::StatusOr<Partition> PartitionDtFm(const Problem& problem, uint64_t seed) {
  if (absl::Status status = CheckNeeds(problem); !status.ok()) return status;
  const StepCost cost(problem, 1);
  const Order order = GeneticSearch(problem, cost, seed).Run();
  return FinishPartition(problem, cost.places(), AssignEqualCompute(problem, cost.places(), order));
}

}  // namespace fusion::scheduler
