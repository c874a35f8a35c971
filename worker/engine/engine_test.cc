// Variables, optimizer state, memory, profiles, and what the engine refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "graph/families.h"
#include "graph/registry.h"
#include "graph/slicing.h"
#include "worker/engine/engine_test_support.h"
#include "worker/engine/model_fixtures_for_test.h"

namespace fusion::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// tanh(input x w) summed: one placeholder, one parameter.
constexpr char kTinyGraph[] = R"pb(
  operators {
    name: "input"
    kind: PLACEHOLDER
    outputs { dtype: FLOAT32 shape: -1 shape: 4 }
  }
  operators {
    name: "w"
    kind: VARIABLE
    variable {
      tensor_name: "w"
      trainable: true
      init { kind: NORMAL standard_deviation: 0.5 }
    }
    outputs { dtype: FLOAT32 shape: 4 shape: 3 }
  }
  operators {
    name: "product"
    kind: PARAMETRIC
    type: "aten.mm"
    args { value { operator: "input" } }
    args { value { operator: "w" } }
    outputs { dtype: FLOAT32 shape: -1 shape: 3 }
  }
  operators {
    name: "active"
    kind: NON_PARAMETRIC
    type: "aten.tanh"
    args { value { operator: "product" } }
    outputs { dtype: FLOAT32 shape: -1 shape: 3 }
  }
  operators {
    name: "loss"
    kind: NON_PARAMETRIC
    type: "aten.sum"
    args { value { operator: "active" } }
    outputs { dtype: FLOAT32 }
  }
  loss { operator: "loss" }
)pb";

graph::v1::Graph TinyGraph() { return GraphOfText(kTinyGraph); }

std::unique_ptr<Engine> Loaded(const graph::v1::Graph& graph, const EngineOptions& options = {}) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = LoadEngine("torch");
  EXPECT_TRUE(engine.ok()) << engine.status();
  const absl::Status status = (*engine)->Load(WholeProgram(graph), options);
  EXPECT_TRUE(status.ok()) << status;
  return *std::move(engine);
}

absl::Status LoadStatus(const graph::v1::Graph& graph) {
  absl::StatusOr<std::unique_ptr<Engine>> engine = LoadEngine("torch");
  EXPECT_TRUE(engine.ok()) << engine.status();
  return (*engine)->Load(WholeProgram(graph), {});
}

Pass Training(int64_t step, int32_t micro_batch, int64_t samples = 2) {
  return {.step = step, .micro_batch = micro_batch, .training = true, .samples = samples, .weight = 1};
}

Tensor TinyInput(float scale = 1) {
  return FloatTensor({2, 4}, {scale, -scale, 0.5F, 0.25F, -0.5F, scale, 0.125F, 1});
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::vector<std::string>& texts) {
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& text : texts) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

TEST(EngineTest, InitialValuesDependOnSeedAndTensorNameOnly) {
  const v1alpha1::Model model = SmallGpt2(0);
  const auto values = [&](int64_t seed) {
    auto run = InProcessRun::Create({WholeProgram(*graph::BuildModel(model))}, WithSeed(seed));
    EXPECT_TRUE(run.ok()) << run.status();
    return *(*run)->Variables();
  };
  const std::map<std::string, Tensor> a = values(1);
  const std::map<std::string, Tensor> b = values(1);
  const std::map<std::string, Tensor> other = values(2);
  for (const auto& [name, value] : a) {
    EXPECT_TRUE(BitEqual(value, b.at(name))) << name;
  }
  const std::string first = "transformer.h.0.mlp.c_fc.weight";
  EXPECT_FALSE(BitEqual(a.at(first), other.at(first)));
  EXPECT_FALSE(BitEqual(a.at(first), a.at("transformer.h.1.mlp.c_fc.weight")));
  double sum = 0;
  double squares = 0;
  for (const float x : a.at(first).floats()) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  const auto count = static_cast<double>(a.at(first).elements());  // 1024
  EXPECT_NEAR(sum / count, 0, 4 * 0.02 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 4 * 0.02 / std::sqrt(2 * count));
}

TEST(EngineTest, OptimizerStateGoesOnInAnotherEngine) {
  for (const auto type : {v1alpha1::Optimizer::SGD, v1alpha1::Optimizer::Adam, v1alpha1::Optimizer::AdamW}) {
    EngineOptions options;
    options.training.mutable_optimizer()->set_type(type);
    options.training.mutable_optimizer()->set_learning_rate(0.1);
    if (type == v1alpha1::Optimizer::SGD) {
      options.training.mutable_optimizer()->set_momentum(0.9);
    }
    const auto step = [](Engine& engine, int64_t number) {
      ASSERT_TRUE(engine.Feed(Training(number, 0), "input", TinyInput(static_cast<float>(number))).ok());
      ASSERT_TRUE(engine.Forward(Training(number, 0), 0).ok());
      ASSERT_TRUE(engine.Backward(Training(number, 0), 0).ok());
      ASSERT_TRUE(engine.Update(number, {.learning_rate_factor = 0.5}).ok());
    };
    const std::unique_ptr<Engine> first = Loaded(TinyGraph(), options);
    step(*first, 1);
    step(*first, 2);
    const auto state = first->ReadOptimizerState();
    ASSERT_TRUE(state.ok()) << state.status();
    std::set<std::string> names;
    for (const NamedTensor& entry : *state) {
      names.insert(entry.name);
    }
    EXPECT_EQ(names, (type == v1alpha1::Optimizer::SGD
                          ? std::set<std::string>{"w.momentum_buffer"}
                          : std::set<std::string>{"w.exp_avg", "w.exp_avg_sq", "w.step"}));
    const std::unique_ptr<Engine> second = Loaded(TinyGraph(), options);
    ASSERT_TRUE(second->WriteVariable("w", *first->ReadVariable("w")).ok());
    ASSERT_TRUE(second->WriteOptimizerState(*state).ok());
    step(*first, 3);
    step(*second, 3);
    EXPECT_TRUE(BitEqual(*first->ReadVariable("w"), *second->ReadVariable("w")));

    std::vector<NamedTensor> foreign = *state;
    foreign.front().name = "nobody.exp_avg";
    EXPECT_EQ(second->WriteOptimizerState(foreign).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(EngineTest, NonFiniteGradientsUpdateNothing) {
  const std::unique_ptr<Engine> engine = Loaded(TinyGraph());
  const Tensor before = *engine->ReadVariable("w");
  const Tensor input = TinyInput(std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(engine->Feed(Training(1, 0), "input", input).ok());
  ASSERT_TRUE(engine->Forward(Training(1, 0), 0).ok());
  ASSERT_TRUE(engine->Backward(Training(1, 0), 0).ok());
  const absl::StatusOr<UpdateResult> refused = engine->Update(1, {});
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_FALSE(refused->finite);
  EXPECT_TRUE(BitEqual(*engine->ReadVariable("w"), before));

  ASSERT_TRUE(engine->Feed(Training(2, 0), "input", TinyInput()).ok());
  ASSERT_TRUE(engine->Forward(Training(2, 0), 0).ok());
  ASSERT_TRUE(engine->Backward(Training(2, 0), 0).ok());
  const Tensor gradient = **engine->ReadGradient("w");
  double squares = 0;
  for (const float g : gradient.floats()) {
    squares += static_cast<double>(g) * g;
  }
  const absl::StatusOr<UpdateResult> done = engine->Update(2, {});
  ASSERT_TRUE(done.ok());
  EXPECT_TRUE(done->finite);
  EXPECT_DOUBLE_EQ(done->squared_gradient_norm, squares);
  EXPECT_FALSE(BitEqual(*engine->ReadVariable("w"), before));
  EXPECT_FALSE(engine->ReadGradient("w")->has_value());
}

TEST(EngineTest, UpdateScalesOrSkipsTheGradients) {
  EngineOptions options;
  options.training.mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
  options.training.mutable_optimizer()->set_learning_rate(0.5);
  const std::unique_ptr<Engine> engine = Loaded(TinyGraph(), options);
  const Tensor before = *engine->ReadVariable("w");
  const auto accumulate = [&](int64_t step) {
    ASSERT_TRUE(engine->Feed(Training(step, 0), "input", TinyInput()).ok());
    ASSERT_TRUE(engine->Forward(Training(step, 0), 0).ok());
    ASSERT_TRUE(engine->Backward(Training(step, 0), 0).ok());
  };
  accumulate(1);
  const auto norms = engine->GradientNorms();
  ASSERT_TRUE(norms.ok()) << norms.status();
  ASSERT_EQ(norms->size(), 1U);
  const absl::StatusOr<UpdateResult> skipped = engine->Update(1, {.skip = true});
  ASSERT_TRUE(skipped.ok()) << skipped.status();
  EXPECT_EQ(skipped->squared_gradient_norm, norms->front().squared);
  EXPECT_TRUE(BitEqual(*engine->ReadVariable("w"), before));
  EXPECT_FALSE(engine->ReadGradient("w")->has_value());

  accumulate(2);
  const Tensor gradient = **engine->ReadGradient("w");
  ASSERT_TRUE(engine->Update(2, {.gradient_scale = 0.25}).ok());
  const Tensor after = *engine->ReadVariable("w");
  for (size_t i = 0; i < after.floats().size(); ++i) {
    EXPECT_EQ(after.floats()[i], before.floats()[i] - 0.5F * (0.25F * gradient.floats()[i]));
  }
}

// Three micro-batches in flight: one tape instead of three.
TEST(EngineTest, RecomputeKeepsLessAndComputesTheSame) {
  v1alpha1::Model model = SmallGpt2(0.1);
  model.mutable_config()->set_context(32);  // activations outweigh parameters
  const graph::v1::StageProgram program = WholeProgram(*graph::BuildModel(model));
  const std::vector<MicroBatch> batches = BatchesFor(model, 1);
  std::vector<std::unique_ptr<InProcessRun>> runs;
  for (const bool recompute : {false, true}) {
    EngineOptions options;
    options.training.set_recompute(recompute);
    auto run = InProcessRun::Create({program}, options);
    ASSERT_TRUE(run.ok()) << run.status();
    runs.push_back(*std::move(run));
  }
  const auto loss = runs[0]->ForwardBackward(1, batches);
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(*loss, *runs[1]->ForwardBackward(1, batches));
  const auto gradients = *runs[0]->Gradients();
  const auto again = *runs[1]->Gradients();
  for (const auto& [name, gradient] : gradients) {
    EXPECT_TRUE(BitEqual(gradient, again.at(name))) << name;
  }
  const int64_t all = runs[0]->engine(0).PeakMemoryBytes();
  const int64_t less = runs[1]->engine(0).PeakMemoryBytes();
  EXPECT_LT(less, 8 * all / 10) << "peaks of " << all << " and " << less << " bytes";
  EXPECT_EQ(runs[1]->engine(0).MemoryBytes(), runs[0]->engine(0).MemoryBytes())
      << "an input outlived its pass";
}

// kTinyGraph's product normalised over the micro-batch; momentum 0.5.
constexpr char kNormalization[] = R"pb(
  operators {
    name: "mean"
    kind: VARIABLE
    variable {
      tensor_name: "mean"
      init { kind: ZEROS }
    }
    outputs { dtype: FLOAT32 shape: 3 }
  }
  operators {
    name: "variance"
    kind: VARIABLE
    variable {
      tensor_name: "variance"
      init { kind: ONES }
    }
    outputs { dtype: FLOAT32 shape: 3 }
  }
  operators {
    name: "normal"
    kind: PARAMETRIC
    type: "aten.batch_norm"
    args { value { operator: "product" } }
    args { none {} }
    args { none {} }
    args { value { operator: "mean" } }
    args { value { operator: "variance" } }
    args { training {} }
    args { double: 0.5 }
    args { double: 1e-5 }
    args { bool: false }
    outputs { dtype: FLOAT32 shape: -1 shape: 3 }
    flops { forward: 30 }
  }
)pb";

TEST(EngineTest, RecomputeUpdatesBuffersOnce) {
  std::string text = kTinyGraph;
  text.insert(text.find("  operators {\n    name: \"active\""), kNormalization);
  graph::v1::Graph graph = GraphOfText(text);
  for (graph::v1::Operator& op : *graph.mutable_operators()) {
    if (op.name() == "active") {
      op.mutable_args(0)->mutable_value()->set_operator_("normal");
    }
  }
  std::vector<Tensor> means;
  std::vector<Tensor> gradients;
  for (const bool recompute : {false, true}) {
    EngineOptions options;
    options.training.set_recompute(recompute);
    const std::unique_ptr<Engine> engine = Loaded(graph, options);
    ASSERT_TRUE(engine->Feed(Training(1, 0), "input", TinyInput()).ok());
    ASSERT_TRUE(engine->Forward(Training(1, 0), 0).ok());
    const Tensor after_forward = *engine->ReadVariable("mean");
    ASSERT_TRUE(engine->Backward(Training(1, 0), 0).ok());
    means.push_back(*engine->ReadVariable("mean"));
    EXPECT_TRUE(BitEqual(means.back(), after_forward));
    EXPECT_NE(means.back().floats()[0], 0);
    gradients.push_back(**engine->ReadGradient("w"));
  }
  EXPECT_TRUE(BitEqual(means[0], means[1]));
  EXPECT_TRUE(BitEqual(gradients[0], gradients[1]));
}

std::vector<float> Floats(const Tensor& tensor) { return {tensor.floats().begin(), tensor.floats().end()}; }

int64_t Counted(const Engine& engine, const std::string& name) {
  const absl::StatusOr<Tensor> value = engine.ReadVariable(name);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *reinterpret_cast<const int64_t*>(value->data.get()) : -1;
}

TEST(EngineTest, BatchNormStatisticsFollowTrainingPassesOnly) {
  const v1alpha1::Model model = SmallResnet(false, v1alpha1::ModelConfig::small);
  const auto run = InProcessRun::Create({WholeProgram(*graph::BuildModel(model))}, {});
  ASSERT_TRUE(run.ok()) << run.status();
  Engine& engine = (*run)->engine(0);
  const std::vector<MicroBatch> batches = BatchesFor(model, 1);
  ASSERT_EQ(batches.size(), 3U);
  EXPECT_EQ(Floats(*engine.ReadVariable("bn1.running_mean")), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(Floats(*engine.ReadVariable("bn1.running_var")), (std::vector<float>{1, 1, 1}));
  ASSERT_TRUE((*run)->Evaluate(1, 3, batches[0]).ok());
  EXPECT_EQ(Counted(engine, "bn1.num_batches_tracked"), 0);
  EXPECT_EQ(Floats(*engine.ReadVariable("bn1.running_mean")), (std::vector<float>{0, 0, 0}));

  ASSERT_TRUE((*run)->ForwardBackward(1, batches).ok());
  ASSERT_TRUE((*run)->Update(1).ok());
  EXPECT_EQ(Counted(engine, "bn1.num_batches_tracked"), 3) << "one a micro-batch";
  EXPECT_EQ(Counted(engine, "layer2.1.bn2.num_batches_tracked"), 3);
  const Tensor mean = *engine.ReadVariable("bn1.running_mean");
  EXPECT_NE(mean.floats()[0], 0);
  const absl::StatusOr<double> first = (*run)->Evaluate(1, 3, batches[0]);
  const absl::StatusOr<double> second = (*run)->Evaluate(1, 4, batches[0]);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_TRUE(BitEqual(*engine.ReadVariable("bn1.running_mean"), mean));
  for (const VariableInfo& variable : engine.Variables()) {
    const bool buffer = variable.name.find("running_") != std::string::npos ||
                        variable.name.find("num_batches") != std::string::npos;
    EXPECT_EQ(variable.trainable, !buffer) << variable.name;
  }
}

TEST(EngineTest, AStepThatIsNotTakenLeavesTheStatistics) {
  const v1alpha1::Model model = SmallResnet(false, v1alpha1::ModelConfig::small);
  const auto run = InProcessRun::Create({WholeProgram(*graph::BuildModel(model))}, {});
  ASSERT_TRUE(run.ok()) << run.status();
  Engine& engine = (*run)->engine(0);
  ASSERT_TRUE((*run)->ForwardBackward(1, BatchesFor(model, 1)).ok());
  ASSERT_TRUE((*run)->Update(1).ok());
  const std::map<std::string, Tensor> before = *(*run)->Variables();
  std::vector<MicroBatch> batches = BatchesFor(model, 2);
  batches[1].feeds.at("input").mutable_floats()[0] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE((*run)->ForwardBackward(2, batches).ok());
  EXPECT_TRUE(std::isnan(engine.ReadVariable("bn1.running_mean")->floats()[0]));
  const absl::StatusOr<UpdateResult> refused = engine.Update(2, {});
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_FALSE(refused->finite);
  for (const auto& [name, value] : before) {
    EXPECT_TRUE(BitEqual(*engine.ReadVariable(name), value)) << name;
  }
}

TEST(EngineTest, EvaluationCountsTheClassesThatRankFirst) {
  v1alpha1::Model model = SmallMlp(v1alpha1::Loss::CrossEntropy);
  model.mutable_config()->clear_hidden();
  const std::unique_ptr<Engine> engine = Loaded(*graph::BuildModel(model));
  ASSERT_TRUE(engine->WriteVariable("layers.0.bias", FloatTensor({3}, {0, 0, 0})).ok());
  // Score k is input k.
  ASSERT_TRUE(engine
                  ->WriteVariable("layers.0.weight", FloatTensor({3, 5}, {1, 0, 0, 0, 0,  //
                                                                          0, 1, 0, 0, 0,  //
                                                                          0, 0, 1, 0, 0}))
                  .ok());
  const Tensor input = FloatTensor({4, 5}, {3, 1, 2, 0, 0,  //
                                            1, 3, 2, 0, 0,  //
                                            1, 2, 3, 0, 0,  //
                                            3, 2, 1, 0, 0});
  for (const bool training : {false, true}) {
    Pass pass = Training(1, 0, 4);
    pass.training = training;
    ASSERT_TRUE(engine->Feed(pass, "input", input).ok());
    ASSERT_TRUE(engine->Feed(pass, "label", LongTensor({4}, {0, 1, 0, 0})).ok());
    const absl::StatusOr<ForwardResult> result = engine->Forward(pass, 0);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->correct, training ? std::nullopt : std::optional<int64_t>(3));
  }
}

TEST(EngineTest, ReleaseAndEvaluationLeaveNoMemory) {
  const v1alpha1::Model model = SmallGpt2(0.1);
  auto run = InProcessRun::Create({WholeProgram(*graph::BuildModel(model))}, {});
  ASSERT_TRUE(run.ok()) << run.status();
  Engine& engine = (*run)->engine(0);
  const int64_t loaded = engine.MemoryBytes();
  const std::vector<MicroBatch> batches = BatchesFor(model, 1);
  ASSERT_TRUE((*run)->Evaluate(1, 3, batches[0]).ok());
  EXPECT_EQ(engine.MemoryBytes(), loaded);
  const int64_t evaluation_peak = engine.PeakMemoryBytes() - loaded;

  const Pass pass = Training(1, 0, batches[0].samples);
  for (const auto& [name, value] : batches[0].feeds) {
    ASSERT_TRUE(engine.Feed(pass, name, value).ok());
  }
  ASSERT_TRUE(engine.Forward(pass, 0).ok());
  EXPECT_GT(engine.MemoryBytes() - loaded, 4 * evaluation_peak / 3)
      << "a training pass keeps what backward needs";
  engine.Release(pass);
  EXPECT_EQ(engine.MemoryBytes(), loaded);

  ASSERT_TRUE((*run)->ForwardBackward(2, batches).ok());
  EXPECT_EQ(engine.MemoryBytes(), loaded + 4 * graph::ParameterCount(*graph::BuildModel(model)) +
                                      4 * 13 * 16)  // the tied embedding has two uses
      << "only gradients are left";
}

TEST(EngineTest, MemoryLimitIsAnErrorWithTheNumbers) {
  graph::v1::Graph graph = TinyGraph();
  for (graph::v1::Operator& op : *graph.mutable_operators()) {
    for (graph::v1::TensorSpec& spec : *op.mutable_outputs()) {
      for (int i = 0; i < spec.shape_size(); ++i) {
        spec.set_shape(i, spec.shape(i) == 3 ? 1000 : spec.shape(i));
      }
    }
  }
  EngineOptions options;
  options.memory_limit_bytes = 100'000;
  const std::unique_ptr<Engine> engine = Loaded(graph, options);  // w: 16,000 bytes
  const Pass pass = Training(1, 0, 50);
  ASSERT_TRUE(engine->Feed(pass, "input", FloatTensor({50, 4}, std::vector<float>(200, 1))).ok());
  const auto result = engine->Forward(pass, 0);
  ExpectError(result.status(), absl::StatusCode::kResourceExhausted,
              {"'product' (aten.mm)", "200000 more", "limit is 100000 bytes"});
  engine->Release(pass);
  EXPECT_EQ(engine->MemoryBytes(), 16'000);
  ASSERT_TRUE(engine->Feed(Training(1, 1, 2), "input", TinyInput()).ok());
  EXPECT_TRUE(engine->Forward(Training(1, 1, 2), 0).ok()) << "the engine goes on after the refusal";

  absl::StatusOr<std::unique_ptr<Engine>> small = LoadEngine("torch");
  options.memory_limit_bytes = 10'000;
  ExpectError((*small)->Load(WholeProgram(graph), options), absl::StatusCode::kResourceExhausted,
              {"16000", "10000"});
}

TEST(EngineTest, RefusesOperatorsThatItCannotRun) {
  graph::v1::Graph graph = TinyGraph();
  graph.mutable_operators(3)->set_type("aten.no_such_thing");
  ExpectError(LoadStatus(graph), absl::StatusCode::kNotFound, {"'active' (aten.no_such_thing)"});
  graph.mutable_operators(3)->set_type("aten.tanh_");
  ExpectError(LoadStatus(graph), absl::StatusCode::kInvalidArgument, {"'active' (aten.tanh_)", "in-place"});
  graph.mutable_operators(3)->set_type("aten.tanh");
  graph.mutable_operators(3)->set_overload("out");
  ExpectError(LoadStatus(graph), absl::StatusCode::kInvalidArgument,
              {"'active' (aten.tanh.out)", "in-place"});
  graph.mutable_operators(3)->set_overload("default");
  EXPECT_TRUE(LoadStatus(graph).ok());
  graph.mutable_operators(3)->set_type("tanh");
  ExpectError(LoadStatus(graph), absl::StatusCode::kInvalidArgument, {"NAMESPACE.NAME"});
}

TEST(EngineTest, RefusesArgumentsThatDoNotFitTheSchema) {
  graph::v1::Graph graph = TinyGraph();
  graph.mutable_operators(3)->add_args()->set_string("x");
  ExpectError(LoadStatus(graph), absl::StatusCode::kInvalidArgument, {"'active'", "2 positional arguments"});
  graph = TinyGraph();
  graph.mutable_operators(2)->mutable_args(1)->set_string("x");
  ExpectError(LoadStatus(graph), absl::StatusCode::kInvalidArgument,
              {"'product'", "'mat2' is a string", "Tensor"});
  graph = TinyGraph();
  graph.mutable_operators(2)->mutable_args()->RemoveLast();
  ExpectError(LoadStatus(graph), absl::StatusCode::kInvalidArgument, {"'product'", "'mat2' is missing"});
  graph = TinyGraph();
  graph::v1::NamedArgument* named = graph.mutable_operators(4)->add_kwargs();
  named->set_name("dtype");
  named->mutable_argument()->set_bool_(true);
  ExpectError(LoadStatus(graph), absl::StatusCode::kInvalidArgument, {"'loss'", "'dtype' is a bool", "int"});
  named->set_name("nonsense");
  ExpectError(LoadStatus(graph), absl::StatusCode::kInvalidArgument, {"'loss'", "no argument 'nonsense'"});
  graph = TinyGraph();
  graph.mutable_operators(3)->mutable_args(0)->mutable_value()->set_operator_("later");
  ExpectError(LoadStatus(graph), absl::StatusCode::kInvalidArgument, {"'active'", "later[0]"});
}

TEST(EngineTest, RefusesShapesThatTheGraphDoesNotSay) {
  const std::unique_ptr<Engine> engine = Loaded(TinyGraph());
  ExpectError(engine->Feed(Training(1, 0), "input", FloatTensor({2, 5}, std::vector<float>(10))),
              absl::StatusCode::kInvalidArgument, {"'input'", "FLOAT32[2, 5]", "FLOAT32[2, 4]"});
  ExpectError(engine->Feed(Training(1, 0), "input", LongTensor({2, 4}, std::vector<int64_t>(8))),
              absl::StatusCode::kInvalidArgument, {"INT64[2, 4]"});
  ExpectError(engine->Feed(Training(1, 0), "nobody", TinyInput()), absl::StatusCode::kNotFound, {"nobody"});
  ExpectError(engine->WriteVariable("w", FloatTensor({3}, {1, 2, 3})), absl::StatusCode::kInvalidArgument,
              {"'w'", "FLOAT32[3]", "FLOAT32[4, 3]"});
  ExpectError(engine->Receive(Training(1, 0), 7, TinyInput()), absl::StatusCode::kNotFound, {"edge 7"});

  graph::v1::Graph wrong = TinyGraph();
  wrong.mutable_operators(3)->mutable_outputs(0)->set_shape(1, 8);
  const std::unique_ptr<Engine> misled = Loaded(wrong);
  ASSERT_TRUE(misled->Feed(Training(1, 0), "input", TinyInput()).ok());
  ExpectError(misled->Forward(Training(1, 0), 0).status(), absl::StatusCode::kInvalidArgument,
              {"'active' (aten.tanh)", "FLOAT32[2, 3]", "FLOAT32[2, 8]"});

  wrong = TinyGraph();
  wrong.mutable_operators(1)->mutable_outputs(0)->set_shape(0, 9);
  const std::unique_ptr<Engine> broken = Loaded(wrong);
  ASSERT_TRUE(broken->Feed(Training(1, 0), "input", TinyInput()).ok());
  ExpectError(broken->Forward(Training(1, 0), 0).status(), absl::StatusCode::kInvalidArgument,
              {"'product' (aten.mm)", "2x4 and 9x3"});
}

TEST(EngineTest, RefusesCallsOutOfOrder) {
  absl::StatusOr<std::unique_ptr<Engine>> unloaded = LoadEngine("torch");
  EXPECT_EQ((*unloaded)->Forward(Training(1, 0), 0).status().code(), absl::StatusCode::kFailedPrecondition);
  const std::unique_ptr<Engine> engine = Loaded(TinyGraph());
  EXPECT_EQ(engine->Load(WholeProgram(TinyGraph()), {}).code(), absl::StatusCode::kFailedPrecondition);
  ExpectError(engine->Forward(Training(1, 0), 0).status(), absl::StatusCode::kFailedPrecondition,
              {"'input'", "not fed"});
  ExpectError(engine->Forward(Training(1, 0), 1).status(), absl::StatusCode::kInvalidArgument, {"sub-DAG 1"});
  EXPECT_EQ(engine->Backward(Training(1, 0), 0).status().code(), absl::StatusCode::kFailedPrecondition);
  for (const int32_t micro_batch : {0, 1}) {
    ASSERT_TRUE(engine->Feed(Training(1, micro_batch), "input", TinyInput()).ok());
    ExpectError(engine->Feed(Training(1, micro_batch), "input", TinyInput()),
                absl::StatusCode::kAlreadyExists, {});
    ASSERT_TRUE(engine->Forward(Training(1, micro_batch), 0).ok());
  }
  EXPECT_TRUE(engine->Backward(Training(1, 1), 0).ok());
  ExpectError(engine->Backward(Training(1, 0), 0).status(), absl::StatusCode::kFailedPrecondition,
              {"micro-batch order"});
}

TEST(EngineTest, BackwardWaitsForEveryCotangent) {
  const graph::v1::Graph graph = TinyGraph();
  graph::Placement placement(2);
  placement[0].sub_dags.push_back({.operators = {"input", "product"}, .depth = 1});
  placement[1].sub_dags.push_back({.operators = {"active", "loss"}, .depth = 1});
  const auto programs = graph::Slice(graph, placement);
  ASSERT_TRUE(programs.ok()) << programs.status();
  absl::StatusOr<std::unique_ptr<Engine>> engine = LoadEngine("torch");
  ASSERT_TRUE((*engine)->Load((*programs)[0], {}).ok());
  const Pass pass = Training(1, 0);
  ASSERT_TRUE((*engine)->Feed(pass, "input", TinyInput()).ok());
  ASSERT_TRUE((*engine)->Forward(pass, 0).ok());
  ExpectError((*engine)->Backward(pass, 0).status(), absl::StatusCode::kFailedPrecondition,
              {"0 of the 1 cotangents of product[0]"});
  EXPECT_EQ((*engine)->ReceiveGradient(pass, {.edge = 0, .consumer = 3, .tensor = {}}).code(),
            absl::StatusCode::kInvalidArgument);
  // An absent cotangent is an answer: no gradient reaches w, and the update leaves it alone.
  ASSERT_TRUE((*engine)->ReceiveGradient(pass, {.edge = 0, .consumer = -1, .tensor = {}}).ok());
  ASSERT_TRUE((*engine)->Backward(pass, 0).ok());
  EXPECT_FALSE((*engine)->ReadGradient("w")->has_value());
  const Tensor before = *(*engine)->ReadVariable("w");
  ASSERT_TRUE((*engine)->Update(1, {}).ok());
  EXPECT_TRUE(BitEqual(*(*engine)->ReadVariable("w"), before));
}

double CpuSeconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Emulated speeds count the compute thread's CPU seconds, so nobody may help it, whichever thread loaded the
// engine.
TEST(EngineTest, OneThreadComputesWhicheverThreadLoaded) {
  graph::v1::Graph graph = TinyGraph();
  constexpr int64_t kWidth = 1200;
  graph.mutable_operators(0)->mutable_outputs(0)->set_shape(1, kWidth);
  graph.mutable_operators(1)->mutable_outputs(0)->set_shape(0, kWidth);
  for (const int op : {1, 2, 3}) {
    graph.mutable_operators(op)->mutable_outputs(0)->set_shape(1, kWidth);
  }
  const std::unique_ptr<Engine> engine = Loaded(graph);
  const Pass pass = Training(1, 0, kWidth);
  const Tensor input = FloatTensor({kWidth, kWidth}, std::vector<float>(kWidth * kWidth, 0.01F));
  ASSERT_TRUE(engine->Feed(pass, "input", input).ok());
  double of_thread = 0;
  double of_process = 0;
  std::thread([&] {
    const double thread_start = CpuSeconds(CLOCK_THREAD_CPUTIME_ID);
    const double process_start = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID);
    EXPECT_TRUE(engine->Forward(pass, 0).ok());
    of_thread = CpuSeconds(CLOCK_THREAD_CPUTIME_ID) - thread_start;
    of_process = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID) - process_start;
  }).join();
  EXPECT_LT(of_process, 1.2 * of_thread);
}

TEST(EngineTest, UnknownEngineNamesThePathsTried) {
  ExpectError(LoadEngine("abacus").status(), absl::StatusCode::kNotFound,
              {"abacus", "libfusion_engine_abacus.so"});
  EXPECT_EQ(LoadEngine("../torch").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EngineTest, MeasuresEveryDistinctOperator) {
  const graph::v1::Graph graph = *graph::BuildModel(SmallGpt2(0.1));
  absl::StatusOr<std::unique_ptr<Engine>> engine = LoadEngine("torch");
  const absl::StatusOr<MachineMeasurement> machine = (*engine)->Measure(graph, 4);
  ASSERT_TRUE(machine.ok()) << machine.status();
  std::set<std::string> signatures;
  for (int i = 0; i < graph.operators_size(); ++i) {
    if (graph.operators(i).kind() != graph::v1::Operator::PLACEHOLDER &&
        graph.operators(i).kind() != graph::v1::Operator::VARIABLE) {
      signatures.insert(graph::OperatorSignature(graph, i, 4));
    }
  }
  std::set<std::string> measured;
  double backward = 0;
  for (const OperatorMeasurement& op : machine->operators) {
    measured.insert(op.signature);
    EXPECT_GT(op.forward, 0) << op.signature;
    backward += op.backward;
  }
  EXPECT_EQ(measured, signatures);
  EXPECT_GT(backward, 0);
  EXPECT_GT(machine->flops, 1e8);
  ASSERT_EQ(machine->lambda.size(), 5U);
  for (const double lambda : machine->lambda) {
    EXPECT_GT(lambda, 0);
    EXPECT_LE(lambda, 1);
  }
  EXPECT_GT(machine->memory_bytes_per_second, 1e8);
  EXPECT_GT(machine->operator_seconds, 1e-8);
  EXPECT_GT(machine->update_seconds_per_parameter, 0);
}

TEST(EngineTest, MeasuresAroundAnOperatorThatRefusesMadeUpNumbers) {
  graph::v1::Graph graph = TinyGraph();
  graph.mutable_operators(3)->set_type("aten.linalg_cholesky");
  absl::StatusOr<std::unique_ptr<Engine>> engine = LoadEngine("torch");
  const absl::StatusOr<MachineMeasurement> machine = (*engine)->Measure(graph, 3);
  ASSERT_TRUE(machine.ok()) << machine.status();
  std::set<std::string> measured;
  for (const OperatorMeasurement& op : machine->operators) measured.insert(op.signature);
  EXPECT_EQ(measured, (std::set<std::string>{graph::OperatorSignature(graph, 2, 3),
                                             graph::OperatorSignature(graph, 4, 3)}));
  graph.mutable_operators(3)->set_type("aten.no_such_thing");
  ExpectError((*engine)->Measure(graph, 3).status(), absl::StatusCode::kNotFound,
              {"'active' (aten.no_such_thing)"});
}

TEST(EngineTest, OperatorsThatDrawNumbersOfTheirOwnAreRefused) {
  graph::v1::Graph graph = TinyGraph();
  graph::v1::Operator* op = graph.mutable_operators(3);
  op->set_type("aten.dropout");
  op->add_args()->set_double_(0.5);
  op->add_args()->mutable_training();
  ExpectError(LoadStatus(graph), absl::StatusCode::kInvalidArgument,
              {"'active' (aten.dropout)", "multiply by fusion.dropout_mask"});
}

}  // namespace
}  // namespace fusion::worker
