// OP-Fence against every assignment of operators to stages there is, on 1,000 small random problems, both
// judged by the simulator with the same choice of depths.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "scheduler/partition.h"
#include "scheduler/partition/assignment.h"
#include "scheduler/partition/random_problem.h"
#include "scheduler/partition/step_cost.h"
#include "scheduler/simulator.h"
#include "tests/support/random_cases.h"

namespace fusion::scheduler {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kProblems = RandomCases(1000);
constexpr int kParts = 4;  // so that they can run beside each other

/// Branch and bound: assignments are left out only where one stage or link is busy for longer than the best
/// step so far.
class BruteForce {
 public:
  explicit BruteForce(const Problem& problem)
      : problem_(problem), places_(problem), links_(problem), cost_(problem, 1), load_(places_.size(), 0) {}

  /// Seconds of the best step below `known`, else `known`.
  double Best(double known) {
    best_ = known;
    assignment_.assign(problem_.operators.size(), 0);
    Place(0);
    return best_;
  }

 private:
  void Place(size_t op) {
    if (op == assignment_.size()) return Judge();
    const int pinned = problem_.operators[op].pinned_node;
    for (int place = 0; place < places_.size(); ++place) {
      if (pinned >= 0 && place != places_.first[pinned]) continue;
      const double seconds = cost_.ComputeSeconds(static_cast<int>(op), places_.node[place]);
      if ((load_[place] + seconds) * problem_.micro_batches >= best_) continue;
      load_[place] += seconds;
      assignment_[op] = place;
      Place(op + 1);
      load_[place] -= seconds;
    }
  }

  void Judge() {
    if (cost_.Of(assignment_).bottleneck * problem_.micro_batches >= best_) return;
    Partition partition =
        MakePartition(problem_, places_, GroupOperators(links_, assignment_, places_.size()));
    ChooseDepths(problem_, partition);
    if (!CheckPartition(problem_, partition).ok()) return;
    best_ = std::min(best_, Simulate(problem_, partition).step_seconds);
  }

  const Problem& problem_;
  const Places places_;
  const OperatorLinks links_;
  StepCost cost_;
  std::vector<double> load_;  ///< by place: seconds of a micro-batch
  Assignment assignment_;
  double best_ = kInfinity;
};

class OpFenceAgainstBruteForce : public testing::TestWithParam<int> {};

TEST_P(OpFenceAgainstBruteForce, IsWithin5PercentAtTheMedianAnd25AtWorst) {
  std::vector<double> ratios;
  for (int seed = GetParam(); seed < kProblems; seed += kParts) {
    SCOPED_TRACE(seed);
    const Problem problem = RandomProblem(seed).Make();
    const absl::StatusOr<Partition> partition = PartitionOpFence(problem);
    double found = kInfinity;
    if (partition.ok()) {
      ASSERT_EQ(CheckPartition(problem, *partition), absl::OkStatus());
      found = Simulate(problem, *partition).step_seconds;
    }
    for (const auto& baseline : {PartitionEqualNumber(problem), PartitionEqualCompute(problem)}) {
      if (!baseline.ok()) continue;
      EXPECT_LE(found, Simulate(problem, *baseline).step_seconds);
    }
    const double best = BruteForce(problem).Best(found);
    if (best < kInfinity) {
      ratios.push_back(found / best);
    } else {
      // Nothing fits: the reason has numbers.
      ASSERT_NE(partition.status().message().find_first_of("0123456789"), absl::string_view::npos);
    }
  }
  std::sort(ratios.begin(), ratios.end());
  ASSERT_GE(ratios.size(), kProblems / kParts / 2u);
  RecordProperty("median", std::to_string(ratios[ratios.size() / 2]));
  RecordProperty("worst", std::to_string(ratios.back()));
  EXPECT_LE(ratios[ratios.size() / 2], 1.05);
  EXPECT_LE(ratios.back(), 1.25);
}

INSTANTIATE_TEST_SUITE_P(Part, OpFenceAgainstBruteForce, testing::Range(0, kParts));

}  // namespace
}  // namespace fusion::scheduler
