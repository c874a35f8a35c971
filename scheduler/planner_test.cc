#include "scheduler/planner.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "graph/registry.h"
#include "graph/slicing.h"
#include "scheduler/test_job.h"

namespace fusion::scheduler {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::HasSubstr;
using v1alpha1::Compression;
using v1alpha1::Placement;

class PlannerTest : public testing::Test {
 protected:
  PlanResult Plan() {
    absl::StatusOr<PlanResult> result = MakePlan(job_.request());
    EXPECT_TRUE(result.ok()) << result.status();
    return *std::move(result);
  }
  std::string Refusal(absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const absl::Status status = MakePlan(job_.request()).status();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  }
  void SetPolicy(Placement::Policy policy) { job_.spec.mutable_placement()->set_policy(policy); }
  Compression& compression() { return *job_.spec.mutable_communication()->mutable_compression(); }

  TestJob job_ = TwoSites();
};

TEST_F(PlannerTest, OpFenceBeatsTheBaselines) {
  const PlanResult fence = Plan();
  EXPECT_LE(fence.simulation.step_seconds, 1.1 * fence.free_links.step_seconds + 1e-9);
  compression().set_type(Compression::None);
  for (const Placement::Policy policy : {Placement::EqualNumber, Placement::EqualCompute}) {
    SetPolicy(policy);
    const PlanResult baseline = Plan();
    EXPECT_GT(baseline.simulation.step_seconds, 3 * fence.simulation.step_seconds);
    EXPECT_GT(baseline.plan.rho(), 3);
  }
}

TEST_F(PlannerTest, ThePlanSaysWhatIsPlanned) {
  const PlanResult result = Plan();
  const graph::v1::Plan& plan = result.plan;
  EXPECT_EQ(plan.job(), "gpt2");
  EXPECT_EQ(plan.policy(), "OpFence");
  EXPECT_EQ(plan.schedule(), "OneForwardOneBackward");
  EXPECT_EQ(plan.incarnation(), 1);
  EXPECT_DOUBLE_EQ(plan.samples_per_second(), 64 / plan.step_seconds());
  int64_t parameters = 0;
  double flops = 0;
  std::set<std::string> names;
  for (int s = 0; s < plan.stages_size(); ++s) {
    const graph::v1::PlannedStage& stage = plan.stages(s);
    EXPECT_EQ(stage.index(), s);
    EXPECT_LE(stage.memory_bytes(), stage.memory_limit_bytes());
    EXPECT_EQ(stage.memory_limit_bytes(), int64_t{2} << 30);
    parameters += stage.parameters();
    flops += stage.flops_per_step();
    names.insert(stage.operators().begin(), stage.operators().end());
  }
  EXPECT_EQ(parameters, graph::ParameterCount(job_.graph));
  EXPECT_EQ(names.size(), result.problem.operators.size());
  EXPECT_GT(flops, 16 * 6.0 * 4 * 64 * 0.8e6);  // about 6 a parameter and token
  ASSERT_GT(plan.links_size(), 0);
  for (const graph::v1::PlannedLink& link : plan.links()) {
    EXPECT_NEAR(link.ratio() * static_cast<double>(link.bytes()), static_cast<double>(link.dense_bytes()),
                1e-3);
  }
}

TEST_F(PlannerTest, PlansImages) {
  job_ = TwoSitesResnet();
  const PlanResult result = Plan();
  int64_t parameters = 0;
  for (const graph::v1::PlannedStage& stage : result.plan.stages()) parameters += stage.parameters();
  EXPECT_EQ(parameters, graph::ParameterCount(job_.graph));
  auto programs = graph::Slice(job_.graph, graph::PlacementOf(result.plan));
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_TRUE(graph::SetCodecs(result.plan, *programs).ok());
  EXPECT_LE(result.simulation.step_seconds, 1.1 * result.free_links.step_seconds + 1e-9);
}

TEST_F(PlannerTest, BatchNormOverOneValueIsRefused) {
  job_ = TwoSitesResnet();
  job_.spec.mutable_model()->mutable_config()->set_image_size(8);
  job_.graph = *graph::BuildModel(job_.spec.model());
  job_.spec.mutable_training()->mutable_batch()->set_micro(1);
  EXPECT_THAT(Refusal(), HasSubstr("larger training.batch.micro"));
  job_.spec.mutable_training()->mutable_batch()->set_micro(2);
  Plan();
}

TEST_F(PlannerTest, TheSameTwice) { EXPECT_TRUE(MessageDifferencer::Equals(Plan().plan, Plan().plan)); }

TEST_F(PlannerTest, APlanComesBackAsItWas) {
  for (const Compression::Type type : {Compression::Need, Compression::AdaTopK}) {
    compression().set_type(type);
    if (type == Compression::AdaTopK) compression().set_ratio(100);
    const PlanResult made = Plan();
    const absl::StatusOr<PlanResult> replayed = ReplayPlan(job_.request(), made.plan);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_TRUE(MessageDifferencer::Equals(replayed->plan, made.plan));
  }
}

// Placement and prediction are the last entry's; the plan has the codecs of all.
TEST_F(PlannerTest, CompressionSchedulesArePhasesOfThePlan) {
  compression().set_type(Compression::None);
  v1alpha1::CompressionChange* change = compression().add_schedule();
  change->set_from_step(50);
  change->set_type(Compression::Quantize);
  change->set_values(Compression::int4);
  const PlanResult made = Plan();
  compression().Clear();
  compression().set_type(Compression::Quantize);
  compression().set_values(Compression::int4);
  const PlanResult last = Plan();
  EXPECT_EQ(made.plan.step_seconds(), last.plan.step_seconds());
  ASSERT_EQ(made.plan.links_size(), last.plan.links_size());
  int changing = 0;
  for (int l = 0; l < made.plan.links_size(); ++l) {
    const graph::v1::PlannedLink& link = made.plan.links(l);
    EXPECT_EQ(link.codec(), last.plan.links(l).codec());
    EXPECT_EQ(last.plan.links(l).phases_size(), 0);
    ASSERT_EQ(link.phases_size(), 2);
    EXPECT_EQ(link.phases(0).from_step(), 1);
    EXPECT_EQ(link.phases(0).codec(), "fp32");
    EXPECT_EQ(link.phases(1).from_step(), 50);
    EXPECT_EQ(link.phases(1).codec(), link.codec());
    changing += link.codec() == "int4" ? 1 : 0;
  }
  EXPECT_GT(changing, 0);
  const absl::StatusOr<PlanResult> replayed = ReplayPlan(job_.request(), made.plan);
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_TRUE(MessageDifferencer::Equals(replayed->plan.links(0), made.plan.links(0)));
}

TEST_F(PlannerTest, APlanOfAnotherModelIsRefused) {
  SetPolicy(Placement::EqualCompute);
  graph::v1::Plan plan = Plan().plan;
  plan.mutable_stages(0)->set_compnode("z9");
  EXPECT_THAT(std::string(ReplayPlan(job_.request(), plan).status().message()),
              HasSubstr("stages[0].compnode: compnode z9"));
  plan = Plan().plan;
  plan.mutable_stages(0)->mutable_sub_dags(0)->set_operators(0, "nothing");
  EXPECT_THAT(std::string(ReplayPlan(job_.request(), plan).status().message()),
              HasSubstr("the graph has no operator nothing"));
  plan = Plan().plan;
  plan.mutable_links(0)->set_direction(graph::v1::PlannedLink::Forward);
  plan.mutable_links(0)->set_codec("zip");
  EXPECT_THAT(std::string(ReplayPlan(job_.request(), plan).status().message()), HasSubstr("links[0].codec"));
}

TEST_F(PlannerTest, WorkersCanSliceThePlan) {
  for (const Placement::Policy policy :
       {Placement::OpFence, Placement::EqualNumber, Placement::EqualCompute, Placement::DtFm}) {
    SetPolicy(policy);
    const graph::v1::Plan plan = Plan().plan;
    absl::StatusOr<std::vector<graph::v1::StageProgram>> programs =
        graph::Slice(job_.graph, graph::PlacementOf(plan));
    ASSERT_TRUE(programs.ok()) << programs.status();
    EXPECT_TRUE(graph::SetCodecs(plan, *programs).ok());
  }
}

TEST_F(PlannerTest, EmulatedLinksAreTheWaysOfTheNetwork) {
  SetPolicy(Placement::EqualNumber);  // a1 b1 a2 b2 a3 b3
  const graph::v1::Plan plan = Plan().plan;
  const auto links = EmulatedLinksOf(job_.compnodes, plan);
  ASSERT_TRUE(links.ok()) << links.status();
  ASSERT_EQ(links->size(), 6u);
  ASSERT_EQ((*links)[0].size(), 5u);
  const wire::v1::EmulatedLink& across = (*links)[0][0];
  EXPECT_EQ(across.to_stage(), 1);
  ASSERT_EQ(across.resources_size(), 1);
  EXPECT_EQ(across.resources(0).name(), "site-a>site-b");
  EXPECT_DOUBLE_EQ(across.resources(0).bits_per_second(), 8e6);
  EXPECT_DOUBLE_EQ(across.latency_seconds(), 0.040);
  const wire::v1::EmulatedLink& inside = (*links)[0][1];
  ASSERT_EQ(inside.resources_size(), 2);
  EXPECT_EQ(inside.resources(0).name(), "a1>");
  EXPECT_EQ(inside.resources(1).name(), ">a2");
  job_.compnodes[0].mutable_spec()->mutable_emulation()->set_links(false);
  EXPECT_TRUE((*EmulatedLinksOf(job_.compnodes, plan))[0].empty());
}

TEST_F(PlannerTest, PinsPlaceAndConflictsAreNamed) {
  v1alpha1::Pin& pin = *job_.spec.mutable_placement()->add_pins();
  pin.set_operators("input|label|loss");
  pin.set_compnode("b3");
  const graph::v1::Plan plan = Plan().plan;
  for (const graph::v1::PlannedStage& stage : plan.stages()) {
    for (const std::string& name : stage.operators()) {
      const bool pinned = name == "input" || name == "label" || name == "loss";
      EXPECT_TRUE(!pinned || stage.compnode() == "b3") << name << " on " << stage.compnode();
    }
  }
  v1alpha1::Pin& other = *job_.spec.mutable_placement()->add_pins();
  other.set_operators("l*");
  other.set_compnode("a1");
  EXPECT_THAT(Refusal(),
              HasSubstr("spec.placement.pins[1].operators: label is pinned to compnode b3 and to a1"));
  other.set_operators("nothing");
  EXPECT_THAT(Refusal(), HasSubstr("no operator is named nothing"));
  other.set_compnode("z9");
  EXPECT_THAT(Refusal(), HasSubstr("spec.placement.pins[1].compnode: there is no compnode z9"));
}

TEST_F(PlannerTest, TaintsCordonAndClustersKeepCompnodesOut) {
  v1alpha1::Taint& taint = *job_.compnodes[0].mutable_spec()->add_taints();
  taint.set_key("spot");
  job_.compnodes[1].mutable_spec()->set_cordoned(true);
  job_.spec.mutable_placement()->add_clusters("site-a");
  const graph::v1::Plan plan = Plan().plan;
  for (const graph::v1::PlannedStage& stage : plan.stages()) {
    EXPECT_TRUE(stage.compnode() == "a2" || stage.compnode() == "a3") << stage.compnode();
  }
  job_.spec.mutable_placement()->add_tolerations()->set_key("spot");
  EXPECT_EQ(MakeProblem(job_.request())->nodes.size(), 3u);
  job_.spec.mutable_placement()->clear_tolerations();
  taint.set_effect("PreferNoSchedule");
  EXPECT_EQ(MakeProblem(job_.request())->nodes.size(), 3u);
  job_.spec.mutable_placement()->add_clusters("site-c");
  EXPECT_THAT(Refusal(), HasSubstr("spec.placement.clusters[1]: no compnode is in cluster site-c"));
}

TEST_F(PlannerTest, WhenNoneIsLeftEachReasonIsGiven) {
  for (v1alpha1::Compnode& compnode : job_.compnodes) compnode.mutable_spec()->set_cordoned(true);
  const std::string refusal = Refusal(absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refusal, HasSubstr("none of 6 compnodes may be used"));
  EXPECT_THAT(refusal, HasSubstr("a1 is cordoned; b1 is cordoned"));
}

TEST_F(PlannerTest, TooLittleMemorySaysHowMuch) {
  for (v1alpha1::Compnode& compnode : job_.compnodes) {
    compnode.mutable_spec()->mutable_devices(0)->set_memory("100Ki");
  }
  job_.compnodes[5].mutable_spec()->set_cordoned(true);
  for (const Placement::Policy policy :
       {Placement::OpFence, Placement::EqualNumber, Placement::EqualCompute}) {
    SetPolicy(policy);
    const absl::Status status = MakePlan(job_.request()).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("100.0 KiB"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("not offered: b3 is cordoned"));
  }
}

TEST_F(PlannerTest, BatchesMustDivide) {
  job_.spec.mutable_training()->mutable_batch()->set_micro(5);
  EXPECT_THAT(Refusal(), HasSubstr("spec.training.batch: micro (5) must divide global (64)"));
}

TEST_F(PlannerTest, GPipeHoldsTheWholeBatch) {
  SetPolicy(Placement::EqualCompute);
  job_.spec.mutable_training()->mutable_pipeline()->set_schedule(v1alpha1::Pipeline::GPipe);
  const graph::v1::Plan plan = Plan().plan;
  EXPECT_EQ(plan.schedule(), "GPipe");
  for (const graph::v1::PlannedStage& stage : plan.stages()) EXPECT_EQ(stage.depth(), 16);
}

TEST_F(PlannerTest, EvaluationIsForwardOnlyAndDense) {
  job_.spec.set_task(v1alpha1::FusionJobSpec::Evaluate);
  const graph::v1::Plan plan = Plan().plan;
  for (const graph::v1::PlannedLink& link : plan.links()) {
    EXPECT_EQ(link.direction(), graph::v1::PlannedLink::Forward);
    EXPECT_EQ(link.codec(), "fp32");
  }
}

}  // namespace
}  // namespace fusion::scheduler
