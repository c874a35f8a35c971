#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/simulator.h"
#include "scheduler/test_problem.h"

namespace fusion::scheduler {
namespace {

using testing::HasSubstr;

std::string Refusal(const Problem& problem, const Partition& partition) {
  const absl::Status status = CheckPartition(problem, partition);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  return std::string(status.message());
}

class CheckTest : public testing::Test {
 protected:
  Problem problem_ = MakeChainProblem(UniformChain(4, 1, 2));
  Partition partition_ = OneOperatorANode(problem_);
};

TEST_F(CheckTest, AcceptsAChain) { EXPECT_EQ(Refusal(problem_, partition_), ""); }

TEST_F(CheckTest, EveryOperatorOnce) {
  partition_.stages[1].sub_dags[0].operators = {0, 1};
  EXPECT_THAT(Refusal(problem_, partition_), HasSubstr("op0 is in stages 0 and 1"));
  partition_.stages.erase(partition_.stages.begin());
  partition_.stages[0].sub_dags[0].operators = {1};
  EXPECT_THAT(Refusal(problem_, partition_), HasSubstr("op0 is in no stage"));
}

TEST_F(CheckTest, PinsHold) {
  problem_.operators[2].pinned_node = 0;
  EXPECT_THAT(Refusal(problem_, partition_), HasSubstr("op2 is pinned to compnode n0, but placed on n2"));
}

TEST_F(CheckTest, SlotsAndStageLimitHold) {
  partition_.stages[1].node = 0;
  EXPECT_THAT(Refusal(problem_, partition_), HasSubstr("compnode n0 takes 1 stages, not 2"));
  problem_.nodes[0].slots = 2;
  EXPECT_EQ(Refusal(problem_, partition_), "");
  problem_.max_stages = 3;
  EXPECT_THAT(Refusal(problem_, partition_), HasSubstr("4 stages, at most 3"));
}

TEST_F(CheckTest, CrossedTowersWaitForEachOther) {
  // Two towers 0 -> 1 and 2 -> 3: {0, 3} and {1, 2} are each convex.
  problem_.values = {problem_.values[0], problem_.values[2]};
  partition_.stages = {{0, {{{0, 3}, 1}}}, {1, {{{1, 2}, 1}}}};
  const std::string refusal = Refusal(problem_, partition_);
  EXPECT_THAT(refusal, HasSubstr("wait for each other"));
  EXPECT_THAT(refusal, HasSubstr("{op0 … op3} of stage 0"));
  EXPECT_THAT(refusal, HasSubstr("{op1 … op2} of stage 1"));
}

TEST_F(CheckTest, RunOrderFollowsTheGraph) {
  partition_.stages = {{0, {{{2, 3}, 1}, {{0}, 3}}}, {1, {{{1}, 2}}}};
  EXPECT_THAT(Refusal(problem_, partition_),
              HasSubstr("the run order of stage 0 has {op2 … op3} of stage 0 before"));
  std::swap(partition_.stages[0].sub_dags[0], partition_.stages[0].sub_dags[1]);
  EXPECT_EQ(Refusal(problem_, partition_), "");
}

TEST_F(CheckTest, MemoryIsNamedWithItsParts) {
  problem_.operators[1].variable_bytes = 3 << 20;
  problem_.nodes[1].memory_bytes = 1 << 20;
  const std::string refusal = Refusal(problem_, partition_);
  EXPECT_THAT(refusal, HasSubstr("stage 1 needs"));
  EXPECT_THAT(refusal, HasSubstr("variables 3.0 MiB"));
  EXPECT_THAT(refusal, HasSubstr("compnode n1 has 1.0 MiB"));
}

TEST(MemoryTest, SumsItsParts) {
  Problem problem = MakeChainProblem(UniformChain(3, 1, 2));  // values of 4,000 bytes
  problem.operators[1].variable_bytes = 100;
  problem.operators[1].optimizer_bytes = 300;
  const Partition partition = OneOperatorANode(problem);
  const std::vector<int64_t> bytes = StageMemory(problem, partition);
  // Saved x depth 2, of stage 0's 3 values 2 kept and 1 waiting, a gradient, working set: output, input,
  // variables.
  EXPECT_EQ(bytes[1], 100 + 300 + 4000 * 2 + 4000 * (2 + 1) + 4000 + (4000 + 4000 + 100));
  problem.values[0].kept = false;
  EXPECT_EQ(StageMemory(problem, partition)[1], bytes[1] - 4000);
  problem.training = false;
  EXPECT_LT(StageMemory(problem, partition)[1], bytes[1]);
}

TEST(MemoryTest, RecomputeKeepsInputsAndWhatOneSubDagSaves) {
  Problem problem = MakeChainProblem(UniformChain(4, 1, 2));  // values of 4,000 bytes
  for (OperatorWork& op : problem.operators) op.saved_bytes = 100'000;
  problem.values[0].kept = false;  // only the second forward needs it
  Partition partition;
  partition.stages = {{0, {{{0}, 3}}}, {1, {{{1}, 3}, {{2}, 3}}}, {2, {{{3}, 1}}}};
  const std::vector<int64_t> all = StageMemory(problem, partition);
  problem.recompute = true;
  const std::vector<int64_t> less = StageMemory(problem, partition);
  // 2 sub-DAGs x 3 saved before; now one, 3 values from the stage before, of which 1 waited, 3 between the
  // two.
  EXPECT_EQ(all[1] - less[1], 5 * 100'000 - 2 * 4000 - 3 * 4000);
  EXPECT_EQ(all[2], less[2]) << "one micro-batch in flight";
  problem.operators[0].fed = true;
  EXPECT_EQ(less[0] - StageMemory(problem, partition)[0], 100'000 - 3 * 4000) << "data is kept, not computed";
}

TEST(MemoryTest, GrowsWithDepthOnly) {
  const Problem problem = MakeChainProblem(UniformChain(3, 1, 2));
  int64_t previous = 0;
  for (int more = 0; more < 5; ++more) {
    const int64_t bytes = StageMemory(problem, OneOperatorANode(problem, more))[0];
    EXPECT_GT(bytes, previous);
    previous = bytes;
  }
}

TEST(MemoryTest, EachUseOfASharedVariableHasAGradient) {
  Problem problem = MakeChainProblem(UniformChain(3, 1, 2));
  const Partition partition = OneOperatorANode(problem);
  const int64_t before = StageMemory(problem, partition)[0];
  problem.shared.push_back({{0, 2}, 1000});
  EXPECT_EQ(StageMemory(problem, partition)[0], before + 1000);
  problem.shared[0].trainable = false;
  EXPECT_EQ(StageMemory(problem, partition)[0], before);
}

TEST(MemoryTest, BorrowersHoldACopyAndItsGradients) {
  Problem problem = MakeChainProblem(UniformChain(3, 1, 2));
  const int64_t before = StageMemory(problem, OneOperatorANode(problem))[2];
  problem.shared.push_back({{0, 2}, 1000});
  EXPECT_EQ(StageMemory(problem, OneOperatorANode(problem))[2], before + 2000);
}

TEST(DepthTest, MemoryBoundsTheDepth) {
  Chain chain = UniformChain(2, 0.1, 0.1);
  chain.latency_seconds = 1;
  chain.micro_batches = 64;
  Problem problem = MakeChainProblem(chain);
  Partition partition = OneOperatorANode(problem);
  ChooseDepths(problem, partition);
  const int wanted = partition.stages[0].sub_dags[0].depth;
  EXPECT_GE(wanted, 10);  // 2.4 s there and back, a micro-batch each 0.2 s
  problem.nodes[0].memory_bytes = StageMemory(problem, partition)[0] - 1;
  ChooseDepths(problem, partition);
  EXPECT_LT(partition.stages[0].sub_dags[0].depth, wanted);
  EXPECT_TRUE(CheckPartition(problem, partition).ok());
}

TEST(DepthTest, GPipeHoldsAll) {
  Problem problem = MakeChainProblem(UniformChain(3, 1, 1));
  problem.gpipe = true;
  Partition partition = OneOperatorANode(problem);
  ChooseDepths(problem, partition);
  for (const PlacedStage& stage : partition.stages) EXPECT_EQ(stage.sub_dags[0].depth, problem.micro_batches);
}

}  // namespace
}  // namespace fusion::scheduler
