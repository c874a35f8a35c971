#include "graph/autocast.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "graph/builder.h"
#include "graph/families.h"
#include "graph/registry.h"
#include "gtest/gtest.h"

namespace fusion::graph {
namespace {

using ::testing::ElementsAre;

v1::Graph Gpt2(double dropout) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::gpt2);
  model.mutable_config()->set_layers(1);
  model.mutable_config()->set_heads(2);
  model.mutable_config()->set_width(16);
  model.mutable_config()->set_context(8);
  model.mutable_config()->set_vocabulary(256);
  model.mutable_config()->set_dropout(dropout);
  auto graph = BuildModel(model);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

class Types {
 public:
  explicit Types(const v1::Graph& graph) {
    for (const v1::Operator& op : graph.operators()) operators_[op.name()] = &op;
  }
  const v1::Operator& Named(const std::string& name) const { return *operators_.at(name); }
  bool Has(const std::string& name) const { return operators_.contains(name); }
  v1::DataType Of(const std::string& name) const { return Named(name).outputs(0).dtype(); }
  /// What an argument reads.
  v1::DataType Read(const std::string& name, int argument) const {
    const v1::ValueRef& ref = Named(name).args(argument).value();
    return operators_.at(ref.operator_())->outputs(ref.index()).dtype();
  }

 private:
  std::map<std::string, const v1::Operator*> operators_;
};

TEST(Autocast, CastsWhereTorchDoes) {
  const v1::Graph fp32 = Gpt2(0);
  const auto graph = Autocast(fp32);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Types types(*graph);
  const std::string block = "transformer.h.0";
  for (const std::string& product : {block + ".attn.c_attn", block + ".attn.c_proj", block + ".mlp.c_fc"}) {
    for (int argument = 0; argument < 3; ++argument) EXPECT_EQ(types.Read(product, argument), v1::BFLOAT16);
    EXPECT_EQ(types.Of(product), v1::BFLOAT16);
  }
  EXPECT_EQ(types.Of(block + ".attn"), v1::BFLOAT16) << "fused attention";
  EXPECT_EQ(types.Of(block + ".mlp.act"), v1::BFLOAT16) << "as it comes";
  EXPECT_EQ(types.Of(block + ".attn.merge.view"), v1::BFLOAT16);
  EXPECT_EQ(types.Of("transformer.wte"), v1::FLOAT32) << "in no list";
  EXPECT_EQ(types.Of(block + ".ln_1"), v1::FLOAT32);
  EXPECT_EQ(types.Of(block + ".attn.add"), v1::FLOAT32) << "the wider of the two";
  EXPECT_EQ(types.Of("lm_head"), v1::BFLOAT16);
  EXPECT_EQ(types.Read("loss", 0), v1::FLOAT32);
  EXPECT_EQ(types.Of("loss"), v1::FLOAT32);
  for (const v1::Operator& op : fp32.operators()) {
    EXPECT_TRUE(types.Has(op.name())) << op.name();
    if (op.kind() == v1::Operator::VARIABLE) {
      EXPECT_EQ(types.Of(op.name()), v1::FLOAT32) << op.name();
    }
  }
  EXPECT_EQ(ParameterCount(*graph), ParameterCount(fp32));
}

TEST(Autocast, SoftmaxAndTheMaskedScoresAreFp32) {
  const auto graph = Autocast(Gpt2(0.1));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Types types(*graph);
  EXPECT_EQ(types.Of("transformer.h.0.attn.scores"), v1::BFLOAT16);
  EXPECT_EQ(types.Of("transformer.h.0.attn.masked"), v1::FLOAT32);
  EXPECT_EQ(types.Of("transformer.h.0.attn.softmax"), v1::FLOAT32);
  EXPECT_EQ(types.Of("transformer.h.0.attn"), v1::BFLOAT16);
}

TEST(Autocast, BatchNormTakesImagesAsTheyComeAndKeepsItsStatistics) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::resnet);
  model.mutable_config()->add_blocks(1);
  model.mutable_config()->add_blocks(1);
  model.mutable_config()->set_width(4);
  model.mutable_config()->set_classes(3);
  const auto fp32 = BuildModel(model);
  ASSERT_TRUE(fp32.ok()) << fp32.status();
  const auto graph = Autocast(*fp32);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Types types(*graph);
  int normalisations = 0;
  for (const v1::Operator& op : graph->operators()) {
    if (op.type() != "aten.batch_norm") continue;
    ++normalisations;
    EXPECT_EQ(types.Read(op.name(), 0), v1::BFLOAT16) << op.name();
    EXPECT_EQ(types.Of(op.name()), v1::BFLOAT16) << op.name();
    for (int argument = 1; argument < 5; ++argument) {  // weight, bias, running_mean, running_var
      EXPECT_EQ(types.Named(op.args(argument).value().operator_()).kind(), v1::Operator::VARIABLE)
          << "the statistics that are moved are the variables themselves";
      EXPECT_EQ(types.Read(op.name(), argument), v1::FLOAT32) << op.name();
    }
  }
  EXPECT_EQ(normalisations, 6);
  EXPECT_EQ(types.Of("maxpool"), v1::BFLOAT16);
  EXPECT_EQ(types.Of("layer2.0.add"), v1::BFLOAT16) << "both ways are";
  EXPECT_EQ(types.Of("avgpool"), v1::BFLOAT16);
  EXPECT_EQ(types.Read("loss", 0), v1::FLOAT32);

  GraphBuilder builder("first");  // nothing before it is lower
  const v1::ValueRef input = builder.Placeholder("input", v1::FLOAT32, {Batch(), 4});
  const v1::ValueRef normal = builder.Add(
      "bn", "aten.batch_norm",
      {Read(input), None(), None(), None(), None(), Bool(true), Double(0.1), Double(1e-5), Bool(false)});
  const auto narrow = builder.Finish(builder.Add("loss", "aten.mse_loss", {Read(normal), Read(input)}));
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  const auto kept = Autocast(*narrow);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(Types(*kept).Of("bn"), v1::FLOAT32);
}

// x is read by two products, w by both.
TEST(Autocast, CastsAValueOnceAndAVariableForEachReader) {
  GraphBuilder builder("shared");
  const v1::ValueRef input = builder.Placeholder("input", v1::FLOAT32, {Batch(), 4});
  const v1::ValueRef w = builder.Variable("w", {4, 4}, Ones());
  const v1::ValueRef x = builder.Add("x", "aten.tanh", {Read(input)});
  const v1::ValueRef a = builder.Add("a", "aten.linear", {Read(x), Read(w)});
  const v1::ValueRef b = builder.Add("b", "aten.linear", {Read(x), Read(w)});
  const v1::ValueRef sum = builder.Add("sum", "aten.add.Tensor", {Read(a), Read(b)});
  const auto fp32 = builder.Finish(builder.Add("loss", "aten.mse_loss", {Read(sum), Read(input)}));
  ASSERT_TRUE(fp32.ok()) << fp32.status();
  const auto graph = Autocast(*fp32);
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<std::string> names;
  for (const v1::Operator& op : graph->operators()) names.push_back(op.name());
  EXPECT_THAT(names, ElementsAre("input", "w", "x", "x.bf16", "a.cast.0", "a", "b.cast.0", "b", "sum",
                                 "sum.fp32", "loss"));
  EXPECT_EQ(Types(*graph).Of("sum"), v1::BFLOAT16) << "both are lower";
}

TEST(Autocast, OperatorsOutsideTheRegistryComputeAsRecorded) {
  v1::Graph fp32;
  {
    GraphBuilder builder("outside");
    const v1::ValueRef input = builder.Placeholder("input", v1::FLOAT32, {Batch(), 4});
    const v1::ValueRef w = builder.Variable("w", {4, 4}, Ones());
    const v1::ValueRef a = builder.Add("a", "aten.linear", {Read(input), Read(w)});
    const v1::ValueRef b = builder.Add("b", "aten.relu", {Read(a)});
    fp32 = *builder.Finish(builder.Add("loss", "aten.mse_loss", {Read(b), Read(input)}));
  }
  for (v1::Operator& op : *fp32.mutable_operators()) {
    if (op.name() != "b") continue;
    op.set_type("aten.cumsum_like_nothing_we_know");
    op.mutable_flops()->set_forward(4);
  }
  const auto graph = Autocast(fp32);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Types types(*graph);
  EXPECT_EQ(types.Of("a"), v1::BFLOAT16);
  EXPECT_EQ(types.Read("b", 0), v1::FLOAT32);
  EXPECT_EQ(types.Of("b"), v1::FLOAT32);
}

TEST(Autocast, HalvesTheBytesOfProducts) {
  const v1::Graph fp32 = Gpt2(0);
  const v1::Graph bf16 = *Autocast(fp32);
  const auto output_bytes = [](const v1::Graph& graph, const std::string& name) {
    for (int i = 0; i < graph.operators_size(); ++i) {
      if (graph.operators(i).name() == name) return CostOf(graph, i, 4)->output_bytes;
    }
    return 0.0;
  };
  EXPECT_GT(output_bytes(bf16, "transformer.h.0.mlp.c_fc"), 0);
  EXPECT_EQ(2 * output_bytes(bf16, "transformer.h.0.mlp.c_fc"),
            output_bytes(fp32, "transformer.h.0.mlp.c_fc"));
}

TEST(ApplyPrecision, FollowsTheJob) {
  v1alpha1::Training training;
  const v1::Graph fp32 = Gpt2(0);
  EXPECT_EQ(ApplyPrecision(fp32, training)->operators_size(), fp32.operators_size());
  training.set_precision(v1alpha1::Training::fp32);
  EXPECT_EQ(ApplyPrecision(fp32, training)->operators_size(), fp32.operators_size());
  training.set_precision(v1alpha1::Training::bf16);
  EXPECT_GT(ApplyPrecision(fp32, training)->operators_size(), fp32.operators_size());
}

}  // namespace
}  // namespace fusion::graph
