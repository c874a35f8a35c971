#include "graph/slicing.h"

#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "graph/builder.h"
#include "graph/families.h"
#include "graph/graph_index.h"
#include "graph/registry.h"
#include "gtest/gtest.h"

namespace fusion::graph {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Float operators "NAME = type(ARGUMENTS)" over [batch, 4]; `input` is fed and `w` is a variable [4].
class Tower {
 public:
  Tower() {
    input = graph_.Placeholder("input", v1::FLOAT32, {Batch(), 4});
    weight = graph_.Variable("w", {4}, Ones());
  }
  v1::ValueRef Mul(const std::string& name, const v1::ValueRef& a, const v1::ValueRef& b) {
    return graph_.Add(name, "aten.mul.Tensor", {Read(a), Read(b)});
  }
  v1::Graph Finish(const v1::ValueRef& x) {
    const v1::ValueRef label = graph_.Placeholder("label", v1::FLOAT32, {Batch(), 4});
    auto graph = graph_.Finish(graph_.Add("loss", "aten.mse_loss", {Read(x), Read(label)}));
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }
  v1::ValueRef input;
  v1::ValueRef weight;

 private:
  GraphBuilder graph_{"tower"};
};

Placement Stages(const std::vector<std::vector<std::vector<std::string>>>& stages) {
  Placement placement;
  for (const auto& stage : stages) {
    StagePlacement& placed = placement.emplace_back();
    for (const auto& operators : stage) placed.sub_dags.push_back({.operators = operators});
  }
  return placement;
}

std::vector<std::string> Names(const v1::SubDag& sub_dag) {
  std::vector<std::string> names;
  for (const v1::Operator& op : sub_dag.operators()) names.push_back(op.name());
  return names;
}

/// x1 -> x2 and y1 -> y2, joined at the end.
v1::Graph Towers() {
  Tower tower;
  const v1::ValueRef x1 = tower.Mul("x1", tower.input, tower.weight);
  const v1::ValueRef y1 = tower.Mul("y1", tower.input, tower.weight);
  const v1::ValueRef x2 = tower.Mul("x2", x1, x1);
  const v1::ValueRef y2 = tower.Mul("y2", y1, y1);
  return tower.Finish(tower.Mul("join", x2, y2));
}

TEST(Slice, RefusesCrossedTowersAndNamesTheCycle) {
  const auto programs =
      Slice(Towers(), Stages({{{"input"}}, {{"x1", "y2"}}, {{"y1", "x2"}}, {{"join", "label", "loss"}}}));
  EXPECT_EQ(programs.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(programs.status().message());
  EXPECT_THAT(message, HasSubstr("wait for each other"));
  EXPECT_THAT(message, HasSubstr("stage 1 sub-DAG 0 before stage 2 sub-DAG 0 ('x1' -> 'x2')"));
  EXPECT_THAT(message, HasSubstr("stage 2 sub-DAG 0 before stage 1 sub-DAG 0 ('y1' -> 'y2')"));
}

TEST(Slice, AcceptsCrossedTowersAsSubDagsOfTheirStages) {
  const auto programs =
      Slice(Towers(), Stages({{{"input"}}, {{"x1"}, {"y2"}}, {{"y1"}, {"x2"}}, {{"join", "label", "loss"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_EQ((*programs)[1].sub_dags_size(), 2);
  EXPECT_TRUE((*programs)[3].computes_loss());
  EXPECT_FALSE((*programs)[1].computes_loss());
}

// Towers' trainable variable is w, of the stage of its first reader.
TEST(Slice, StagesDecideAlongATreeOfTwoWayLinks) {
  const auto programs =
      Slice(Towers(), Stages({{{"input", "label"}}, {{"x1", "y1"}}, {{"x2"}}, {{"y2"}}, {{"join", "loss"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_FALSE((*programs)[0].has_decision()) << "no gradient reaches it";
  const v1::StepDecision& root = (*programs)[1].decision();
  EXPECT_FALSE(root.has_parent());
  EXPECT_EQ(root.parameters(), 1);
  ASSERT_EQ(root.children_size(), 2);
  EXPECT_EQ(root.children(0).stage(), 2);
  EXPECT_EQ(root.children(1).stage(), 3);
  EXPECT_EQ(root.children(0).parameters(), 0);
  EXPECT_EQ((*programs)[2].decision().parent(), 1);
  ASSERT_EQ((*programs)[2].decision().children_size(), 1);
  EXPECT_EQ((*programs)[2].decision().children(0).stage(), 4);
  EXPECT_EQ((*programs)[4].decision().parent(), 2);
  EXPECT_EQ((*programs)[3].decision().children_size(), 0);
}

TEST(Slice, TheRootOfADecisionHasTheFirstGradient) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::mlp);
  model.mutable_config()->set_inputs(4);
  model.mutable_config()->set_outputs(1);
  model.mutable_config()->add_hidden(3);
  model.mutable_config()->add_hidden(2);
  const auto graph = BuildModel(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  Placement placement(3);
  for (StagePlacement& stage : placement) stage.sub_dags.emplace_back();
  // The stage with the highest number runs first.
  for (const v1::Operator& op : graph->operators()) {
    if (op.kind() == v1::Operator::VARIABLE) continue;
    const bool front = op.name() == "input" || op.name() == "layers.0" || op.name() == "layers.1";
    const bool middle = op.name() == "layers.2" || op.name() == "layers.3";
    placement[front ? 2 : middle ? 1 : 0].sub_dags[0].operators.push_back(op.name());
  }
  const auto programs = Slice(*graph, placement);
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_FALSE((*programs)[2].decision().has_parent());
  EXPECT_EQ((*programs)[2].decision().parameters(), 6);
  EXPECT_EQ((*programs)[1].decision().parent(), 2);
  EXPECT_EQ((*programs)[1].decision().parameters(), 4);
  EXPECT_EQ((*programs)[0].decision().parent(), 1);
  EXPECT_EQ((*programs)[0].decision().parameters(), 2);
}

TEST(Slice, RefusesARunOrderAgainstTheGraph) {
  const auto programs =
      Slice(Towers(), Stages({{{"input"}}, {{"y2"}, {"x1"}}, {{"x2"}, {"y1"}}, {{"join", "label", "loss"}}}));
  EXPECT_EQ(programs.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(programs.status().message()), HasSubstr("run order"));
}

TEST(Slice, SaysWhichOperatorIsMissingUnknownOrPlacedTwice) {
  const v1::Graph graph = Towers();
  const struct {
    Placement placement;
    const char* message;
  } cases[] = {
      {Stages({{{"input", "x1", "y1", "x2", "y2", "join", "label"}}}), "'loss' is in no stage"},
      {Stages({{{"input", "x1", "y1", "x2", "y2", "join", "label", "loss", "x1"}}}),
       "'x1' is already in stage 0"},
      {Stages({{{"input", "x1", "y1", "x2", "y2", "join", "label", "loss", "z"}}}), "no operator 'z'"},
      {Stages({{{"input", "x1", "y1", "x2", "y2", "join", "label", "loss", "w"}}}), "'w' is a variable"},
      {Stages({{{"input", "x1", "y1", "x2", "y2", "join", "label", "loss"}, {}}}), "no operators"},
      {Stages({{{"input", "x1", "y1", "x2", "y2", "join", "label", "loss"}}, {}}), "stage 1 has no sub-DAG"},
  };
  for (const auto& test : cases) {
    const auto programs = Slice(graph, test.placement);
    EXPECT_EQ(programs.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(programs.status().message()), HasSubstr(test.message));
  }
  Placement shallow = Stages({{{"input", "x1", "y1", "x2", "y2", "join", "label", "loss"}}});
  shallow[0].sub_dags[0].depth = 0;
  EXPECT_THAT(std::string(Slice(graph, shallow).status().message()), HasSubstr("depth"));
}

TEST(Slice, OneEdgeForAValueAndAConsumerStage) {
  Tower tower;
  const v1::ValueRef a = tower.Mul("a", tower.input, tower.weight);
  const v1::ValueRef b = tower.Mul("b", a, a);
  const v1::ValueRef c = tower.Mul("c", b, a);
  const v1::Graph graph = tower.Finish(tower.Mul("d", c, a));
  const auto programs = Slice(graph, Stages({{{"input", "a"}}, {{"b"}, {"d", "label", "loss"}}, {{"c"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  ASSERT_EQ((*programs)[0].outgoing_size(), 2);
  const v1::Edge& edge = (*programs)[0].outgoing(0);
  EXPECT_EQ(edge.value().operator_(), "a");
  EXPECT_EQ(edge.to_stage(), 1);
  EXPECT_THAT(edge.to_sub_dags(), ElementsAre(0, 1));
  EXPECT_THAT(edge.consumers(), ElementsAre("b", "d"));
  EXPECT_TRUE(edge.differentiable());
  // `c`, in stage 2, comes between `b` and `d`.
  EXPECT_TRUE(edge.cotangent_per_consumer());
  EXPECT_FALSE((*programs)[0].outgoing(1).cotangent_per_consumer());
  EXPECT_TRUE(MessageDifferencer::Equals(edge, (*programs)[1].incoming(0)));
  // The stage that sums must know where every consumer stands.
  const auto& positions = (*programs)[0].positions();
  EXPECT_LT(positions.at("b"), positions.at("c"));
  EXPECT_LT(positions.at("c"), positions.at("d"));
}

TEST(Slice, ConsumersThatTheSumBeginsWithAreSummedWhereTheyAre) {
  Tower tower;
  const v1::ValueRef a = tower.Mul("a", tower.input, tower.weight);
  const v1::ValueRef b = tower.Mul("b", a, tower.weight);
  const v1::ValueRef c = tower.Mul("c", b, a);
  const v1::Graph graph = tower.Finish(tower.Mul("d", c, a));
  const auto last = Slice(graph, Stages({{{"input", "a", "b"}}, {{"c", "d", "label", "loss"}}}));
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_FALSE((*last)[0].outgoing(0).cotangent_per_consumer()) << "(d + c) + b";
  const auto first = Slice(graph, Stages({{{"input", "a"}}, {{"b", "c"}}, {{"d", "label", "loss"}}}));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE((*first)[0].outgoing(0).cotangent_per_consumer()) << "(d + c) + b, not d + (c + b)";
}

TEST(Slice, GradientsReturnOnlyForFloatsAfterSomethingTrainable) {
  Tower tower;
  const v1::ValueRef data = tower.Mul("data", tower.input, tower.input);
  const v1::Graph graph = tower.Finish(tower.Mul("a", data, tower.weight));
  const auto programs = Slice(graph, Stages({{{"input", "data"}}, {{"a"}}, {{"label", "loss"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_FALSE((*programs)[0].outgoing(0).differentiable());
  EXPECT_TRUE((*programs)[1].outgoing(0).differentiable());
}

TEST(Slice, LendsAVariableFromTheStageOfItsFirstReader) {
  const auto programs =
      Slice(Towers(), Stages({{{"input", "y1", "y2"}}, {{"x1"}, {"x2", "join", "label", "loss"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  // x1 precedes y1 in the graph, so stage 1 owns w.
  ASSERT_EQ((*programs)[1].lent_size(), 1);
  const v1::SharedVariable& lent = (*programs)[1].lent(0);
  EXPECT_EQ(lent.variable(), "w");
  EXPECT_EQ(lent.owner_stage(), 1);
  EXPECT_EQ(lent.user_stage(), 0);
  EXPECT_THAT(lent.consumers(), ElementsAre("y1"));
  ASSERT_EQ((*programs)[0].borrowed_size(), 1);
  EXPECT_TRUE(MessageDifferencer::Equals(lent, (*programs)[0].borrowed(0)));
  EXPECT_THAT((*programs)[0].lent(), IsEmpty());
  // In front of the sub-DAG that first reads it, at the owner and at the user.
  EXPECT_THAT(Names((*programs)[0].sub_dags(0)), ElementsAre("w", "input", "y1", "y2"));
  EXPECT_THAT(Names((*programs)[1].sub_dags(0)), ElementsAre("w", "x1"));
  EXPECT_EQ((*programs)[1].positions().count("y1"), 1u);
}

TEST(Slice, PutsAVariableInFrontOfTheSubDagThatReadsItFirst) {
  const auto programs =
      Slice(Towers(), Stages({{{"input"}, {"x1", "x2"}, {"y1", "y2", "join", "label", "loss"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_THAT(Names((*programs)[0].sub_dags(0)), ElementsAre("input"));
  EXPECT_THAT(Names((*programs)[0].sub_dags(1)), ElementsAre("w", "x1", "x2"));
}

TEST(Slice, TiedEmbeddingIsOneSharedVariable) {
  v1alpha1::Model model;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "family: gpt2 config { layers: 2 heads: 2 width: 8 context: 4 vocabulary: 16 }", &model));
  const auto graph = BuildModel(model);
  ASSERT_TRUE(graph.ok());
  std::vector<std::string> head;
  std::vector<std::string> tail;
  bool cut = false;
  for (const v1::Operator& op : graph->operators()) {
    cut = cut || op.name() == "transformer.h.1.ln_1.weight";
    if (op.kind() != v1::Operator::VARIABLE) (cut ? tail : head).push_back(op.name());
  }
  const auto programs = Slice(*graph, Stages({{head}, {tail}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  ASSERT_EQ((*programs)[0].lent_size(), 1);
  EXPECT_EQ((*programs)[0].lent(0).variable(), "transformer.wte.weight");
  EXPECT_THAT((*programs)[0].lent(0).consumers(), ElementsAre("lm_head"));
  // Between the blocks one value travels: one row a token.
  ASSERT_EQ((*programs)[0].outgoing_size(), 1);
  EXPECT_THAT((*programs)[0].outgoing(0).spec().shape(), ElementsAre(-4, 8));
}

v1::Plan PlanOf(const std::string& text) {
  v1::Plan plan;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &plan)) << text;
  return plan;
}

TEST(SetCodecs, CompressesDifferentiableValuesOnly) {
  Tower tower;
  const v1::ValueRef data = tower.Mul("data", tower.input, tower.input);
  const v1::ValueRef a = tower.Mul("a", data, tower.weight);
  const v1::ValueRef b = tower.Mul("b", a, data);
  const v1::Graph graph = tower.Finish(tower.Mul("c", b, a));
  auto programs = Slice(graph, Stages({{{"input", "data", "a"}}, {{"b"}}, {{"c", "label", "loss"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  const auto plan = PlanOf(R"(links { from: 0 to: 1 direction: Forward codec: "int4" }
                              links { from: 1 to: 0 direction: Backward codec: "int4" })");
  ASSERT_TRUE(SetCodecs(plan, *programs).ok());
  std::map<std::string, std::string> codecs;
  for (const v1::Edge& edge : (*programs)[0].outgoing()) {
    codecs[absl::StrCat(edge.value().operator_(), ">", edge.to_stage())] =
        absl::StrCat(edge.forward_codec(), "/", edge.backward_codec());
  }
  EXPECT_THAT(codecs, ElementsAre(std::pair("a>1", "int4/int4"), std::pair("a>2", "fp32/fp32"),
                                  std::pair("data>1", "fp32/fp32")));
  EXPECT_EQ((*programs)[1].incoming(0).forward_codec(), "fp32");
  EXPECT_EQ((*programs)[1].incoming(1).forward_codec(), "int4");
}

TEST(SetCodecs, CompressedGradientsAreSummedBeforeTheyTravel) {
  Tower tower;
  const v1::ValueRef a = tower.Mul("a", tower.input, tower.weight);
  const v1::ValueRef b = tower.Mul("b", a, a);
  const v1::ValueRef c = tower.Mul("c", b, a);
  const v1::Graph graph = tower.Finish(tower.Mul("d", c, a));
  auto programs = Slice(graph, Stages({{{"input", "a"}}, {{"b", "c"}}, {{"d", "label", "loss"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  ASSERT_TRUE((*programs)[0].outgoing(0).cotangent_per_consumer());
  ASSERT_TRUE(
      SetCodecs(PlanOf(R"(links { from: 1 to: 0 direction: Backward codec: "int8" })"), *programs).ok());
  EXPECT_FALSE((*programs)[0].outgoing(0).cotangent_per_consumer());
  EXPECT_FALSE((*programs)[1].incoming(0).cotangent_per_consumer());
}

TEST(SetCodecs, PhasesOfBothDirectionsAreJoined) {
  Tower tower;
  const v1::ValueRef a = tower.Mul("a", tower.input, tower.weight);
  const v1::ValueRef b = tower.Mul("b", a, a);
  const v1::Graph graph = tower.Finish(tower.Mul("c", b, a));
  auto programs = Slice(graph, Stages({{{"input", "a"}}, {{"b", "c", "label", "loss"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  ASSERT_TRUE(SetCodecs(PlanOf(R"(links { from: 0 to: 1 direction: Forward codec: "int4"
                                          phases { from_step: 1 codec: "fp32" } phases { from_step: 9 codec: "int4" } }
                                  links { from: 1 to: 0 direction: Backward codec: "int8" })"),
                        *programs)
                  .ok());
  for (const v1::Edge& edge : {(*programs)[0].outgoing(0), (*programs)[1].incoming(0)}) {
    EXPECT_EQ(edge.forward_codec(), "int4");
    EXPECT_EQ(edge.backward_codec(), "int8");
    ASSERT_EQ(edge.phases_size(), 2);
    EXPECT_EQ(edge.phases(0).from_step(), 1);
    EXPECT_EQ(edge.phases(0).forward_codec(), "fp32");
    EXPECT_EQ(edge.phases(0).backward_codec(), "int8");
    EXPECT_EQ(edge.phases(1).from_step(), 9);
    EXPECT_EQ(edge.phases(1).forward_codec(), "int4");
    EXPECT_FALSE(edge.cotangent_per_consumer()) << "one phase has a codec";
  }
  EXPECT_EQ(InsertCodecs(graph, *programs).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SetCodecs, RefusesTwoCodecsForOneLink) {
  std::vector<v1::StageProgram> programs;
  const auto status = SetCodecs(PlanOf(R"(links { from: 0 to: 1 direction: Forward codec: "int4" }
                                          links { from: 0 to: 1 direction: Forward codec: "int8" })"),
                                programs);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("stage 0 to 1"));
}

TEST(InsertCodecs, OneOperatorForAValueAndAConsumerStage) {
  Tower tower;
  const v1::ValueRef a = tower.Mul("a", tower.input, tower.weight);
  const v1::ValueRef b = tower.Mul("b", a, a);
  const v1::ValueRef c = tower.Mul("c", b, a);
  const v1::Graph graph = tower.Finish(tower.Mul("d", c, a));
  auto programs = Slice(graph, Stages({{{"input", "a"}}, {{"b", "c"}}, {{"d", "label", "loss"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  ASSERT_TRUE(SetCodecs(PlanOf(R"(links { from: 0 to: 1 direction: Forward codec: "topk-0.1-int4" }
                                  links { from: 1 to: 0 direction: Backward codec: "topk-0.1-int4" })"),
                        *programs)
                  .ok());
  const auto twin = InsertCodecs(graph, *programs);
  ASSERT_TRUE(twin.ok()) << twin.status();
  const GraphIndex index(*twin);
  ASSERT_EQ(twin->operators_size(), graph.operators_size() + 1);
  const int position = index.Find("a.codec.1");
  ASSERT_GE(position, 0);
  EXPECT_EQ(index.Find("b"), position + 1) << "directly before its first reader";
  const v1::Operator& codec = index.At(position);
  EXPECT_EQ(codec.type(), "fusion.codec");
  EXPECT_EQ(codec.args(0).value().operator_(), "a");
  EXPECT_EQ(codec.args(1).string(), "topk-0.1-int4");
  for (const char* reader : {"b", "c"}) {
    ForEachRead(index.At(index.Find(reader)),
                [](const v1::ValueRef& ref) { EXPECT_NE(ref.operator_(), "a"); });
  }
  EXPECT_EQ(index.At(index.Find("d")).args(1).value().operator_(), "a") << "a dense edge has no operator";
}

v1::Graph TwoBlocks() {
  v1alpha1::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "family: resnet config { blocks: [1, 1] width: 4 classes: 3 image_size: 16 }", &model));
  auto graph = BuildModel(model);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

/// Operators before `first` on one stage, the others on the next.
Placement CutBefore(const v1::Graph& graph, const std::string& first) {
  std::vector<std::vector<std::string>> halves(1);
  for (const v1::Operator& op : graph.operators()) {
    if (op.name() == first) halves.emplace_back();
    if (op.kind() != v1::Operator::VARIABLE) halves.back().push_back(op.name());
  }
  return Stages({{halves.at(0)}, {halves.at(1)}});
}

TEST(Slice, StatisticsGoWithTheirOperator) {
  const v1::Graph graph = TwoBlocks();
  const auto programs = Slice(graph, CutBefore(graph, "layer1.0.bn1"));
  ASSERT_TRUE(programs.ok()) << programs.status();
  EXPECT_THAT(programs->at(1).borrowed(), IsEmpty());
  std::set<std::string> second;
  for (const std::string& name : Names(programs->at(1).sub_dags(0))) second.insert(name);
  for (const char* name : {"running_mean", "running_var", "num_batches_tracked"}) {
    EXPECT_TRUE(second.contains(absl::StrCat("layer1.0.bn1.", name))) << name;
    EXPECT_FALSE(second.contains(absl::StrCat("bn1.", name))) << name;
  }
}

TEST(InsertCodecs, ImagesAreSeenBySample) {
  const v1::Graph graph = TwoBlocks();
  for (const bool images : {true, false}) {
    auto programs = Slice(graph, CutBefore(graph, images ? "layer2.0.add" : "fc"));
    ASSERT_TRUE(programs.ok()) << programs.status();
    ASSERT_TRUE(SetCodecs(PlanOf(R"(links { from: 0 to: 1 direction: Forward codec: "topk-0.1-int4" }
                                    links { from: 1 to: 0 direction: Backward codec: "topk-0.1-int4" })"),
                          *programs)
                    .ok());
    for (const v1::Edge& edge : programs->at(1).incoming()) EXPECT_EQ(edge.per_sample(), images);
    const auto twin = InsertCodecs(graph, *programs);
    ASSERT_TRUE(twin.ok()) << twin.status();
    int codecs = 0;
    for (const v1::Operator& op : twin->operators()) {
      if (op.type() != "fusion.codec") continue;
      ++codecs;
      EXPECT_EQ(op.args_size(), images ? 3 : 2);
      EXPECT_EQ(images && op.args(2).bool_(), images);
    }
    EXPECT_EQ(codecs, images ? 2 : 1);
  }
}

TEST(InsertCodecs, RefusesAnEdgeWithTwoCodecs) {
  Tower tower;
  const v1::Graph graph = tower.Finish(tower.Mul("a", tower.input, tower.weight));
  auto programs = Slice(graph, Stages({{{"input", "a"}}, {{"label", "loss"}}}));
  ASSERT_TRUE(programs.ok()) << programs.status();
  ASSERT_TRUE(
      SetCodecs(PlanOf(R"(links { from: 0 to: 1 direction: Forward codec: "int4" })"), *programs).ok());
  EXPECT_THAT(std::string(InsertCodecs(graph, *programs).status().message()), HasSubstr("'int4' and 'fp32'"));
}

TEST(PlacementOf, ReadsSubDagsInRunOrder) {
  const Placement placement = PlacementOf(PlanOf(R"(
      stages { index: 0 sub_dags { operators: "input" depth: 3 } sub_dags { operators: "loss" depth: 1 } }
      stages { index: 1 sub_dags { operators: "a" operators: "b" depth: 2 } })"));
  ASSERT_EQ(placement.size(), 2u);
  ASSERT_EQ(placement[0].sub_dags.size(), 2u);
  EXPECT_EQ(placement[0].sub_dags[0].depth, 3);
  EXPECT_THAT(placement[1].sub_dags[0].operators, ElementsAre("a", "b"));
}

}  // namespace
}  // namespace fusion::graph
