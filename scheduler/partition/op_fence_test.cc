// What OP-Fence and the baselines do on problems small enough to think through.
#include "scheduler/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/partition/baselines.h"
#include "scheduler/partition/chain_partition.h"
#include "scheduler/partition/local_search.h"
#include "scheduler/partition/node_order.h"
#include "scheduler/partition/step_cost.h"
#include "scheduler/simulator.h"
#include "scheduler/test_problem.h"

namespace fusion::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kMebibyte = 1 << 20;

/// Two sites of two nodes, 1 Gbps and 1 ms inside, 8 Mbps and 40 ms between; a chain of eight operators of 10
/// ms.
Problem TwoSites(int64_t columns) {
  Chain chain = UniformChain(8, 0.010, 0.020);
  chain.columns = columns;
  chain.micro_batches = 16;
  Problem problem = MakeChainProblem(chain);
  problem.nodes.resize(4);
  problem.max_stages = 4;
  problem.network = Network(2);
  for (int i = 0; i < 4; ++i) {
    problem.nodes[i].name = absl::StrCat(i < 2 ? "a" : "b", i % 2 + 1);
    problem.nodes[i].cluster = i < 2 ? "a" : "b";
    problem.network.AddNode(i / 2, {problem.network.AddResource(absl::StrCat("out", i), 125e6),
                                    problem.network.AddResource(absl::StrCat("in", i), 125e6), 1e-3});
  }
  for (int a = 0; a < 2; ++a) {
    const int resource = problem.network.AddResource(a == 0 ? "a>b" : "b>a", 1e6);
    problem.network.SetClusterWay(a, 1 - a, problem.network.MakeWay({resource}, 0.040));
  }
  return problem;
}

std::vector<std::string> NodesOf(const Problem& problem, const Partition& partition) {
  std::vector<std::string> names;
  for (const PlacedStage& stage : partition.stages) names.push_back(problem.nodes[stage.node].name);
  return names;
}

std::vector<int> OperatorsOf(const PlacedStage& stage) {
  std::vector<int> operators;
  for (const PlacedSubDag& sub_dag : stage.sub_dags) {
    operators.insert(operators.end(), sub_dag.operators.begin(), sub_dag.operators.end());
  }
  return operators;
}

int Crossings(const Problem& problem, const Partition& partition) {
  int crossings = 0;
  for (size_t s = 1; s < partition.stages.size(); ++s) {
    const Node& before = problem.nodes[partition.stages[s - 1].node];
    crossings += before.cluster != problem.nodes[partition.stages[s].node].cluster ? 1 : 0;
  }
  return crossings;
}

TEST(OpFence, CrossesTheSlowLinkOnceEvenWhereTheFileMixesSites) {
  Problem problem = TwoSites(1000);  // 4 kB: 4 ms a crossing
  std::swap(problem.nodes[1], problem.nodes[2]);
  Network mixed(2);
  for (int i = 0; i < 4; ++i) {
    mixed.AddNode(i % 2, {mixed.AddResource(absl::StrCat("out", i), 125e6),
                          mixed.AddResource(absl::StrCat("in", i), 125e6), 1e-3});
  }
  for (int a = 0; a < 2; ++a) {
    const int resource = mixed.AddResource(a == 0 ? "a>b" : "b>a", 1e6);
    mixed.SetClusterWay(a, 1 - a, mixed.MakeWay({resource}, 0.040));
  }
  problem.network = mixed;
  const auto partition = PartitionOpFence(problem);
  ASSERT_TRUE(partition.ok()) << partition.status();
  EXPECT_EQ(partition->stages.size(), 4u);
  EXPECT_EQ(Crossings(problem, *partition), 1);
  const auto equal_number = PartitionEqualNumber(problem);
  ASSERT_TRUE(equal_number.ok());
  EXPECT_EQ(Crossings(problem, *equal_number), 3);
}

TEST(OpFence, StaysOnOneSiteWhereTheSlowLinkCostsMoreThanItBrings) {
  const Problem problem = TwoSites(50'000);  // 200 kB: 200 ms a crossing
  const auto partition = PartitionOpFence(problem);
  ASSERT_TRUE(partition.ok());
  EXPECT_EQ(partition->stages.size(), 2u);
  EXPECT_EQ(Crossings(problem, *partition), 0);
}

TEST(OpFence, UsesTheSlowLinkWhereACodecWillLightenIt) {
  const Problem problem = TwoSites(50'000);
  OpFenceOptions options;
  options.byte_shares = {1, 0.02};
  options.finish = [](const Problem& p, Partition& partition) {  // as if every link were compressed away
    ChooseDepths(p, partition, {.free_links = true});
    return Simulate(p, partition, {.free_links = true}).step_seconds;
  };
  const auto partition = PartitionOpFence(problem, options);
  ASSERT_TRUE(partition.ok());
  EXPECT_EQ(partition->stages.size(), 4u);
  EXPECT_EQ(Crossings(problem, *partition), 1);
}

TEST(OpFence, AsksForNoMoreSimulationsThanAllowed) {
  int finished = 0;
  OpFenceOptions options;
  options.most_finished = 5;
  options.finish = [&finished](const Problem& p, Partition& partition) {
    ++finished;
    return Simulate(p, partition).step_seconds;
  };
  ASSERT_TRUE(PartitionOpFence(TwoSites(1000), options).ok());
  EXPECT_EQ(finished, 5);
}

TEST(OpFence, LeavesOutASlowNode) {
  Problem problem = TwoSites(1000);
  problem.nodes[3].seconds_per_work.fill(50);
  problem.nodes[3].flops = 0.02;
  const auto partition = PartitionOpFence(problem);
  ASSERT_TRUE(partition.ok());
  EXPECT_THAT(NodesOf(problem, *partition), testing::Not(testing::Contains("b2")));
}

TEST(OpFence, KeepsInputAndLossOnTheirOwnersNode) {
  Problem problem = TwoSites(1000);
  problem.operators.front().pinned_node = problem.operators.back().pinned_node = 1;
  const auto partition = PartitionOpFence(problem);
  ASSERT_TRUE(partition.ok()) << partition.status();
  const PlacedStage& owner = partition->stages.front();
  EXPECT_EQ(owner.node, 1);
  ASSERT_GE(partition->stages.size(), 2u);
  ASSERT_EQ(owner.sub_dags.size(), 2u);
  EXPECT_EQ(owner.sub_dags.front().operators.front(), 0);
  EXPECT_EQ(owner.sub_dags.back().operators.back(), 7);
}

// 160 MB both ways once a step, 2.6 s even inside a site: a second sub-DAG on the owner costs less.
TEST(OpFence, KeepsBothUsesOfATiedParameterOnOneNode) {
  Problem problem = TwoSites(1000);
  problem.shared.push_back({{0, 7}, 160'000'000});
  const auto partition = PartitionOpFence(problem);
  ASSERT_TRUE(partition.ok());
  std::vector<int> stage_of(8, -1);
  for (size_t s = 0; s < partition->stages.size(); ++s) {
    for (int op : OperatorsOf(partition->stages[s])) stage_of[op] = static_cast<int>(s);
  }
  EXPECT_EQ(stage_of[0], stage_of[7]);
}

TEST(OpFence, FitsMemoryWhereEqualShareDoesNot) {
  Problem problem = TwoSites(1000);
  for (OperatorWork& op : problem.operators) op.variable_bytes = 10 * kMebibyte;
  for (Node& node : problem.nodes) node.memory_bytes = 25 * kMebibyte;
  problem.nodes[0].memory_bytes = 15 * kMebibyte;
  problem.nodes[2].memory_bytes = 52 * kMebibyte;
  const auto equal_number = PartitionEqualNumber(problem);
  EXPECT_EQ(equal_number.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(equal_number.status().message()),
              HasSubstr("for stage 0 (op0 … op1), compnode a1 has 15.0 MiB"));
  // 10 MiB of variables for each operator and 10 more while one runs: 0 + 1 + 1 + 4 operators fit, eight do
  // not.
  EXPECT_EQ(PartitionOpFence(problem).status().code(), absl::StatusCode::kResourceExhausted);
  problem.nodes[1].memory_bytes = 45 * kMebibyte;
  problem.nodes[3].memory_bytes = 45 * kMebibyte;
  const auto roomier = PartitionOpFence(problem);
  ASSERT_TRUE(roomier.ok()) << roomier.status();
}

TEST(OpFence, SaysWhyNothingFits) {
  Problem problem = TwoSites(1000);
  for (Node& node : problem.nodes) node.memory_bytes = 4 * kMebibyte;
  problem.nodes[2].memory_bytes = 5 * kMebibyte;

  Problem heavy = problem;
  heavy.operators[3].variable_bytes = 6 * kMebibyte;
  EXPECT_THAT(
      std::string(PartitionOpFence(heavy).status().message()),
      testing::MatchesRegex("operator op3 alone needs 12.0 MiB, the largest compnode, b1, has 5.0 MiB"));

  Problem pinned = problem;
  pinned.operators[0].variable_bytes = pinned.operators[1].variable_bytes = kMebibyte * 19 / 10;
  pinned.operators[2].variable_bytes = kMebibyte * 19 / 10;
  for (int op : {0, 1, 2}) pinned.operators[op].pinned_node = 0;
  EXPECT_THAT(std::string(PartitionOpFence(pinned).status().message()),
              HasSubstr("the operators pinned to compnode a1 need at least 5.7 MiB, it has 4.0 MiB"));

  Problem large = problem;
  for (OperatorWork& op : large.operators) op.variable_bytes = 24 * kMebibyte / 10;
  EXPECT_THAT(std::string(PartitionOpFence(large).status().message()), HasSubstr("need 19.2 MiB in all"));

  Problem scattered = problem;
  scattered.max_stages = 1;
  scattered.operators[0].pinned_node = 0;
  scattered.operators[7].pinned_node = 2;
  EXPECT_EQ(PartitionOpFence(scattered).status().message(),
            "operators are pinned to 2 compnodes: a1 (op0), b1 (op7); at most 1 stages are allowed "
            "(placement.stages.max)");

  Problem none = problem;
  none.nodes.clear();
  EXPECT_EQ(PartitionOpFence(none).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(OpFence, PutsTwoStagesOnANodeWithTwoDevices) {
  Problem problem = TwoSites(1000);
  problem.nodes.resize(1);
  problem.nodes[0].slots = 2;
  const auto partition = PartitionOpFence(problem);
  ASSERT_TRUE(partition.ok());
  EXPECT_THAT(NodesOf(problem, *partition), ElementsAre("a1", "a1"));
  EXPECT_EQ(OperatorsOf(partition->stages[0]).size(), 4u);
  EXPECT_EQ(OperatorsOf(partition->stages[1]).size(), 4u);
}

TEST(Baselines, CutTheOrderOfOperatorsOverNodesInFileOrder) {
  Problem problem = TwoSites(1000);
  for (OperatorWork& op : problem.operators) op.flops = 1;
  problem.nodes[0].flops = 5;
  const auto number = PartitionEqualNumber(problem);
  ASSERT_TRUE(number.ok());
  EXPECT_THAT(NodesOf(problem, *number), ElementsAre("a1", "a2", "b1", "b2"));
  for (const PlacedStage& stage : number->stages) EXPECT_EQ(OperatorsOf(stage).size(), 2u);
  const auto compute = PartitionEqualCompute(problem);
  ASSERT_TRUE(compute.ok());
  EXPECT_THAT(OperatorsOf(compute->stages[0]), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(OperatorsOf(compute->stages[3]), ElementsAre(7));
}

TEST(Baselines, UseTheNodesOfPinnedOperatorsAndNoMoreStagesThanAllowed) {
  Problem problem = TwoSites(1000);
  problem.max_stages = 2;
  problem.operators[7].pinned_node = 3;
  const auto partition = PartitionEqualNumber(problem);
  ASSERT_TRUE(partition.ok()) << partition.status();
  EXPECT_THAT(NodesOf(problem, *partition), ElementsAre("a1", "b2"));
}

// Islands are found again from a scrambled file; a run of the search with the same seed repeats itself.
TEST(DtFm, OrdersNodesByLinksAlone) {
  Problem problem = TwoSites(1000);
  for (OperatorWork& op : problem.operators) op.flops = 1;
  const auto partition = PartitionDtFm(problem, 3);
  ASSERT_TRUE(partition.ok());
  EXPECT_EQ(partition->stages.size(), 4u);
  EXPECT_EQ(Crossings(problem, *partition), 1);
  EXPECT_EQ(NodesOf(problem, *PartitionDtFm(problem, 3)), NodesOf(problem, *partition));
}

// Four stages of one operator: 30 ms each, 4 kB at 1 MB/s + 40 ms each way on each of three links.
TEST(StepCost, IsThePipelineFormulaOnAChain) {
  Chain chain = UniformChain(4, 0.010, 0.020);
  chain.bytes_per_second = 1e6;
  chain.latency_seconds = 0.040;
  const Problem problem = MakeChainProblem(chain);
  StepCost cost(problem, 1);
  const double message = static_cast<double>(MessageBytes(4000, 1e6)) / 1e6;
  EXPECT_NEAR(cost.Of({0, 1, 2, 3}).seconds, 4 * 0.030 + 6 * (0.040 + message) + 7 * 0.030, 2e-3);
  EXPECT_NEAR(cost.Of({0, 1, 2, 3}).seconds, EstimateStepSeconds(problem, OneOperatorANode(problem)), 2e-3);
  EXPECT_DOUBLE_EQ(cost.Of({0, 0, 0, 0}).seconds, 8 * 0.120);
  EXPECT_EQ(cost.Of({0, 1, 1, 0}).extra_sub_dags, 1);
}

TEST(ChainPartitioner, WalksFromFewestHopsToTheLightestBottleneck) {
  const Problem problem = TwoSites(1000);
  StepCost cost(problem, 1);
  const std::vector<Assignment> found = ChainPartitioner(cost).Partition({0, 1, 2, 3});
  ASSERT_GE(found.size(), 3u);
  EXPECT_EQ(found.front(), Assignment(8, 0));
  EXPECT_EQ(found.back(), (Assignment{0, 0, 1, 1, 2, 2, 3, 3}));
}

TEST(PlaceOrders, KeepIslandsTogether) {
  Problem problem = TwoSites(1000);
  const StepCost cost(problem, 1);
  const std::vector<std::vector<int>> orders = PlaceOrders(cost, 100);
  EXPECT_THAT(orders, testing::Contains(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(orders, testing::Contains(ElementsAre(2, 3, 0, 1)));
}

// x1 -> x2, y1 -> y2 with {x1, y2} and {y1, x2} together: each would wait for the other.
TEST(GroupOperators, SplitsCrossedTowers) {
  Problem problem;
  problem.operators.resize(4);
  problem.nodes.resize(2);
  problem.max_stages = 2;
  problem.values.resize(2);
  problem.values[0].producer = 0;
  problem.values[0].consumers = {2};
  problem.values[1].producer = 1;
  problem.values[1].consumers = {3};
  const std::vector<PlaceGroup> groups = GroupOperators(OperatorLinks(problem), {0, 1, 1, 0}, 2);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_THAT(groups[0].operators, ElementsAre(0));
  EXPECT_THAT(groups[1].operators, ElementsAre(1, 2));
  EXPECT_THAT(groups[2].operators, ElementsAre(3));
}

TEST(VisitMoves, StopsWhenAskedAndNeverMovesPinnedOperators) {
  Problem problem = TwoSites(1000);
  problem.operators[2].pinned_node = 0;
  const StepCost cost(problem, 1);
  int seen = 0;
  VisitMoves(cost, Assignment(8, 0), [&seen](const Move& move) {
    for (const auto& [op, place] : move) EXPECT_NE(op, 2);
    return ++seen < 10;
  });
  EXPECT_EQ(seen, 10);
}

}  // namespace
}  // namespace fusion::scheduler
