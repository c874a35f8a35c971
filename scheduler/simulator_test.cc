#include "scheduler/simulator.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <vector>

#include "scheduler/test_problem.h"

namespace fusion::scheduler {
namespace {

double Step(const Problem& problem, const Partition& partition, bool free_links = false) {
  SimulationOptions options;
  options.free_links = free_links;
  return Simulate(problem, partition, options).step_seconds;
}

/// Seconds of one direction of a chain's link, headers included.
double LinkSeconds(const Chain& chain) {
  return static_cast<double>(MessageBytes(chain.columns * 4, chain.bytes_per_second)) /
         chain.bytes_per_second;
}

TEST(SimulatorTest, OneStageIsItsWork) {
  Chain chain = UniformChain(1, 2, 3);
  chain.micro_batches = 4;
  Problem problem = MakeChainProblem(chain);
  problem.operators[0].parameters = 10;
  problem.nodes[0].update_seconds_per_parameter = 0.5;
  const Simulation simulation = Simulate(problem, OneOperatorANode(problem));
  EXPECT_DOUBLE_EQ(simulation.step_seconds, 4 * 5 + 5);
  EXPECT_DOUBLE_EQ(simulation.stages[0].busy_seconds, 25);
  EXPECT_DOUBLE_EQ(simulation.bubble_fraction, 0);
  EXPECT_TRUE(simulation.links.empty());
}

TEST(SimulatorTest, BalancedPipelineIsMPlusSMinusOne) {
  for (const int stages : {2, 3, 6}) {
    for (const int micro_batches : {1, 2, 8, 32}) {
      Chain chain = UniformChain(stages, 1, 2);
      chain.micro_batches = micro_batches;
      const Problem problem = MakeChainProblem(chain);
      const Simulation simulation = Simulate(problem, OneOperatorANode(problem), {.free_links = true});
      EXPECT_NEAR(simulation.step_seconds, (micro_batches + stages - 1) * 3, 1e-9);
      EXPECT_NEAR(simulation.bubble_fraction, (stages - 1.0) / (micro_batches + stages - 1), 1e-9);
    }
  }
}

TEST(SimulatorTest, GPipeRunsAllForwardsThenAllBackwards) {
  Chain chain = UniformChain(4, 1, 2);
  chain.micro_batches = 8;
  Problem problem = MakeChainProblem(chain);
  problem.gpipe = true;
  EXPECT_NEAR(Step(problem, OneOperatorANode(problem), true), (8 + 3) * 1 + (8 + 3) * 2, 1e-9);
}

TEST(SimulatorTest, DepthOneIsSerial) {
  Chain chain = UniformChain(3, 1, 2);
  chain.micro_batches = 5;
  chain.latency_seconds = 0.25;
  const Problem problem = MakeChainProblem(chain);
  Partition partition = OneOperatorANode(problem);
  for (PlacedStage& stage : partition.stages) stage.sub_dags[0].depth = 1;
  EXPECT_NEAR(Step(problem, partition, true), 5 * (3 * 3 + 4 * 0.25), 1e-9);
}

TEST(SimulatorTest, SlowLinkCarriesOneMessageAfterTheOther) {
  Chain chain = UniformChain(2, 0.01, 0.01);
  chain.micro_batches = 6;
  chain.bytes_per_second = 40000;
  chain.latency_seconds = 0.5;
  const Problem problem = MakeChainProblem(chain);
  const double link = LinkSeconds(chain);
  ASSERT_GT(link, 0.02);
  const Simulation simulation = Simulate(problem, OneOperatorANode(problem, 6));
  EXPECT_NEAR(simulation.step_seconds, 0.01 + 6 * link + 0.5 + 0.02 + link + 0.5 + 0.01, 1e-9);
  ASSERT_EQ(simulation.links.size(), 2u);
  EXPECT_EQ(simulation.links[0].dense_bytes, 4000);
  EXPECT_NEAR(simulation.links[0].seconds, 0.5 + link, 1e-12);
  EXPECT_NEAR(simulation.links[0].busy_seconds, 6 * link, 1e-12);
  EXPECT_TRUE(simulation.links[0].forward);
  EXPECT_FALSE(simulation.links[1].forward);
}

TEST(SimulatorTest, PairsShareTheResourceBetweenTheirClusters) {
  // Stages 0 and 2 in one cluster, 1 and 3 in the other: two forward messages over a>b, one over b>a.
  Chain chain = UniformChain(4, 1e-6, 1e-6);
  chain.micro_batches = 50;
  Problem problem = MakeChainProblem(chain);
  problem.network = Network(2);
  for (int i = 0; i < 4; ++i) problem.network.AddNode(i % 2, Port());
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    const int resource = problem.network.AddResource("", 40000);
    problem.network.SetClusterWay(from, to, problem.network.MakeWay({resource}, 0));
  }
  chain.bytes_per_second = 40000;
  const Simulation simulation = Simulate(problem, OneOperatorANode(problem, 50));
  // Forward 0>1, backward 2>1 and forward 2>3 use a>b.
  EXPECT_NEAR(simulation.resource_seconds[0], 50 * 3 * LinkSeconds(chain), 1e-9);
  EXPECT_GE(simulation.step_seconds, simulation.resource_seconds[0]);
  EXPECT_LE(simulation.step_seconds, 1.1 * simulation.resource_seconds[0]);
}

TEST(SimulatorTest, OneMoreInFlightHidesTheLatencyOfASlowLink) {
  // Six stages, 32 micro-batches, 40 ms in the middle: S - i lets the stages before the link starve.
  Chain chain = UniformChain(6, 0.05, 0.1);
  chain.micro_batches = 32;
  Problem problem = MakeChainProblem(chain);
  SetLink(problem, 3, 4, 1e12, 0.040);
  const double pipeline = (32 + 5) * 0.15 + 2 * 0.040;
  const double plain = Step(problem, OneOperatorANode(problem));
  const double deeper = Step(problem, OneOperatorANode(problem, 1));
  EXPECT_GT(plain, 1.2 * pipeline);
  EXPECT_LT(deeper, 1.01 * pipeline);
  Partition chosen = OneOperatorANode(problem);
  ChooseDepths(problem, chosen);
  EXPECT_LT(Step(problem, chosen), 1.01 * pipeline);
  EXPECT_EQ(chosen.stages[5].sub_dags[0].depth, 1);
}

TEST(SimulatorTest, LabelsRunAheadOnlyAsFarAsTheirCredits) {
  // op0 = label on node 0, op1 = input part, op2 = loss.
  Chain chain = UniformChain(3, 1, 2);
  chain.micro_batches = 6;
  Problem problem = MakeChainProblem(chain);
  problem.values[0].consumers = {2};
  problem.values[0].floating = problem.values[0].differentiable = false;
  const Partition partition = OneOperatorANode(problem);
  const Simulation simulation = Simulate(problem, partition, {.free_links = true});
  EXPECT_NEAR(simulation.step_seconds, (6 + 1) * 3, 1e-9);
  EXPECT_DOUBLE_EQ(simulation.stages[0].backward_seconds, 0);
  for (const SimulatedLink& link : simulation.links) EXPECT_FALSE(link.from_stage == 2 && link.to_stage == 0);
}

TEST(SimulatorTest, SubDagsOfOneStageShareItsThread) {
  // Input and loss on node 0, the middle on node 1.
  Chain chain = UniformChain(3, 1, 1);
  chain.micro_batches = 20;
  Problem problem = MakeChainProblem(chain);
  Partition partition;
  partition.stages = {{0, {{{0}, 3}, {{2}, 1}}}, {1, {{{1}, 2}}}};
  ASSERT_TRUE(CheckPartition(problem, partition).ok());
  const Simulation simulation = Simulate(problem, partition, {.free_links = true});
  EXPECT_DOUBLE_EQ(simulation.stages[0].busy_seconds, 20 * 4);
  EXPECT_GE(simulation.step_seconds, 20 * 4);
  EXPECT_LE(simulation.step_seconds, 20 * 4 + 4);
  EXPECT_EQ(simulation.links.size(), 4u);
}

TEST(SimulatorTest, SharedVariablesTravelOnceAStep) {
  Chain chain = UniformChain(2, 1, 1);
  chain.micro_batches = 2;
  chain.bytes_per_second = 1e6;
  Problem problem = MakeChainProblem(chain);
  const double without = Step(problem, OneOperatorANode(problem));
  problem.shared.push_back({{0, 1}, 10'000'000});
  const double with = Step(problem, OneOperatorANode(problem));
  // The value must be at stage 1 before its first forward; stage 1's gradient is on its way while stage 0
  // ends.
  EXPECT_GT(with, without + 10);
  EXPECT_LT(with, without + 20.1);
}

Chain DrawChain(std::mt19937& random) {
  const auto draw = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Chain chain;
  for (int count = draw(1, 6); count > 0; --count) {
    chain.forward.push_back(draw(1, 99) * 1e-3);
    chain.backward.push_back(draw(1, 99) * 1e-3);
  }
  chain.micro_batches = draw(1, 19);
  chain.bytes_per_second = std::array{1e4, 1e5, 1e6, 1e9}[draw(0, 3)];
  chain.latency_seconds = std::array{0.0, 0.001, 0.05}[draw(0, 2)];
  return chain;
}

// The order of tasks is decided as they become ready, so that one that is ready earlier may displace another
// and the whole take longer (Graham's anomalies): one random chain in 100,000 is more than 1.25 x slower with
// free links, or than the closed form, which knows no order. So these two look at the same chains every time.
TEST(SimulatorTest, FreeLinksAreHardlyEverSlower) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Problem problem = MakeChainProblem(DrawChain(random));
    const Partition partition = OneOperatorANode(problem, i % 5);
    EXPECT_LE(Step(problem, partition, true), Step(problem, partition) * 1.25 + 1e-9) << i;
  }
}

TEST(SimulatorTest, TheClosedFormIsCloseToDeepPipelines) {
  std::mt19937 random(1);
  std::vector<double> ratios;
  for (int i = 0; i < 2000; ++i) {
    const Problem problem = MakeChainProblem(DrawChain(random));
    const Partition deep = OneOperatorANode(problem, problem.micro_batches);
    ratios.push_back(Step(problem, deep) / EstimateStepSeconds(problem, deep));
  }
  std::sort(ratios.begin(), ratios.end());
  EXPECT_NEAR(ratios[1000], 1, 0.02);
  EXPECT_GE(ratios.front(), 0.5);
  EXPECT_LE(ratios.back(), 1.25);
}

TEST(SimulatorTest, EvaluationHasNoBackward) {
  Chain chain = UniformChain(3, 1, 2);
  chain.micro_batches = 10;
  Problem problem = MakeChainProblem(chain);
  problem.training = false;
  const Simulation simulation = Simulate(problem, OneOperatorANode(problem), {.free_links = true});
  EXPECT_LE(simulation.step_seconds, 12 + 1e-9);
  EXPECT_GE(simulation.step_seconds, 10 - 1e-9);
}

// ------------------------------------------------------------------------------------------ properties

Chain RandomChain() {
  Chain chain;
  const int count = *rc::gen::inRange(1, 7);
  const auto seconds = rc::gen::map(rc::gen::inRange(1, 100), [](int n) { return n * 1e-3; });
  chain.forward = *rc::gen::container<std::vector<double>>(count, seconds);
  chain.backward = *rc::gen::container<std::vector<double>>(count, seconds);
  chain.micro_batches = *rc::gen::inRange(1, 20);
  chain.bytes_per_second = *rc::gen::element(1e4, 1e5, 1e6, 1e9);
  chain.latency_seconds = *rc::gen::element(0.0, 0.001, 0.05);
  return chain;
}

RC_GTEST_PROP(SimulatorProperty, AStepIsNoShorterThanAnyStageOrResourceIsBusy, ()) {
  const Problem problem = MakeChainProblem(RandomChain());
  const Partition partition = OneOperatorANode(problem, *rc::gen::inRange(0, 5));
  const Simulation simulation = Simulate(problem, partition);
  for (const SimulatedStage& stage : simulation.stages)
    RC_ASSERT(simulation.step_seconds >= stage.busy_seconds - 1e-9);
  for (const double seconds : simulation.resource_seconds)
    RC_ASSERT(simulation.step_seconds >= seconds - 1e-9);
  RC_ASSERT(simulation.bubble_fraction >= 0);
  RC_ASSERT(simulation.bubble_fraction < 1);
}

RC_GTEST_PROP(SimulatorProperty, TheSameTwice, ()) {
  const Problem problem = MakeChainProblem(RandomChain());
  const Partition partition = OneOperatorANode(problem, 1);
  RC_ASSERT(Step(problem, partition) == Step(problem, partition));
}

// No more than one micro-batch after the other, each alone, whatever the order of the tasks.
RC_GTEST_PROP(SimulatorProperty, ADeepPipelineIsNoSlowerThanASerialOne, ()) {
  const Problem problem = MakeChainProblem(RandomChain());
  Partition serial = OneOperatorANode(problem);
  for (PlacedStage& stage : serial.stages) stage.sub_dags[0].depth = 1;
  RC_ASSERT(Step(problem, OneOperatorANode(problem, problem.micro_batches)) <= Step(problem, serial) + 1e-9);
}

RC_GTEST_PROP(SimulatorProperty, ChosenDepthsAreNoSlowerThanTheLeast, ()) {
  const Problem problem = MakeChainProblem(RandomChain());
  const Partition least = OneOperatorANode(problem);
  Partition chosen = least;
  ChooseDepths(problem, chosen);
  RC_ASSERT(Step(problem, chosen) <= Step(problem, least) + 1e-9);
}

}  // namespace
}  // namespace fusion::scheduler
