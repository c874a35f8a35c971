// What the registry says of operators, against what LibTorch does.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "graph/families.h"
#include "graph/operator_examples.h"
#include "graph/registry.h"
#include "worker/engine/engine_test_support.h"
#include "worker/engine/model_fixtures_for_test.h"

namespace fusion::worker {
namespace {

/// Small numbers for floats, valid ids and classes for integers.
Tensor DataFor(const graph::v1::TensorSpec& spec, int64_t samples) {
  Tensor tensor = AllocateTensor(spec.dtype(), graph::ShapeOf(spec, samples));
  if (spec.dtype() == graph::v1::INT64) {
    auto* ids = reinterpret_cast<int64_t*>(tensor.data.get());
    for (int64_t i = 0; i < tensor.elements(); ++i) ids[i] = i % 5;
  } else {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      tensor.mutable_floats()[i] = std::sin(static_cast<float>(i) + 0.5F);
    }
  }
  return tensor;
}

MicroBatch BatchFor(const graph::v1::Graph& graph, int64_t samples) {
  MicroBatch batch;
  batch.samples = samples;
  for (const graph::v1::Operator& op : graph.operators()) {
    if (op.kind() == graph::v1::Operator::PLACEHOLDER)
      batch.feeds[op.name()] = DataFor(op.outputs(0), samples);
  }
  return batch;
}

/// The engine refuses results whose shape is not the recorded one, which is the registry's rule.
TEST(EngineRegistry, RunsEveryRegisteredOperatorBothWays) {
  for (const graph::OperatorExample& example : graph::OperatorExamples()) {
    SCOPED_TRACE(example.type);
    auto run = InProcessRun::Create({WholeProgram(example.graph)}, EngineOptions());
    ASSERT_TRUE(run.ok()) << run.status();
    const auto loss = (*run)->ForwardBackward(1, {BatchFor(example.graph, 2), BatchFor(example.graph, 3)});
    ASSERT_TRUE(loss.ok()) << loss.status();
    EXPECT_TRUE(std::isfinite(*loss));
    const auto gradients = (*run)->Gradients();
    ASSERT_TRUE(gradients.ok()) << gradients.status();
    double squares = 0;
    for (const float g : gradients->at("x").floats()) squares += static_cast<double>(g) * g;
    EXPECT_TRUE(std::isfinite(squares));
    EXPECT_GT(squares, 0) << "no gradient reaches x";
  }
}

/// Peak memory with `passes` micro-batches in flight: forwards only.
int64_t PeakAfterForwards(const graph::v1::Graph& graph, int passes, int64_t samples) {
  auto engine = LoadEngine("torch");
  EXPECT_TRUE(engine.ok()) << engine.status();
  EXPECT_TRUE((*engine)->Load(WholeProgram(graph), EngineOptions()).ok());
  const MicroBatch batch = BatchFor(graph, samples);
  for (int m = 0; m < passes; ++m) {
    Pass pass;
    pass.step = 1;
    pass.micro_batch = m;
    pass.samples = samples;
    for (const auto& [name, value] : batch.feeds) EXPECT_TRUE((*engine)->Feed(pass, name, value).ok());
    const auto result = (*engine)->Forward(pass, 0);
    EXPECT_TRUE(result.ok()) << result.status();
  }
  return (*engine)->PeakMemoryBytes();
}

/// One more micro-batch in flight costs what its operators save and the outputs that they keep.
void CheckKept(const v1alpha1::Model& model) {
  const auto graph = graph::BuildModel(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  constexpr int64_t kSamples = 8;
  double predicted = 0;
  const std::vector<double> kept = graph::KeptOutputBytes(*graph, kSamples);
  for (int i = 0; i < graph->operators_size(); ++i) {
    const auto cost = graph::CostOf(*graph, i, kSamples);
    ASSERT_TRUE(cost.ok());
    predicted += cost->saved_bytes + kept[i];
  }
  const double measured =
      static_cast<double>(PeakAfterForwards(*graph, 6, kSamples) - PeakAfterForwards(*graph, 5, kSamples));
  EXPECT_NEAR(measured / predicted, 1, 0.01) << "measured " << measured << ", predicted " << predicted;
}

TEST(EngineRegistry, KeepsWhatTheRegistrySays) {
  std::vector<std::pair<std::string, v1alpha1::Model>> models;
  for (const double dropout : {0.0, 0.1}) {
    models.emplace_back("gpt2", SmallGpt2(dropout));
    models.emplace_back("bert", SmallBert(1, dropout));
    models.emplace_back("towers", SmallBert(2, dropout));
  }
  for (auto& [name, model] : models) {
    SCOPED_TRACE(absl::StrCat(name, " with dropout ", model.config().dropout()));
    model.mutable_config()->set_width(64);
    model.mutable_config()->set_context(32);
    CheckKept(model);
  }
  for (const bool bottleneck : {false, true}) {
    SCOPED_TRACE(bottleneck);
    v1alpha1::Model model = SmallResnet(bottleneck, v1alpha1::ModelConfig::imagenet);
    model.mutable_config()->set_width(16);
    model.mutable_config()->set_image_size(64);
    model.mutable_config()->set_classes(10);
    CheckKept(model);
  }
}

}  // namespace
}  // namespace fusion::worker
