// What holds for every policy on any small problem.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "scheduler/partition.h"
#include "scheduler/partition/assignment.h"
#include "scheduler/partition/random_problem.h"
#include "scheduler/partition/step_cost.h"
#include "scheduler/simulator.h"
#include "tests/support/random_cases.h"

namespace fusion::scheduler {

static bool operator==(const PlacedSubDag& a, const PlacedSubDag& b) {
  return a.operators == b.operators && a.depth == b.depth;
}
static bool operator==(const PlacedStage& a, const PlacedStage& b) {
  return a.node == b.node && a.sub_dags == b.sub_dags;
}

namespace {

Problem AnyProblem() { return RandomProblem(*rc::gen::inRange<uint64_t>(1'000'000, 2'000'000)).Make(); }

Assignment AnyAssignment(const Problem& problem, const Places& places) {
  Assignment assignment;
  for (const OperatorWork& op : problem.operators) {
    const int any = *rc::gen::inRange(0, places.size());
    assignment.push_back(op.pinned_node >= 0 ? places.first[op.pinned_node] : any);
  }
  return assignment;
}

// Memory, pins, slots, acyclic quotient, consistent run orders: all that CheckPartition checks.
RC_GTEST_PROP(Policies, GiveValidPartitionsOrReasonsAndRepeatThemselves, ()) {
  const Problem problem = AnyProblem();
  const std::vector<absl::StatusOr<Partition> (*)(const Problem&)> policies = {
      [](const Problem& p) { return PartitionOpFence(p); }, PartitionEqualNumber, PartitionEqualCompute,
      [](const Problem& p) { return PartitionDtFm(p, 7); }};
  for (const auto& policy : policies) {
    const absl::StatusOr<Partition> partition = policy(problem);
    if (!partition.ok()) {
      RC_ASSERT(partition.status().code() == absl::StatusCode::kResourceExhausted ||
                partition.status().code() == absl::StatusCode::kFailedPrecondition);
      RC_ASSERT(policy(problem).status() == partition.status());
      continue;
    }
    RC_ASSERT(CheckPartition(problem, *partition) == absl::OkStatus());
    RC_ASSERT(policy(problem)->stages == partition->stages);
  }
}

RC_GTEST_PROP(Policies, OpFenceFindsAPartitionWhereABaselineDoes, ()) {
  const Problem problem = AnyProblem();
  const bool baseline = PartitionEqualNumber(problem).ok() || PartitionEqualCompute(problem).ok();
  RC_ASSERT(!baseline || PartitionOpFence(problem).ok());
}

// Any assignment at all, crossed towers included, becomes sub-DAGs that do not wait for each other.
RC_GTEST_PROP(GroupOperators, MakesAcyclicQuotientsOfAnyAssignment, ()) {
  Problem problem = AnyProblem();
  problem.max_stages = 8;
  for (Node& node : problem.nodes) node.memory_bytes = std::numeric_limits<int64_t>::max();
  const Places places(problem);
  const OperatorLinks links(problem);
  const std::vector<PlaceGroup> groups = GroupOperators(links, AnyAssignment(problem, places), places.size());
  RC_ASSERT(CheckPartition(problem, MakePartition(problem, places, groups)) == absl::OkStatus());
}

// The search's tables and the memory model of the plan agree to the byte.
RC_GTEST_PROP(StepCost, FitsWhereThePartitionFits, ()) {
  Problem problem = AnyProblem();
  problem.max_stages = 8;
  problem.recompute = *rc::gen::arbitrary<bool>();
  problem.operators.front().fed = *rc::gen::arbitrary<bool>();
  StepCost cost(problem, 1);
  const Assignment assignment = AnyAssignment(problem, cost.places());
  const Partition partition =
      MakePartition(problem, cost.places(), GroupOperators(cost.links(), assignment, cost.places().size()));
  double excess = 0;
  const std::vector<int64_t> bytes = StageMemory(problem, partition);
  for (size_t s = 0; s < bytes.size(); ++s) {
    const int64_t limit = problem.nodes[partition.stages[s].node].memory_bytes;
    excess += static_cast<double>(std::max<int64_t>(0, bytes[s] - limit));
  }
  RC_ASSERT(cost.Of(assignment).excess == excess);
}

// Over links twice as fast OP-Fence must find what it found before. The old plan is judged over the new links
// too: greedy schedules are not monotone themselves (Graham's anomaly: the same plan may take 4 % longer over
// faster links).
TEST(OpFence, ProfitsFromMoreBandwidth) {
  constexpr int kProblems = RandomCases(200);
  int compared = 0;
  int slower = 0;
  for (uint64_t seed = 1'000'000; seed < 1'000'000 + kProblems; ++seed) {
    SCOPED_TRACE(seed);
    const Problem slow = RandomProblem(seed).Make();
    const Problem fast = RandomProblem(seed, 2).Make();
    const absl::StatusOr<Partition> before = PartitionOpFence(slow);
    const absl::StatusOr<Partition> after = PartitionOpFence(fast);
    ASSERT_EQ(before.ok(), after.ok());
    if (!before.ok()) continue;
    ++compared;
    const double ratio = Simulate(fast, *after).step_seconds / Simulate(fast, *before).step_seconds;
    EXPECT_LE(ratio, 1.25);
    if (ratio > 1.01) ++slower;
  }
  EXPECT_GE(compared, kProblems / 2);
  EXPECT_LE(slower, compared / 50);
}

}  // namespace
}  // namespace fusion::scheduler
