#include "graph/families.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "graph/registry.h"
#include "gtest/gtest.h"

namespace fusion::graph {
namespace {

using ::testing::HasSubstr;

v1alpha1::Model Model(const std::string& text) {
  v1alpha1::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model)) << text;
  return model;
}

v1alpha1::Model Gpt2(int layers, int heads, int width, int context, int vocabulary, double dropout = 0) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::gpt2);
  model.mutable_config()->set_layers(layers);
  model.mutable_config()->set_heads(heads);
  model.mutable_config()->set_width(width);
  model.mutable_config()->set_context(context);
  model.mutable_config()->set_vocabulary(vocabulary);
  if (dropout > 0) model.mutable_config()->set_dropout(dropout);
  return model;
}

const v1::Operator& Find(const v1::Graph& graph, const std::string& name) {
  for (const v1::Operator& op : graph.operators()) {
    if (op.name() == name) return op;
  }
  ADD_FAILURE() << "no operator " << name;
  return graph.operators(0);
}

TEST(Gpt2, HasThePublishedParameterCounts) {
  EXPECT_EQ(ParameterCount(*BuildModel(Gpt2(12, 12, 768, 1024, 50257))), 124'439'808);
  EXPECT_EQ(ParameterCount(*BuildModel(Gpt2(48, 25, 1600, 1024, 50257))), 1'557'611'200);
}

TEST(Gpt2, HasTheTensorsOfGpt2LmHeadModel) {
  const auto graph = BuildModel(Gpt2(1, 2, 8, 4, 16));
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::set<std::string> tensors;
  for (const v1::Operator& op : graph->operators()) {
    if (op.kind() != v1::Operator::VARIABLE) continue;
    EXPECT_EQ(op.name(), op.variable().tensor_name());
    tensors.insert(op.name());
  }
  EXPECT_THAT(tensors,
              ::testing::ElementsAre("transformer.h.0.attn.c_attn.bias", "transformer.h.0.attn.c_attn.weight",
                                     "transformer.h.0.attn.c_proj.bias", "transformer.h.0.attn.c_proj.weight",
                                     "transformer.h.0.ln_1.bias", "transformer.h.0.ln_1.weight",
                                     "transformer.h.0.ln_2.bias", "transformer.h.0.ln_2.weight",
                                     "transformer.h.0.mlp.c_fc.bias", "transformer.h.0.mlp.c_fc.weight",
                                     "transformer.h.0.mlp.c_proj.bias", "transformer.h.0.mlp.c_proj.weight",
                                     "transformer.ln_f.bias", "transformer.ln_f.weight",
                                     "transformer.wpe.weight", "transformer.wte.weight"));
}

TEST(Gpt2, InitialisesAsHuggingFace) {
  const auto graph = BuildModel(Gpt2(2, 2, 8, 4, 16));
  ASSERT_TRUE(graph.ok());
  EXPECT_DOUBLE_EQ(Find(*graph, "transformer.h.1.mlp.c_fc.weight").variable().init().standard_deviation(),
                   0.02);
  EXPECT_DOUBLE_EQ(Find(*graph, "transformer.h.1.mlp.c_proj.weight").variable().init().standard_deviation(),
                   0.01);
  EXPECT_EQ(Find(*graph, "transformer.h.1.mlp.c_proj.bias").variable().init().kind(), v1::Init::ZEROS);
  EXPECT_EQ(Find(*graph, "transformer.ln_f.weight").variable().init().kind(), v1::Init::ONES);
  // Conv1D keeps [in, out].
  EXPECT_THAT(Find(*graph, "transformer.h.0.attn.c_attn.weight").outputs(0).shape(),
              ::testing::ElementsAre(8, 24));
}

TEST(Gpt2, TiesTheHeadToTheEmbedding) {
  const auto graph = BuildModel(Gpt2(1, 2, 8, 4, 16));
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(Find(*graph, "lm_head").args(1).value().operator_(), "transformer.wte.weight");
  EXPECT_EQ(Find(*graph, "transformer.wte").args(0).value().operator_(), "transformer.wte.weight");
}

TEST(Gpt2, ReadsTheLabelDirectlyBeforeTheLoss) {
  const auto graph = BuildModel(Gpt2(2, 2, 8, 4, 16));
  ASSERT_TRUE(graph.ok());
  const int n = graph->operators_size();
  EXPECT_EQ(graph->operators(n - 1).name(), "loss");
  EXPECT_EQ(graph->operators(n - 2).name(), "loss.target");
  EXPECT_EQ(graph->operators(n - 3).name(), "label");
  EXPECT_EQ(graph->loss().operator_(), "loss");
}

TEST(Gpt2, DropoutIsAMaskWhereHuggingFaceDrops) {
  const auto graph = BuildModel(Gpt2(1, 2, 8, 4, 16, 0.25));
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<std::string> masks;
  for (const v1::Operator& op : graph->operators()) {
    if (op.type() == "fusion.dropout_mask") masks.push_back(op.name());
    EXPECT_NE(op.type(), "aten.scaled_dot_product_attention");
  }
  EXPECT_THAT(masks, ::testing::ElementsAre("transformer.drop.mask", "transformer.h.0.attn.attn_dropout.mask",
                                            "transformer.h.0.attn.resid_dropout.mask",
                                            "transformer.h.0.mlp.dropout.mask"));
  EXPECT_THAT(Find(*graph, "transformer.h.0.attn.attn_dropout.mask").outputs(0).shape(),
              ::testing::ElementsAre(-1, 2, 4, 4));
}

TEST(Gpt2, ConfigIsWhatTransformersReads) {
  const auto json = ModelConfigJson(Gpt2(4, 4, 128, 64, 256, 0.1));
  ASSERT_TRUE(json.ok());
  for (const char* part :
       {"\"model_type\": \"gpt2\"", "\"n_layer\": 4", "\"n_head\": 4", "\"n_embd\": 128",
        "\"n_positions\": 64", "\"vocab_size\": 256", "\"attn_pdrop\": 0.1", "\"gelu_new\""}) {
    EXPECT_THAT(*json, HasSubstr(part));
  }
}

std::set<std::string> Tensors(const v1::Graph& graph) {
  std::set<std::string> tensors;
  for (const v1::Operator& op : graph.operators()) {
    if (op.kind() != v1::Operator::VARIABLE) continue;
    EXPECT_EQ(op.name(), op.variable().tensor_name());
    EXPECT_TRUE(tensors.insert(op.name()).second) << op.name() << " is there twice";
  }
  return tensors;
}

v1alpha1::Model Bert(const std::string& more = "", const std::string& loss = "") {
  return Model("family: bert config { layers: 1 heads: 2 width: 8 context: 4 vocabulary: 16 " + more + " } " +
               loss);
}

TEST(Bert, HasThePublishedParameterCounts) {
  // bert-base-uncased as BertForMaskedLM, and all-MiniLM-L6-v2 without its unused pooler of 147,840.
  EXPECT_EQ(
      ParameterCount(*BuildModel(Model("family: bert config { layers: 12 heads: 12 width: 768 context: 512 "
                                       "vocabulary: 30522 }"))),
      109'514'298);
  EXPECT_EQ(
      ParameterCount(*BuildModel(Model("family: bert config { layers: 6 heads: 12 width: 384 context: 64 "
                                       "positions: 512 vocabulary: 30522 intermediate: 1536 towers: 2 }"))),
      22'713'216 - 147'840);
}

TEST(Bert, HasTheTensorsOfBertForMaskedLm) {
  const auto graph = BuildModel(Bert());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::string layer = "bert.encoder.layer.0.";
  std::set<std::string> expected = {"bert.embeddings.word_embeddings.weight",
                                    "bert.embeddings.position_embeddings.weight",
                                    "bert.embeddings.token_type_embeddings.weight", "cls.predictions.bias"};
  for (const char* kind : {".weight", ".bias"}) {
    for (const char* module :
         {"attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
          "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"}) {
      expected.insert(layer + module + kind);
    }
    expected.insert(std::string("bert.embeddings.LayerNorm") + kind);
    expected.insert(std::string("cls.predictions.transform.dense") + kind);
    expected.insert(std::string("cls.predictions.transform.LayerNorm") + kind);
  }
  EXPECT_EQ(Tensors(*graph), expected);
  EXPECT_THAT(Find(*graph, "bert.encoder.layer.0.intermediate.dense.weight").outputs(0).shape(),
              ::testing::ElementsAre(32, 8));
}

TEST(Bert, TiesTheDecoderAndIgnoresWhatIsNotMasked) {
  const auto graph = BuildModel(Bert());
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(Find(*graph, "cls.predictions.decoder").args(1).value().operator_(),
            "bert.embeddings.word_embeddings.weight");
  EXPECT_EQ(Find(*graph, "cls.predictions.decoder").args(2).value().operator_(), "cls.predictions.bias");
  EXPECT_EQ(Find(*graph, "loss").kwargs(0).name(), "ignore_index");
  EXPECT_EQ(Find(*graph, "loss").kwargs(0).argument().int_().value(), -100);
}

TEST(Bert, InitialisesAsHuggingFace) {
  const auto graph = BuildModel(Bert());
  ASSERT_TRUE(graph.ok());
  const auto init = [&](const char* name) { return Find(*graph, name).variable().init(); };
  EXPECT_DOUBLE_EQ(init("bert.embeddings.word_embeddings.weight").standard_deviation(), 0.02);
  EXPECT_EQ(init("bert.embeddings.word_embeddings.weight").zero_rows(), 1);
  EXPECT_EQ(init("bert.embeddings.position_embeddings.weight").zero_rows(), 0);
  EXPECT_DOUBLE_EQ(init("bert.encoder.layer.0.output.dense.weight").standard_deviation(), 0.02);
  EXPECT_EQ(init("bert.encoder.layer.0.output.dense.bias").kind(), v1::Init::ZEROS);
  EXPECT_EQ(init("bert.encoder.layer.0.output.LayerNorm.weight").kind(), v1::Init::ONES);
  EXPECT_EQ(init("cls.predictions.bias").kind(), v1::Init::ZEROS);
}

TEST(Bert, TowersShareTheTensorsOfBertModel) {
  const auto graph = BuildModel(Bert("towers: 2"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const std::set<std::string> tensors = Tensors(*graph);
  EXPECT_EQ(tensors.size(), 5 + 16);
  EXPECT_TRUE(tensors.contains("embeddings.word_embeddings.weight"));
  EXPECT_TRUE(tensors.contains("encoder.layer.0.attention.self.query.weight"));
  int anchors = 0;
  int positives = 0;
  for (const v1::Operator& op : graph->operators()) {
    if (op.name().rfind("anchor.", 0) == 0) ++anchors;
    if (op.name().rfind("positive.", 0) == 0) ++positives;
  }
  EXPECT_GT(anchors, 20);
  EXPECT_EQ(anchors, positives);
  EXPECT_THAT(Find(*graph, "similarity").outputs(0).shape(), ::testing::ElementsAre(-1, -1));
  EXPECT_DOUBLE_EQ(Find(*graph, "similarity.scale").args(1).double_(), 1 / 0.07);
  const auto cold = BuildModel(Bert("towers: 2", "loss { type: InfoNCE temperature: 0.5 }"));
  ASSERT_TRUE(cold.ok()) << cold.status();
  EXPECT_DOUBLE_EQ(Find(*cold, "similarity.scale").args(1).double_(), 2);
}

TEST(Bert, DropoutIsAMaskWhereHuggingFaceDrops) {
  const auto graph = BuildModel(Bert("dropout: 0.25"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<std::string> masks;
  for (const v1::Operator& op : graph->operators()) {
    if (op.type() == "fusion.dropout_mask") masks.push_back(op.name());
    EXPECT_NE(op.type(), "aten.scaled_dot_product_attention");
  }
  EXPECT_THAT(masks, ::testing::ElementsAre("bert.embeddings.dropout.mask",
                                            "bert.encoder.layer.0.attention.self.dropout.mask",
                                            "bert.encoder.layer.0.attention.output.dropout.mask",
                                            "bert.encoder.layer.0.output.dropout.mask"));
}

TEST(Bert, ConfigIsWhatTransformersReads) {
  const auto json = ModelConfigJson(Bert("dropout: 0.1 positions: 9"));
  ASSERT_TRUE(json.ok()) << json.status();
  for (const char* part :
       {"\"model_type\": \"bert\"", "[\"BertForMaskedLM\"]", "\"num_hidden_layers\": 1", "\"hidden_size\": 8",
        "\"intermediate_size\": 32", "\"max_position_embeddings\": 9", "\"hidden_dropout_prob\": 0.1"}) {
    EXPECT_THAT(*json, HasSubstr(part));
  }
  EXPECT_THAT(*ModelConfigJson(Bert("towers: 2")), HasSubstr("[\"BertModel\"]"));
}

TEST(Mlp, IsASequentialOfLinearLayers) {
  const auto graph = BuildModel(Model("family: mlp config { inputs: 10 hidden: [32, 16] outputs: 1 }"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::vector<std::string> names;
  for (const v1::Operator& op : graph->operators()) names.push_back(op.name());
  EXPECT_THAT(names,
              ::testing::ElementsAre("input", "layers.0.weight", "layers.0.bias", "layers.0", "layers.1",
                                     "layers.2.weight", "layers.2.bias", "layers.2", "layers.3",
                                     "layers.4.weight", "layers.4.bias", "layers.4", "label", "loss"));
  EXPECT_EQ(ParameterCount(*graph), 10 * 32 + 32 + 32 * 16 + 16 + 16 + 1);
  EXPECT_EQ(Find(*graph, "layers.1").type(), "aten.relu");
  EXPECT_EQ(Find(*graph, "loss").type(), "aten.mse_loss");
  EXPECT_DOUBLE_EQ(Find(*graph, "layers.4.bias").variable().init().high(), 0.25);
  EXPECT_DOUBLE_EQ(Find(*graph, "layers.4.bias").variable().init().low(), -0.25);
}

TEST(Mlp, ClassifiesWithCrossEntropy) {
  const auto graph = BuildModel(
      Model("family: mlp config { inputs: 4 outputs: 3 activation: tanh } loss { type: CrossEntropy }"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(Find(*graph, "loss").type(), "aten.cross_entropy_loss");
  EXPECT_EQ(Find(*graph, "label").outputs(0).dtype(), v1::INT64);
}

int64_t Parameters(const std::string& config) {
  const auto graph = BuildModel(Model("family: resnet config { classes: 1000 " + config + " }"));
  EXPECT_TRUE(graph.ok()) << graph.status();
  return graph.ok() ? ParameterCount(*graph) : 0;
}

TEST(Resnet, HasThePublishedParameterCounts) {
  EXPECT_EQ(Parameters("depth: 18"), 11'689'512);
  EXPECT_EQ(Parameters("depth: 34"), 21'797'672);
  EXPECT_EQ(Parameters("depth: 50"), 25'557'032);
  EXPECT_EQ(Parameters("depth: 101"), 44'549'160);
  EXPECT_EQ(Parameters("depth: 152"), 60'192'808);
  EXPECT_EQ(Parameters("blocks: [3, 4, 6, 3] bottleneck: true"), 25'557'032);
}

TEST(Resnet, HasThePublishedMultiplyAdds) {
  const struct {
    int depth;
    double multiply_adds;
  } published[] = {{18, 1'814'073'344}, {50, 4'089'184'256}, {101, 7'801'405'440}};
  for (const auto& [depth, multiply_adds] : published) {
    const auto graph =
        BuildModel(Model(absl::StrCat("family: resnet config { classes: 1000 depth: ", depth, " }")));
    ASSERT_TRUE(graph.ok()) << graph.status();
    double flops = 0;
    for (int i = 0; i < graph->operators_size(); ++i) {
      const auto cost = CostOf(*graph, i, 4);
      ASSERT_TRUE(cost.ok()) << cost.status();
      if (cost->kind == OperatorClass::kConvolution) flops += cost->forward_flops;
    }
    const double fully_connected = (depth == 18 ? 512 : 2048) * 1000;
    EXPECT_DOUBLE_EQ(flops / 2 / 4 + fully_connected, multiply_adds) << depth;
  }
}

std::vector<std::string> Variables(const v1::Graph& graph, const std::string& prefix) {
  std::vector<std::string> names;
  for (const v1::Operator& op : graph.operators()) {
    if (op.kind() == v1::Operator::VARIABLE && op.name().rfind(prefix, 0) == 0) {
      EXPECT_EQ(op.name(), op.variable().tensor_name());
      names.push_back(op.name().substr(prefix.size()));
    }
  }
  return names;
}

TEST(Resnet, HasTheTensorsOfTorchvision) {
  const auto graph = BuildModel(Model("family: resnet config { depth: 50 classes: 10 }"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(Variables(*graph, "").size(), 320u) << "len(torchvision.models.resnet50().state_dict())";
  EXPECT_THAT(Variables(*graph, "layer2.0.bn3."),
              ::testing::ElementsAre("weight", "bias", "running_mean", "running_var", "num_batches_tracked"));
  EXPECT_THAT(Variables(*graph, "layer2.0.downsample."),
              ::testing::ElementsAre("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var",
                                     "1.num_batches_tracked"));
  EXPECT_THAT(Variables(*graph, "layer2.1.downsample."), ::testing::IsEmpty());
  EXPECT_THAT(Variables(*graph, "fc."), ::testing::ElementsAre("weight", "bias"));
  EXPECT_THAT(Find(*graph, "layer2.0.conv2.weight").outputs(0).shape(),
              ::testing::ElementsAre(128, 128, 3, 3));
  EXPECT_THAT(Find(*graph, "layer4.2.relu.2").outputs(0).shape(), ::testing::ElementsAre(-1, 2048, 7, 7));
}

TEST(Resnet, InitialisesAsTorchvision) {
  const auto graph = BuildModel(Model("family: resnet config { depth: 18 classes: 10 }"));
  ASSERT_TRUE(graph.ok());
  EXPECT_DOUBLE_EQ(Find(*graph, "layer2.0.conv1.weight").variable().init().standard_deviation(),
                   std::sqrt(2.0 / (128 * 9)));
  EXPECT_EQ(Find(*graph, "bn1.weight").variable().init().kind(), v1::Init::ONES);
  EXPECT_EQ(Find(*graph, "bn1.bias").variable().init().kind(), v1::Init::ZEROS);
  EXPECT_EQ(Find(*graph, "bn1.running_mean").variable().init().kind(), v1::Init::ZEROS);
  EXPECT_EQ(Find(*graph, "bn1.running_var").variable().init().kind(), v1::Init::ONES);
  EXPECT_EQ(Find(*graph, "bn1.num_batches_tracked").outputs(0).dtype(), v1::INT64);
  EXPECT_FALSE(Find(*graph, "bn1.running_mean").variable().trainable());
  EXPECT_DOUBLE_EQ(Find(*graph, "fc.bias").variable().init().high(), 1 / std::sqrt(512.0));
}

TEST(Resnet, TheSmallStemKeepsTheSize) {
  const auto graph = BuildModel(Model(
      "family: resnet config { blocks: [1, 1] width: 8 classes: 10 image_size: 8 channels: 1 stem: small }"));
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Find(*graph, "conv1").outputs(0).shape(), ::testing::ElementsAre(-1, 8, 8, 8));
  EXPECT_THAT(Find(*graph, "layer2.0.add").outputs(0).shape(), ::testing::ElementsAre(-1, 16, 4, 4));
  EXPECT_THAT(*ModelConfigJson(Model("family: resnet config { blocks: [1, 1] classes: 10 stem: small }")),
              HasSubstr("\"layers\": [1, 1]"));
}

TEST(BuildModel, ErrorsCarryTheField) {
  const struct {
    const char* model;
    const char* field;
  } cases[] = {
      {"", "spec.model.family"},
      {"family: resnet", "spec.model.config.classes"},
      {"family: bert", "spec.model.config.layers: required"},
      {"family: bert config { layers: 1 heads: 3 width: 8 context: 4 vocabulary: 9 }",
       "spec.model.config.heads: 3"},
      {"family: bert config { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 9 towers: 3 }",
       "spec.model.config.towers"},
      {"family: bert config { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 9 positions: 3 }",
       "spec.model.config.positions: must be from 4"},
      {"family: bert config { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 9 intermediate: 0 }",
       "spec.model.config.intermediate"},
      {"family: bert config { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 9 outputs: 2 }",
       "spec.model.config.outputs"},
      {"family: bert config { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 9 } loss { type: InfoNCE }",
       "set spec.model.config.towers to 2"},
      {"family: bert config { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 9 towers: 2 } loss { type: "
       "CrossEntropy }",
       "spec.model.loss.type"},
      {"family: bert config { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 9 towers: 2 } loss { type: "
       "InfoNCE temperature: 0 }",
       "spec.model.loss.temperature"},
      {"family: gpt2", "spec.model.config.layers"},
      {"family: gpt2 config { layers: 1 heads: 3 width: 8 context: 4 vocabulary: 9 }",
       "spec.model.config.heads: 3"},
      {"family: gpt2 config { layers: 0 heads: 1 width: 8 context: 4 vocabulary: 9 }",
       "spec.model.config.layers"},
      {"family: gpt2 config { layers: 1 heads: 1 width: 8 context: -4 vocabulary: 9 }",
       "spec.model.config.context"},
      {"family: gpt2 config { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 9 dropout: nan }",
       "spec.model.config.dropout"},
      {"family: gpt2 config { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 9 hidden: 3 }",
       "spec.model.config.hidden"},
      {"family: gpt2 config { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 9 } loss { type: "
       "MeanSquaredError }",
       "spec.model.loss.type"},
      {"family: mlp config { inputs: 3 }", "spec.model.config.outputs"},
      {"family: mlp config { inputs: 3 outputs: 1 hidden: [4, 0] }", "spec.model.config.hidden[1]"},
      {"family: mlp config { inputs: 3 outputs: 1 imageSize: 4 }", "spec.model.config.imageSize"},
      {"family: mlp config { inputs: 3 outputs: 1 } loss { type: InfoNCE }", "spec.model.loss.type"},
      {"family: resnet config { depth: 18 }", "spec.model.config.classes"},
      {"family: resnet config { classes: 10 }", "spec.model.config.depth"},
      {"family: resnet config { classes: 10 depth: 20 }", "spec.model.config.depth"},
      {"family: resnet config { classes: 10 depth: 18 blocks: 2 }", "spec.model.config.blocks"},
      {"family: resnet config { classes: 10 depth: 18 bottleneck: true }", "spec.model.config.bottleneck"},
      {"family: resnet config { classes: 10 blocks: [1, 0] }", "spec.model.config.blocks[1]"},
      {"family: resnet config { classes: 10 blocks: [1,1,1,1,1,1,1,1,1,1,1] }", "spec.model.config.blocks"},
      {"family: resnet config { classes: 1 depth: 18 }", "spec.model.config.classes"},
      {"family: resnet config { classes: 10 depth: 18 width: 0 }", "spec.model.config.width"},
      {"family: resnet config { classes: 10 depth: 18 imageSize: 0 }", "spec.model.config.imageSize"},
      {"family: resnet config { classes: 10 depth: 18 channels: 0 }", "spec.model.config.channels"},
      {"family: resnet config { classes: 10 depth: 18 } loss { type: MeanSquaredError }",
       "spec.model.loss.type"},
  };
  for (const auto& test : cases) {
    std::string text = test.model;
    if (const size_t at = text.find("imageSize"); at != std::string::npos) text.replace(at, 9, "image_size");
    const auto graph = BuildModel(Model(text));
    EXPECT_FALSE(graph.ok()) << test.model;
    EXPECT_THAT(std::string(graph.status().message()), HasSubstr(test.field));
    EXPECT_FALSE(ModelConfigJson(Model(text)).ok());
  }
}

}  // namespace
}  // namespace fusion::graph
