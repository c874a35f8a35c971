// OP-Fence: islands, orders, dynamic programming, local search, simulation. See partition.h.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/partition.h"
#include "scheduler/partition/baselines.h"
#include "scheduler/partition/chain_partition.h"
#include "scheduler/partition/feasibility.h"
#include "scheduler/partition/local_search.h"
#include "scheduler/partition/node_order.h"
#include "scheduler/partition/step_cost.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {
namespace {

constexpr int kMostOrders = 48;

// Assignments from which the closed form descends, for each share of bytes.
constexpr size_t kStarts = 8;

// Closed forms for each share, and again for all neighbours: as many as visit so many operators.
constexpr int64_t kOperatorVisits = 8'000'000;

// Inner steps of the dynamic programming for each share, and the bounds that an order is likely to take.
constexpr double kChainSteps = 1e9;
constexpr int kLikelyBounds = 36;

// Of the search for any fit at all.
constexpr int64_t kFittingTries = 100'000;

// Neighbours finished from one assignment before the search there ends, and how much worse their closed form
// may be.
constexpr size_t kNeighbours = 32;
constexpr double kWorthSimulating = 1.5;

// A finished candidate must be faster by this share to be the next to improve.
constexpr double kFinishedGain = 1e-3;

// Of plans whose steps differ by less than this share the one with fewer sub-DAGs is chosen.
constexpr double kAlike = 0.01;

// Kicks out of the best local optimum: free operators moved at random, and the seed.
constexpr int kKicks = 24;
constexpr int kKickedOperators = 3;
constexpr uint64_t kSeed = 1;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Candidate {
  Assignment assignment;
  Cost cost;
  size_t share = 0;  ///< index in byte_shares
  bool baseline = false;
};

struct Finished {
  Candidate candidate;
  Partition partition;
  double seconds = kInfinity;
};

double ChooseDepthsAndSimulate(const Problem& problem, Partition& partition) {
  ChooseDepths(problem, partition);
  if (!CheckPartition(problem, partition).ok()) return kInfinity;
  return SimulateStepSeconds(problem, partition);
}

class Search {
 public:
  Search(const Problem& problem, const OpFenceOptions& options)
      : problem_(problem),
        finish_(options.finish ? options.finish : ChooseDepthsAndSimulate),
        finishes_left_(options.most_finished) {
    for (double share : options.byte_shares) costs_.push_back(std::make_unique<StepCost>(problem, share));
    evaluations_ = kOperatorVisits / (static_cast<int64_t>(problem_.operators.size()) + 1);
    neighbours_left_ = evaluations_;
  }

  absl::StatusOr<Partition> Run() {
    std::vector<Candidate> candidates = Baselines();
    for (size_t share = 0; share < costs_.size(); ++share) {
      for (Candidate& candidate : Propose(share)) candidates.push_back(std::move(candidate));
    }
    for (const Candidate& candidate : candidates) Finish(candidate);
    std::vector<Finished> starts = finished_;
    for (const Finished& start : starts) Climb(start);
    for (int kick = 0; kick < kKicks && !finished_.empty(); ++kick) Kick(kick);
    if (finished_.empty()) return Explain(candidates);
    return Chosen().partition;
  }

 private:
  std::vector<Candidate> Baselines() {
    const Places& places = costs_[0]->places();
    std::vector<Candidate> result;
    for (Assignment assignment : {AssignEqualNumber(problem_, places, FileOrder(places)),
                                  AssignEqualCompute(problem_, places, FileOrder(places))}) {
      result.push_back(Weigh(std::move(assignment), 0));
      result.back().baseline = true;
    }
    return result;
  }

  Candidate Weigh(Assignment assignment, size_t share) {
    const Cost cost = costs_[share]->Of(assignment);
    return {std::move(assignment), cost, share, false};
  }

  // The best local optima of the closed form, best first.
  std::vector<Candidate> Propose(size_t share) {
    StepCost& cost = *costs_[share];
    const ChainPartitioner chain(cost);
    std::set<Assignment> seen;
    std::vector<Candidate> starts;
    for (Candidate& baseline : Baselines()) starts.push_back(Weigh(std::move(baseline.assignment), share));
    const double affordable = kChainSteps / (chain.StepsOfABound() * kLikelyBounds);
    const int orders = static_cast<int>(std::clamp<double>(affordable, 2, kMostOrders));
    for (const std::vector<int>& order : PlaceOrders(cost, orders)) {
      for (Assignment& assignment : chain.Partition(order)) {
        if (seen.insert(assignment).second) starts.push_back(Weigh(std::move(assignment), share));
      }
      KeepBest(starts, kStarts);
    }
    for (Candidate& start : starts) DescendFrom(start);
    const bool fits =
        std::any_of(starts.begin(), starts.end(), [](const Candidate& c) { return c.cost.fits(); });
    if (!fits) {
      if (std::optional<Assignment> fitting = FindFitting(cost, kFittingTries)) {
        starts.push_back(Weigh(*std::move(fitting), share));
        DescendFrom(starts.back());
      }
    }
    KeepBest(starts, kStarts);
    return starts;
  }

  void DescendFrom(Candidate& candidate) {
    int64_t evaluations = evaluations_ / static_cast<int64_t>(kStarts);
    candidate.cost = Descend(*costs_[candidate.share], candidate.assignment, evaluations);
  }

  // Sorted by cost, each assignment once.
  static void KeepBest(std::vector<Candidate>& candidates, size_t most) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
    std::set<Assignment> seen;
    std::erase_if(candidates, [&seen](const Candidate& c) { return !seen.insert(c.assignment).second; });
    if (candidates.size() > most) candidates.resize(most);
  }

  // Seconds of the candidate's step; remembers it. Infinity where it was finished before or nothing is left
  // to spend.
  double Finish(const Candidate& candidate) {
    if (!candidate.cost.fits() || finishes_left_ <= 0) return kInfinity;
    if (!tried_.insert(candidate.assignment).second) return kInfinity;
    --finishes_left_;
    const StepCost& cost = *costs_[candidate.share];
    Finished finished{candidate, {}, kInfinity};
    finished.partition = MakePartition(
        problem_, cost.places(), GroupOperators(cost.links(), candidate.assignment, cost.places().size()));
    finished.seconds = finish_(problem_, finished.partition);
    if (finished.seconds == kInfinity) return kInfinity;
    const auto place =
        std::upper_bound(finished_.begin(), finished_.end(), finished.seconds,
                         [](double seconds, const Finished& f) { return seconds < f.seconds; });
    finished_.insert(place, finished);
    return finished.seconds;
  }

  // Descent by finished seconds: neighbours in the order of their closed form.
  void Climb(Finished current) {
    while (finishes_left_ > 0 && neighbours_left_ > 0) {
      StepCost& cost = *costs_[current.candidate.share];
      std::vector<Candidate> neighbours;
      VisitMoves(cost, current.candidate.assignment, [&](const Move& move) {
        Assignment assignment = current.candidate.assignment;
        Apply(move, assignment);
        if (--neighbours_left_ <= 0) return false;
        if (tried_.contains(assignment)) return true;
        Candidate neighbour = Weigh(std::move(assignment), current.candidate.share);
        if (neighbour.cost.fits() &&
            neighbour.cost.seconds < current.candidate.cost.seconds * kWorthSimulating) {
          neighbours.push_back(std::move(neighbour));
        }
        return true;
      });
      KeepBest(neighbours, kNeighbours);
      const double before = current.seconds;
      for (const Candidate& neighbour : neighbours) {
        const double seconds = Finish(neighbour);
        if (seconds >= before * (1 - kFinishedGain)) continue;
        const auto found = std::find_if(finished_.begin(), finished_.end(), [&](const Finished& f) {
          return f.candidate.assignment == neighbour.assignment;
        });
        current = *found;
        break;
      }
      if (current.seconds == before) return;
    }
  }

  // The simplest of those as good as the best, but none slower than a baseline.
  const Finished& Chosen() const {
    double limit = finished_.front().seconds * (1 + kAlike);
    for (const Finished& finished : finished_) {
      if (finished.candidate.baseline) limit = std::min(limit, finished.seconds);
    }
    const Finished* chosen = &finished_.front();
    for (const Finished& finished : finished_) {
      if (finished.seconds > limit) break;
      if (SubDags(finished) < SubDags(*chosen)) chosen = &finished;
    }
    return *chosen;
  }

  static size_t SubDags(const Finished& finished) {
    size_t count = 0;
    for (const PlacedStage& stage : finished.partition.stages) count += stage.sub_dags.size();
    return count;
  }

  // Iterated local search: from the best found, a few operators astray, then both descents again.
  void Kick(int kick) {
    Candidate candidate = finished_.front().candidate;
    candidate.baseline = false;
    const size_t operators = candidate.assignment.size();
    StepCost& cost = *costs_[candidate.share];
    for (int i = 0; i < kKickedOperators; ++i) {
      const size_t op = random_() % operators;
      // To the place of another operator, or now and then to any.
      const int to = random_() % 4 == 0 ? static_cast<int>(random_() % cost.places().size())
                                        : candidate.assignment[random_() % operators];
      if (problem_.operators[op].pinned_node < 0) candidate.assignment[op] = to;
    }
    // Every other time the simulator alone decides: its optima need not be near those of the closed form.
    int64_t evaluations = kick % 2 == 0 ? evaluations_ / kKicks : 0;
    candidate.cost = Descend(cost, candidate.assignment, evaluations);
    Finish(candidate);
    const auto found = std::find_if(finished_.begin(), finished_.end(), [&](const Finished& f) {
      return f.candidate.assignment == candidate.assignment;
    });
    if (found != finished_.end()) Climb(Finished(*found));
  }

  absl::Status Explain(const std::vector<Candidate>& candidates) const {
    const auto closest =
        std::min_element(candidates.begin(), candidates.end(),
                         [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
    const absl::Status why = FinishPartition(problem_, costs_[0]->places(), closest->assignment).status();
    return absl::ResourceExhaustedError(absl::StrCat("no partition fits; the closest one ", why.message()));
  }

  const Problem& problem_;
  const std::function<double(const Problem&, Partition&)> finish_;
  int finishes_left_;
  int64_t evaluations_ = 0;      ///< closed forms for each share
  int64_t neighbours_left_ = 0;  ///< closed forms around finished candidates
  std::mt19937_64 random_{kSeed};
  std::vector<std::unique_ptr<StepCost>> costs_;  ///< by share
  std::set<Assignment> tried_;
  std::vector<Finished> finished_;  ///< fastest first
};

}  // namespace

absl::StatusOr<Partition> PartitionOpFence(const Problem& problem, const OpFenceOptions& options) {
  if (absl::Status status = CheckNeeds(problem); !status.ok()) return status;
  return Search(problem, options).Run();
}

}  // namespace fusion::scheduler
