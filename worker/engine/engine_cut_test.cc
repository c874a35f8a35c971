// Any cut gives the numbers of the uncut run, bit for bit, with recompute too.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/autocast.h"
#include "graph/builder.h"
#include "graph/families.h"
#include "graph/graph_file.h"
#include "graph/graph_index.h"
#include "graph/skip_graph_for_test.h"
#include "graph/slicing.h"
#include "worker/engine/engine_test_support.h"
#include "worker/engine/model_fixtures_for_test.h"
#include "worker/engine/random.h"

namespace fusion::worker {
namespace {

constexpr int kSteps = 20;
constexpr int kCuts = 50;
constexpr int kMatrixCuts = 12;  // of each cell of the matrix of precisions and recompute

v1alpha1::Training AdamTraining() {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::AdamW);
  training.mutable_optimizer()->set_learning_rate(5e-3);
  training.mutable_optimizer()->set_weight_decay(0.1);
  v1alpha1::ParameterGroup* group = training.add_parameter_groups();
  group->set_match("*.bias");
  group->mutable_optimizer()->set_weight_decay(0);
  training.mutable_gradient_clipping()->set_max_norm(0.05);
  return training;
}

struct Trajectory {
  std::vector<double> losses;
  std::vector<double> squared_norms;
  std::vector<std::map<std::string, Tensor>> gradients;
  std::map<std::string, Tensor> variables;
  double validation_loss = 0;
};

absl::StatusOr<Trajectory> Train(const v1alpha1::Model& model,
                                 const std::vector<graph::v1::StageProgram>& programs,
                                 bool recompute = false) {
  EngineOptions options;
  options.seed = 3;
  options.training = AdamTraining();
  options.training.set_recompute(recompute);
  auto run = InProcessRun::Create(programs, options);
  if (!run.ok()) {
    return run.status();
  }
  Trajectory trajectory;
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<MicroBatch> batches = BatchesFor(model, step);
    const absl::StatusOr<double> loss = (*run)->ForwardBackward(step, batches);
    if (!loss.ok()) {
      return loss.status();
    }
    trajectory.losses.push_back(*loss);
    absl::StatusOr<std::map<std::string, Tensor>> gradients = (*run)->Gradients();
    if (!gradients.ok()) {
      return gradients.status();
    }
    trajectory.gradients.push_back(*std::move(gradients));
    const absl::StatusOr<double> squared_norm = (*run)->Update(step);
    if (!squared_norm.ok()) {
      return squared_norm.status();
    }
    trajectory.squared_norms.push_back(*squared_norm);
  }
  const absl::StatusOr<double> validation =
      (*run)->Evaluate(kSteps, /*micro_batch=*/3, BatchesFor(model, kSteps + 1).front());
  if (!validation.ok()) {
    return validation.status();
  }
  trajectory.validation_loss = *validation;
  absl::StatusOr<std::map<std::string, Tensor>> variables = (*run)->Variables();
  if (!variables.ok()) {
    return variables.status();
  }
  trajectory.variables = *std::move(variables);
  return trajectory;
}

class Dice {
 public:
  explicit Dice(uint64_t key) : key_(key) {}
  /// Uniform in [low, high).
  int Roll(int low, int high) {
    return low + static_cast<int>(engine::Uniform(engine::Bits(key_, count_++)) * (high - low));
  }

 private:
  uint64_t key_;
  uint64_t count_ = 0;
};

// A random cut into 1 to 6 stages. Operators get levels that do not fall along any edge, a level is a
// sub-DAG, and a stage runs its levels in ascending order: so the quotient graph is acyclic, and every such
// cut can come up.
graph::Placement RandomPlacement(const graph::v1::Graph& graph, Dice& dice) {
  const int stages = dice.Roll(1, 7);
  const int levels = stages + dice.Roll(0, 7);
  std::vector<int> stage_of;
  for (int level = 0; level < levels; ++level) {  // each stage has a level
    stage_of.insert(stage_of.begin() + dice.Roll(0, level + 1),
                    level < stages ? level : dice.Roll(0, stages));
  }
  if (dice.Roll(0, 2) == 0) {  // input and loss on one compnode
    stage_of.back() = stage_of.front();
  }
  std::map<std::string, int> level_of;
  std::map<int, std::vector<std::string>> operators_of;
  for (const graph::v1::Operator& op : graph.operators()) {
    if (op.kind() == graph::v1::Operator::VARIABLE) {
      continue;
    }
    int level = 0;
    graph::ForEachRead(op, [&](const graph::v1::ValueRef& ref) {
      if (level_of.contains(ref.operator_())) level = std::max(level, level_of[ref.operator_()]);
    });
    if (op.name() == "loss") {
      level = levels - 1;
    } else if (op.kind() != graph::v1::Operator::PLACEHOLDER &&
               dice.Roll(0, graph.operators_size()) < 2 * levels) {
      level = std::min(levels - 1, level + dice.Roll(1, 3));
    }
    level_of[op.name()] = level;
    operators_of[level].push_back(op.name());
  }
  graph::Placement placement(static_cast<size_t>(stages));
  for (const auto& [level, operators] : operators_of) {
    placement[static_cast<size_t>(stage_of[static_cast<size_t>(level)])].sub_dags.push_back(
        {.operators = operators, .depth = 1});
  }
  std::erase_if(placement, [](const graph::StagePlacement& stage) { return stage.sub_dags.empty(); });
  return placement;
}

// What kinds of cut a test has seen.
struct Coverage {
  std::set<size_t> stages;
  int stages_with_several_sub_dags = 0;
  int edges_over_several_sub_dags = 0;
  int cotangents_per_consumer = 0;
  int borrowed = 0;

  void Count(const std::vector<graph::v1::StageProgram>& programs) {
    stages.insert(programs.size());
    for (const graph::v1::StageProgram& program : programs) {
      stages_with_several_sub_dags += program.sub_dags_size() > 1 ? 1 : 0;
      borrowed += program.borrowed_size();
      for (const graph::v1::Edge& edge : program.incoming()) {
        edges_over_several_sub_dags += edge.to_sub_dags_size() > 1 ? 1 : 0;
        cotangents_per_consumer += edge.cotangent_per_consumer() ? 1 : 0;
      }
    }
  }
};

/// `recompute`: of every cut, or of every other one. Variables include BatchNorm's statistics.
Coverage CheckRandomCuts(const v1alpha1::Model& data, const graph::v1::Graph& graph, int cuts = kCuts,
                         std::optional<bool> recompute = std::nullopt) {
  Coverage coverage;
  const absl::StatusOr<Trajectory> uncut = Train(data, {WholeProgram(graph)});
  EXPECT_TRUE(uncut.ok()) << uncut.status();
  if (!uncut.ok()) {
    return coverage;
  }
  EXPECT_LT(uncut->losses.back(), uncut->losses.front()) << "nothing was learned";
  for (const graph::v1::Operator& op : graph.operators()) {
    if (op.has_variable()) {
      EXPECT_TRUE(uncut->variables.contains(op.variable().tensor_name())) << op.name();
    }
  }
  EXPECT_GT(uncut->squared_norms.front(), 0.05 * 0.05) << "nothing was clipped";
  for (int cut = 0; cut < cuts && !testing::Test::HasFailure(); ++cut) {
    SCOPED_TRACE(absl::StrCat("cut ", cut));
    Dice dice(engine::Combine(20261130, static_cast<uint64_t>(cut)));
    const auto programs = graph::Slice(graph, RandomPlacement(graph, dice));
    EXPECT_TRUE(programs.ok()) << programs.status();
    if (!programs.ok()) {
      break;
    }
    coverage.Count(*programs);
    const absl::StatusOr<Trajectory> run = Train(data, *programs, recompute.value_or(cut % 2 == 1));
    EXPECT_TRUE(run.ok()) << run.status();
    if (!run.ok()) {
      break;
    }
    EXPECT_EQ(run->losses, uncut->losses);
    EXPECT_EQ(run->squared_norms, uncut->squared_norms);
    EXPECT_EQ(run->validation_loss, uncut->validation_loss);
    for (size_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(run->gradients[step].size(), uncut->gradients[step].size());
      for (const auto& [name, gradient] : run->gradients[step]) {
        EXPECT_TRUE(BitEqual(gradient, uncut->gradients[step].at(name))) << name << ", step " << step + 1;
      }
    }
    EXPECT_EQ(run->variables.size(), uncut->variables.size());
    for (const auto& [name, value] : run->variables) {
      EXPECT_TRUE(BitEqual(value, uncut->variables.at(name))) << name;
    }
  }
  EXPECT_GE(coverage.stages.size(), cuts < kCuts ? 4U : 5U);
  EXPECT_TRUE(coverage.stages.contains(1));
  EXPECT_GT(coverage.stages_with_several_sub_dags, cuts);
  return coverage;
}

TEST(EngineCutTest, MlpIsBitEqual) {
  const v1alpha1::Model model = SmallMlp(v1alpha1::Loss::MeanSquaredError);
  CheckRandomCuts(model, *graph::BuildModel(model));
}

TEST(EngineCutTest, TiedGpt2WithDropoutIsBitEqual) {
  const v1alpha1::Model model = SmallGpt2(0.1);
  const Coverage coverage = CheckRandomCuts(model, *graph::BuildModel(model));
  EXPECT_GT(coverage.edges_over_several_sub_dags, 0);
  EXPECT_GT(coverage.borrowed, 10);
}

TEST(EngineCutTest, MixedPrecisionIsBitEqual) {
  for (const auto& model : {SmallMlp(v1alpha1::Loss::CrossEntropy), SmallGpt2(0.1)}) {
    const auto fp32 = graph::BuildModel(model);
    ASSERT_TRUE(fp32.ok()) << fp32.status();
    const auto bf16 = graph::Autocast(*fp32);
    ASSERT_TRUE(bf16.ok()) << bf16.status();
    CheckRandomCuts(model, *bf16, /*cuts=*/20);
  }
}

TEST(EngineCutTest, TiedBertWithDropoutIsBitEqual) {
  const v1alpha1::Model model = SmallBert(1, 0.1);
  const Coverage coverage = CheckRandomCuts(model, *graph::BuildModel(model));
  EXPECT_GT(coverage.borrowed, 10);
}

TEST(EngineCutTest, TowersThatShareTheirWeightsAreBitEqual) {
  const v1alpha1::Model model = SmallBert(2, 0.1);
  const Coverage coverage = CheckRandomCuts(model, *graph::BuildModel(model));
  EXPECT_GT(coverage.borrowed, 100);
}

/// A family, a precision, and whether the cut runs recompute; the uncut run they are compared with does not.
struct CutCase {
  std::string family;
  v1alpha1::Model model;
  int borrowed = 0;  ///< at least so many variables are borrowed over all cuts
  bool bf16 = false;
  bool recompute = false;
};

std::string NameOf(const CutCase& c) {
  return absl::StrCat(c.family, c.bf16 ? "Bf16" : "Fp32", c.recompute ? "Recompute" : "");
}
void PrintTo(const CutCase& c, std::ostream* out) { *out << NameOf(c); }

std::vector<CutCase> CutCases() {
  std::vector<CutCase> cases;
  for (const CutCase& family : std::vector<CutCase>{
           {.family = "Mlp", .model = SmallMlp(v1alpha1::Loss::MeanSquaredError)},
           {.family = "MlpOfClasses", .model = SmallMlp(v1alpha1::Loss::CrossEntropy)},
           {.family = "Gpt2", .model = SmallGpt2(0.1), .borrowed = 1},
           {.family = "Bert", .model = SmallBert(1, 0.1), .borrowed = 1},
           {.family = "Towers", .model = SmallBert(2, 0.1), .borrowed = 50},
           {.family = "Resnet", .model = SmallResnet(false, v1alpha1::ModelConfig::imagenet)},
           {.family = "ResnetOfBottlenecks", .model = SmallResnet(true, v1alpha1::ModelConfig::small)}}) {
    for (const bool bf16 : {false, true}) {
      for (const bool recompute : {false, true}) {
        cases.push_back(family);
        cases.back().bf16 = bf16;
        cases.back().recompute = recompute;
      }
    }
  }
  return cases;
}

class EngineCutMatrixTest : public testing::TestWithParam<CutCase> {};

TEST_P(EngineCutMatrixTest, AnyCutIsBitEqual) {
  const CutCase& c = GetParam();
  v1alpha1::Training training;
  training.set_precision(c.bf16 ? v1alpha1::Training::bf16 : v1alpha1::Training::fp32);
  const auto graph = graph::ApplyPrecision(*graph::BuildModel(c.model), training);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Coverage coverage = CheckRandomCuts(c.model, *graph, kMatrixCuts, c.recompute);
  EXPECT_GE(coverage.borrowed, c.borrowed);
}

INSTANTIATE_TEST_SUITE_P(Families, EngineCutMatrixTest, testing::ValuesIn(CutCases()),
                         [](const auto& info) { return NameOf(info.param); });

// Each tower on a compnode of its own, as two owners of private texts place them.
TEST(EngineCutTest, TowersOnTwoCompnodesAreBitEqual) {
  const v1alpha1::Model model = SmallBert(2, 0);
  const graph::v1::Graph graph = *graph::BuildModel(model);
  graph::Placement placement(2);
  graph::SubDagPlacement towers[2];
  graph::SubDagPlacement loss;
  for (const graph::v1::Operator& op : graph.operators()) {
    if (op.kind() == graph::v1::Operator::VARIABLE) continue;
    const bool first = op.name() == "input" || absl::StartsWith(op.name(), "anchor.");
    const bool second = op.name() == "label" || absl::StartsWith(op.name(), "positive.");
    (first ? towers[0] : second ? towers[1] : loss).operators.push_back(op.name());
  }
  placement[0].sub_dags = {towers[0]};
  placement[1].sub_dags = {towers[1], loss};
  const auto programs = graph::Slice(graph, placement);
  ASSERT_TRUE(programs.ok()) << programs.status();
  ASSERT_EQ((*programs)[0].outgoing_size(), 1) << "only the embeddings cross";
  ASSERT_EQ((*programs)[1].outgoing_size(), 0);
  int variables = 0;
  for (const graph::v1::Operator& op : graph.operators()) variables += op.has_variable() ? 1 : 0;
  EXPECT_EQ((*programs)[0].lent_size(), variables) << "every weight is shared";
  const absl::StatusOr<Trajectory> uncut = Train(model, {WholeProgram(graph)});
  const absl::StatusOr<Trajectory> cut = Train(model, *programs);
  ASSERT_TRUE(uncut.ok() && cut.ok()) << uncut.status() << cut.status();
  EXPECT_EQ(cut->losses, uncut->losses);
  for (const auto& [name, value] : uncut->variables) {
    EXPECT_TRUE(BitEqual(cut->variables.at(name), value)) << name;
  }
}

TEST(EngineCutTest, ResnetIsBitEqualWithItsStatistics) {
  const v1alpha1::Model basic = SmallResnet(false, v1alpha1::ModelConfig::imagenet);
  constexpr int kImageCuts = 16;
  CheckRandomCuts(basic, *graph::BuildModel(basic), kImageCuts);
  const v1alpha1::Model bottleneck = SmallResnet(true, v1alpha1::ModelConfig::small);
  const Coverage coverage = CheckRandomCuts(bottleneck, *graph::BuildModel(bottleneck), kImageCuts);
  EXPECT_GT(coverage.edges_over_several_sub_dags, 0) << "no shortcut was cut";
}

// Values with up to seven readers and a weight with three, where the order of sums shows.
graph::v1::Graph FanOutGraph(const v1alpha1::ModelConfig& sizes) {
  using graph::Read;
  const int64_t width = 6;
  graph::GraphBuilder builder("fan-out");
  const auto input = builder.Placeholder("input", graph::v1::FLOAT32, {graph::Batch(), sizes.inputs()});
  const auto first = builder.Variable("first", {width, sizes.inputs()}, graph::Normal(0.7));
  const auto shared = builder.Variable("shared", {width, width}, graph::Normal(0.7));
  const auto last = builder.Variable("last", {sizes.outputs(), width}, graph::Normal(0.7));
  const auto root = builder.Add("root", "aten.linear", {Read(input), Read(first)});
  auto sum = builder.Add("start", "aten.tanh", {Read(root)});
  const auto hub = sum;
  for (int i = 0; i < 5; ++i) {
    const auto name = [i](absl::string_view part) { return absl::StrCat(part, ".", i); };
    const auto mixed =
        builder.Add(name("mixed"), "aten.mul.Tensor", {Read(hub), Read(i % 2 == 0 ? sum : root)});
    const auto turned =
        i < 3 ? builder.Add(name("turned"), "aten.linear", {Read(mixed), Read(shared)}) : mixed;
    const auto active = builder.Add(name("active"), "aten.tanh", {Read(turned)});
    sum = builder.Add(name("sum"), "aten.add.Tensor", {Read(active), Read(i == 2 ? root : sum)});
  }
  const auto output = builder.Add("output", "aten.linear", {Read(sum), Read(last)});
  const auto label = builder.Placeholder("label", graph::v1::FLOAT32, {graph::Batch(), sizes.outputs()});
  return *builder.Finish(builder.Add("loss", "aten.mse_loss", {Read(output), Read(label)}));
}

TEST(EngineCutTest, ValuesAndVariablesWithManyReadersAreBitEqual) {
  const v1alpha1::Model data = SmallMlp(v1alpha1::Loss::MeanSquaredError);
  const Coverage coverage = CheckRandomCuts(data, FanOutGraph(data.config()));
  EXPECT_GT(coverage.cotangents_per_consumer, 20);
  EXPECT_GT(coverage.edges_over_several_sub_dags, 10);
  EXPECT_GT(coverage.borrowed, 20);
}

TEST(EngineCutTest, OperatorsOutsideTheRegistryAreBitEqual) {
  const auto graph = graph::ParseGraph(graph::SkipGraphJson());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const v1alpha1::Model data = SmallMlp(v1alpha1::Loss::MeanSquaredError);
  const Coverage coverage = CheckRandomCuts(data, *graph);
  EXPECT_GT(coverage.edges_over_several_sub_dags, 10);

  // Four stages in a row; `input` and `first` go from the first one to the last, past the others.
  const auto stage = [](const std::vector<std::string>& operators, int32_t depth) {
    graph::StagePlacement placed;
    placed.sub_dags.push_back({.operators = operators, .depth = depth});
    return placed;
  };
  const auto programs = graph::Slice(
      *graph, {stage({"input", "in", "first"}, 4), stage({"scan", "mid"}, 3),
               stage({"gate", "gated", "second"}, 2), stage({"sum", "joined", "out", "label", "loss"}, 1)});
  ASSERT_TRUE(programs.ok()) << programs.status();
  std::set<std::string> skipping;
  for (const graph::v1::Edge& edge : (*programs)[3].incoming()) {
    if (edge.from_stage() == 0) skipping.insert(edge.value().operator_());
  }
  EXPECT_EQ(skipping, (std::set<std::string>{"input", "first"}));
  const absl::StatusOr<Trajectory> uncut = Train(data, {WholeProgram(*graph)});
  const absl::StatusOr<Trajectory> cut = Train(data, *programs);
  ASSERT_TRUE(uncut.ok()) << uncut.status();
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->losses, uncut->losses);
  for (const auto& [name, value] : cut->variables)
    EXPECT_TRUE(BitEqual(value, uncut->variables.at(name))) << name;
}

}  // namespace
}  // namespace fusion::worker
