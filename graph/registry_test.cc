#include "graph/registry.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "graph/builder.h"
#include "graph/families.h"
#include "graph/graph_index.h"
#include "graph/operator_examples.h"
#include "graph/operator_row.h"
#include "graph/schema.h"
#include "graph/shapes.h"
#include "gtest/gtest.h"

namespace fusion::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FullName(const Schema& schema) {
  return schema.overload.empty() ? schema.type : absl::StrCat(schema.type, ".", schema.overload);
}

int PositionOf(const v1::Graph& graph, const std::string& name) { return GraphIndex(graph).Find(name); }

OperatorCost Cost(const v1::Graph& graph, const std::string& name, int64_t samples) {
  const auto cost = CostOf(graph, PositionOf(graph, name), samples);
  EXPECT_TRUE(cost.ok()) << name << ": " << cost.status();
  return cost.value_or(OperatorCost());
}

v1::Graph Gpt2(double dropout = 0) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::gpt2);
  v1alpha1::ModelConfig* config = model.mutable_config();
  config->set_layers(2);
  config->set_heads(4);
  config->set_width(32);
  config->set_context(16);
  config->set_vocabulary(100);
  config->set_dropout(dropout);
  auto graph = BuildModel(model);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(Registry, HasAnExampleOfEveryOperator) {
  std::set<std::string> registered;
  for (const RegisteredOperator& entry : Registry()) registered.insert(FullName(entry.schema));
  std::set<std::string> examples;
  for (const OperatorExample& example : OperatorExamples()) {
    EXPECT_TRUE(ValidateGraph(example.graph).ok()) << example.type;
    examples.insert(example.type);
  }
  EXPECT_EQ(examples, registered);
}

TEST(Registry, CostsAreFiniteAndScaleWithTheBatch) {
  for (const OperatorExample& example : OperatorExamples()) {
    for (int i = 0; i < example.graph.operators_size(); ++i) {
      const auto one = CostOf(example.graph, i, 8);
      const auto two = CostOf(example.graph, i, 16);
      ASSERT_TRUE(one.ok() && two.ok()) << example.type << ": " << one.status();
      const double of_one[] = {one->forward_flops,  one->backward_flops, one->forward_bytes,
                               one->backward_bytes, one->saved_bytes,    one->output_bytes};
      const double of_two[] = {two->forward_flops,  two->backward_flops, two->forward_bytes,
                               two->backward_bytes, two->saved_bytes,    two->output_bytes};
      for (int k = 0; k < 6; ++k) {
        EXPECT_TRUE(std::isfinite(of_one[k]) && of_one[k] >= 0) << example.type << " " << k;
        EXPECT_GE(of_two[k], of_one[k]) << example.type << " " << k;
        EXPECT_LE(of_two[k], 2 * of_one[k]) << example.type << " " << k;
      }
    }
  }
}

TEST(Registry, RefusesTwoRowsForOneOperator) {
  const absl::Span<const OperatorRow> tables[] = {ElementwiseRows(), MatmulRows(),
                                                  ElementwiseRows().subspan(1, 1)};
  const auto registry = MakeRegistry(tables);
  EXPECT_EQ(registry.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(registry.status().message()), HasSubstr("aten.relu"));
}

TEST(Registry, DocumentationIsCurrent) {
  const std::string path = FUSION_SOURCE_DIR "/docs/operators.md";
  const std::string current = RegistryMarkdown();
  if (std::getenv("FUSION_UPDATE_DOCS") != nullptr) std::ofstream(path) << current;
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), current)
      << "run: FUSION_UPDATE_DOCS=1 build/bin/graph_test --gtest_filter=Registry.Doc*";
}

TEST(CostOf, LinearLayerIsTwoFlopsAMultiplyAdd) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::mlp);
  model.mutable_config()->set_inputs(10);
  model.mutable_config()->add_hidden(20);
  model.mutable_config()->set_outputs(5);
  const auto graph = BuildModel(model);
  ASSERT_TRUE(graph.ok());
  const OperatorCost last = Cost(*graph, "layers.2", 8);
  EXPECT_EQ(last.kind, OperatorClass::kMatmul);
  EXPECT_DOUBLE_EQ(last.forward_flops, 2.0 * 8 * 20 * 5 + 8 * 5);
  EXPECT_DOUBLE_EQ(last.backward_flops, 2 * (2.0 * 8 * 20 * 5) + 8 * 5);
  EXPECT_DOUBLE_EQ(last.output_bytes, 8 * 5 * 4);
  // Nobody asks for the gradient of the data.
  EXPECT_DOUBLE_EQ(Cost(*graph, "layers.0", 8).backward_flops, 2.0 * 8 * 10 * 20 + 8 * 20);
}

TEST(CostOf, Gpt2IsAboutSixFlopsAParameterAndToken) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::gpt2);
  v1alpha1::ModelConfig* config = model.mutable_config();
  config->set_layers(12);
  config->set_heads(12);
  config->set_width(768);
  config->set_context(1024);
  config->set_vocabulary(50257);
  const auto graph = BuildModel(model);
  ASSERT_TRUE(graph.ok());
  double forward = 0;
  double backward = 0;
  for (int i = 0; i < graph->operators_size(); ++i) {
    const auto cost = CostOf(*graph, i, 1);
    ASSERT_TRUE(cost.ok());
    forward += cost->forward_flops;
    backward += cost->backward_flops;
  }
  // 2 N a token, and the attention's 2 x layers x context x width (half of it, being causal).
  const double tokens = 1024;
  const double expected = 2 * 124.44e6 * tokens + 2 * 12 * tokens * 1024 * 768;
  EXPECT_NEAR(forward / expected, 1, 0.02);
  EXPECT_NEAR(backward / forward, 2, 0.05);
}

TEST(CostOf, SavedBytesAreThoseBeyondInputsAndOutputs) {
  const v1::Graph graph = Gpt2();
  const double tokens = 3 * 16;
  EXPECT_DOUBLE_EQ(Cost(graph, "transformer.h.0.ln_1", 3).saved_bytes, tokens * 2 * 4);
  EXPECT_DOUBLE_EQ(Cost(graph, "transformer.h.0.attn", 3).saved_bytes, tokens * 4 * 4)
      << "a log-sum-exp a head";
  EXPECT_DOUBLE_EQ(Cost(graph, "loss", 3).saved_bytes, tokens * 100 * 4) << "log-probabilities";
  EXPECT_DOUBLE_EQ(Cost(graph, "transformer.h.0.mlp.c_fc", 3).saved_bytes, 0);
  EXPECT_DOUBLE_EQ(Cost(graph, "transformer.h.0.attn.merge.view", 3).output_bytes, 0) << "a view";
}

TEST(KeptOutputBytes, CountsWhatGradientFormulasSave) {
  const v1::Graph graph = Gpt2(0.1);
  const std::vector<double> kept = KeptOutputBytes(graph, 3);
  const auto of = [&](const std::string& name) { return kept[PositionOf(graph, name)]; };
  const double row = 3 * 16 * 32 * 4;         // [batch x context, width]
  const double scores = 3 * 4 * 16 * 16 * 4;  // [batch, heads, context, context]
  EXPECT_EQ(of("input"), 3 * 16 * 8) << "the embedding's gradient needs the ids";
  EXPECT_EQ(of("transformer.wpe.add"), 0) << "a product with a mask saves the mask";
  EXPECT_EQ(of("transformer.drop.mask"), row);
  EXPECT_EQ(of("transformer.drop"), row) << "layer_norm's input";
  EXPECT_EQ(of("transformer.h.0.ln_1"), row) << "addmm's input";
  EXPECT_EQ(of("transformer.h.0.attn.c_attn"), 0) << "split copies";
  EXPECT_EQ(of("transformer.h.0.attn.query"), row);
  EXPECT_EQ(of("transformer.h.0.attn.query.view"), 0) << "a view of a part that transpose copies";
  EXPECT_EQ(of("transformer.h.0.attn.scores"), 0);
  EXPECT_EQ(of("transformer.h.0.attn.softmax"), scores);
  EXPECT_EQ(of("transformer.h.0.attn.attn_dropout"), scores);
  EXPECT_EQ(of("transformer.h.0.attn.merge"), row) << "addmm reads a view of it";
  EXPECT_EQ(of("transformer.h.0.attn.merge.view"), 0) << "counted at its source";
  EXPECT_EQ(of("transformer.h.0.mlp.c_fc"), 4 * row) << "gelu's input";
  EXPECT_EQ(of("transformer.h.0.mlp.act"), 4 * row);
  EXPECT_EQ(of("transformer.h.0.mlp.c_proj"), 0);
  EXPECT_EQ(of("lm_head"), 0) << "the loss saves log-probabilities instead";
  EXPECT_EQ(of("label"), 3 * 16 * 8);
  EXPECT_EQ(of("transformer.wte.weight"), 0);
}

TEST(CostOf, ConvolutionCountsItsWindow) {
  v1::Graph graph;
  for (OperatorExample& example : OperatorExamples()) {
    if (example.type != "aten.conv2d" || !graph.operators().empty()) continue;
    graph = std::move(example.graph);
  }
  const OperatorCost cost = Cost(graph, "example", 3);
  const double outputs = 3 * 4 * 2 * 4;
  EXPECT_EQ(cost.kind, OperatorClass::kConvolution);
  EXPECT_DOUBLE_EQ(cost.forward_flops, 2 * outputs * (2 * 2 * 3) + outputs);
  EXPECT_DOUBLE_EQ(cost.backward_flops, 2 * 2 * outputs * (2 * 2 * 3) + outputs);
}

TEST(CheckTrains, BatchNormNeedsTwoValuesAChannel) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::resnet);
  model.mutable_config()->set_depth(18);
  model.mutable_config()->set_classes(10);
  model.mutable_config()->set_image_size(32);
  const auto graph = BuildModel(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(CheckTrains(*graph, 2).ok());
  EXPECT_THAT(std::string(CheckTrains(*graph, 1).message()),
              HasSubstr("operator 'layer4.0.bn1' (aten.batch_norm)"));
}

TEST(KeptOutputBytes, AResidualBlockKeepsWhatItsGradientsRead) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::resnet);
  model.mutable_config()->add_blocks(1);
  model.mutable_config()->add_blocks(1);
  model.mutable_config()->set_width(4);
  model.mutable_config()->set_classes(10);
  model.mutable_config()->set_image_size(32);
  const auto graph = BuildModel(model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::vector<double> kept = KeptOutputBytes(*graph, 3);
  const auto of = [&](const std::string& name) { return kept[PositionOf(*graph, name)]; };
  EXPECT_EQ(of("conv1"), 3 * 4 * 16 * 16 * 4) << "batch_norm's input";
  EXPECT_EQ(of("bn1"), 0) << "relu keeps its output";
  EXPECT_EQ(of("relu"), 3 * 4 * 16 * 16 * 4) << "max_pool2d's input";
  EXPECT_EQ(of("maxpool"), 3 * 4 * 8 * 8 * 4) << "conv2d's input";
  EXPECT_EQ(of("layer1.0.bn2"), 0);
  EXPECT_EQ(of("layer1.0.add"), 0);
  EXPECT_EQ(of("layer2.0.relu.1"), 3 * 8 * 4 * 4 * 4) << "relu's output";
  EXPECT_EQ(of("avgpool"), 3 * 8 * 4) << "linear's input, seen through flatten";
  EXPECT_DOUBLE_EQ(Cost(*graph, "maxpool", 3).saved_bytes, 3 * 4 * 8 * 8 * 8) << "indexes";
  EXPECT_DOUBLE_EQ(Cost(*graph, "bn1", 3).saved_bytes, 2 * 4 * 4);
}

TEST(CostOf, DeclaredCostOutsideTheRegistry) {
  v1::Graph graph = Gpt2();
  const int position = PositionOf(graph, "transformer.h.0.mlp.act");
  v1::Operator* op = graph.mutable_operators(position);
  op->set_type("custom.swish");
  op->clear_kwargs();
  EXPECT_TRUE(ValidateGraph(graph).ok()) << ValidateGraph(graph);
  EXPECT_DOUBLE_EQ(CostOf(graph, position, 3)->forward_flops, 2 * 3 * 16 * 128) << "what it reads and writes";
  op->mutable_flops()->set_forward(7);
  op->mutable_flops()->set_backward(11);
  EXPECT_TRUE(ValidateGraph(graph).ok()) << ValidateGraph(graph);
  const auto cost = CostOf(graph, position, 3);
  ASSERT_TRUE(cost.ok());
  EXPECT_DOUBLE_EQ(cost->forward_flops, 21);
  EXPECT_DOUBLE_EQ(cost->backward_flops, 33);
  EXPECT_EQ(CostOf(graph, graph.operators_size(), 1).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(OperatorSignature, IsEqualForEqualWorkOnly) {
  const v1::Graph graph = Gpt2();
  const auto signature = [&](const std::string& name, int64_t samples) {
    return OperatorSignature(graph, PositionOf(graph, name), samples);
  };
  EXPECT_EQ(signature("transformer.h.0.mlp.c_fc", 2), signature("transformer.h.1.mlp.c_fc", 2));
  EXPECT_NE(signature("transformer.h.0.mlp.c_fc", 2), signature("transformer.h.0.mlp.c_fc", 3));
  EXPECT_NE(signature("transformer.h.0.mlp.c_fc", 2), signature("transformer.h.0.mlp.c_proj", 2));
  EXPECT_EQ(signature("transformer.h.0.mlp.act", 2), "aten.gelu(float32[32,128],approximate='tanh')");
  EXPECT_EQ(signature("transformer.h.0.attn.merge.view", 2), "aten.view(float32[2,16,4,8],(32,32))");
  EXPECT_EQ(signature("transformer.wte", 2), "aten.embedding(float32[100,32],int64[2,16]!)");
}

TEST(CarriesGradient, FollowsTrainableVariables) {
  const v1::Graph graph = Gpt2(0.1);
  const std::vector<bool> carries = CarriesGradient(graph);
  const auto of = [&](const std::string& name) { return carries[PositionOf(graph, name)]; };
  EXPECT_FALSE(of("input"));
  EXPECT_FALSE(of("transformer.wpe.position_ids"));
  EXPECT_FALSE(of("transformer.drop.mask"));
  EXPECT_FALSE(of("transformer.h.0.attn.mask"));
  EXPECT_FALSE(of("label"));
  EXPECT_TRUE(of("transformer.wte.weight"));
  EXPECT_TRUE(of("transformer.wte"));
  EXPECT_TRUE(of("transformer.drop"));
  EXPECT_TRUE(of("loss"));
}

TEST(HoldsImages, FollowsConvolutionsAndWhatKeepsTheirShape) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::resnet);
  model.mutable_config()->set_depth(18);
  model.mutable_config()->set_classes(10);
  auto resnet = BuildModel(model);
  ASSERT_TRUE(resnet.ok()) << resnet.status();
  v1::Operator& unknown = *resnet->mutable_operators(PositionOf(*resnet, "relu"));
  unknown.set_type("aten.silu");
  unknown.mutable_flops()->set_forward(1);
  const std::vector<bool> images = HoldsImages(*resnet);
  for (const char* name : {"conv1", "bn1", "relu", "maxpool", "layer1.0.add", "layer4.1.relu.1", "avgpool"}) {
    EXPECT_TRUE(images[PositionOf(*resnet, name)]) << name;
  }
  for (const char* name : {"flatten", "fc", "label", "loss", "conv1.weight"}) {
    EXPECT_FALSE(images[PositionOf(*resnet, name)]) << name;
  }
  const v1::Graph gpt2 = Gpt2(0.1);
  for (const bool holds : HoldsImages(gpt2))
    EXPECT_FALSE(holds) << "attention's four dimensions are no image";
}

TEST(Bytes, FollowTheMicroBatchAndSaturate) {
  EXPECT_EQ(BytesOf(MakeSpec(v1::FLOAT32, {Batch(64), 128}), 4), 4 * 64 * 128 * 4);
  EXPECT_EQ(BytesOf(MakeSpec(v1::INT64, {}), 4), 8);
  EXPECT_THAT(ShapeOf(MakeSpec(v1::FLOAT32, {Batch(64), 128}), 4), ElementsAre(256, 128));
  EXPECT_EQ(BytesOf(MakeSpec(v1::FLOAT32, {Batch(kMaxElements), Batch(kMaxElements)}), int64_t{1} << 40),
            std::numeric_limits<int64_t>::max());
}

TEST(Schema, ParsesAtensText) {
  const auto schema = ParseSchema("add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor");
  ASSERT_TRUE(schema.ok()) << schema.status();
  EXPECT_EQ(schema->type, "aten.add");
  EXPECT_EQ(schema->overload, "Tensor");
  ASSERT_EQ(schema->parameters.size(), 3u);
  EXPECT_FALSE(schema->parameters[1].keyword_only);
  EXPECT_TRUE(schema->parameters[2].keyword_only);
  EXPECT_DOUBLE_EQ(schema->parameters[2].default_value->double_(), 1);
  const auto own = ParseSchema("fusion::codec(Tensor value, str codec) -> Tensor[]");
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own->type, "fusion.codec");
  EXPECT_TRUE(own->returns_list);
}

TEST(Schema, ListsMayHaveALengthAndDefaults) {
  const auto schema = ParseSchema("f(int[2] kernel_size, SymInt[2] stride=[], int[2] padding=3) -> Tensor");
  ASSERT_TRUE(schema.ok()) << schema.status();
  EXPECT_EQ(schema->parameters[0].kind, ParameterKind::kSizes);
  EXPECT_FALSE(schema->parameters[0].default_value);
  EXPECT_EQ(schema->parameters[1].default_value->ints().items_size(), 0);
  EXPECT_EQ(schema->parameters[2].default_value->ints().items(0).value(), 3);
}

TEST(Schema, RefusesOtherText) {
  for (const char* text :
       {"", "add", "add(Tensor self)", "add(Tensor) -> Tensor", "add(Thing self) -> Tensor",
        "add(Tensor self) -> int", "add(int[x] a) -> Tensor", "add(int[2] a=[1]) -> Tensor",
        "add(int a=x) -> Tensor", "add(bool a=true) -> Tensor"}) {
    EXPECT_EQ(ParseSchema(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ViewShape, InfersOneSize) {
  const auto inferred = [](const Shape& from, const std::vector<int64_t>& sizes) {
    std::vector<v1::AffineInt> affine;
    for (const int64_t size : sizes) affine.emplace_back().set_value(size);
    return ViewShape(from, affine);
  };
  EXPECT_THAT(*inferred({Batch(), 4, 6}, {-1, 6}), ElementsAre(Batch(4), 6));
  EXPECT_THAT(*inferred({2, 4, 6}, {-1}), ElementsAre(48));
  EXPECT_FALSE(inferred({2, 4, 6}, {-1, -1}).ok());
  EXPECT_FALSE(inferred({2, 4, 6}, {-1, 5}).ok());
  EXPECT_FALSE(inferred({Batch(), Batch(), 6}, {-1}).ok()) << "quadratic in the batch";
  EXPECT_FALSE(inferred({2, 4, 6}, {4, 6}).ok());
}

TEST(Broadcast, FollowsNumPy) {
  EXPECT_THAT(*Broadcast({Batch(), 1, 6}, {4, 1}), ElementsAre(Batch(), 4, 6));
  EXPECT_FALSE(Broadcast({Batch(2), 6}, {2, 6}).ok()) << "equal for batch 1 only";
  EXPECT_FALSE(Broadcast({3}, {2}).ok());
}

}  // namespace
}  // namespace fusion::graph
