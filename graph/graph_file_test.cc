#include "graph/graph_file.h"

#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "graph/builder.h"
#include "graph/families.h"
#include "graph/graph_index.h"
#include "graph/job_data.h"
#include "graph/registry.h"
#include "graph/skip_graph_for_test.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/json_mapper.h"

namespace fusion::graph {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::Graph SkipGraph() {
  auto graph = ParseGraph(SkipGraphJson());
  EXPECT_TRUE(graph.ok()) << graph.status();
  return graph.ok() ? *std::move(graph) : v1::Graph();
}

TEST(GraphFile, JsonAndBinaryAreTheSameGraph) {
  const v1::Graph graph = SkipGraph();
  EXPECT_EQ(graph.operators_size(), 17);
  const auto binary = ParseGraph(graph.SerializeAsString());
  ASSERT_TRUE(binary.ok()) << binary.status();
  EXPECT_EQ(binary->SerializeAsString(), graph.SerializeAsString());
  const auto written = ParseGraph(api::ToJson(graph).dump());
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->SerializeAsString(), graph.SerializeAsString());
}

TEST(GraphFile, EveryFamilyReadsBack) {
  for (const char* text :
       {"family: mlp config { inputs: 4 hidden: 8 outputs: 2 }",
        "family: gpt2 config { layers: 1 heads: 2 width: 8 context: 4 vocabulary: 16 dropout: 0.1 }"}) {
    v1alpha1::Model model;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model));
    const auto graph = BuildModel(model);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto read = ParseGraph(api::ToJson(*graph).dump());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->SerializeAsString(), graph->SerializeAsString()) << text;
  }
}

struct Malformed {
  const char* from;
  const char* to;
  const char* message;
};

TEST(GraphFile, RefusesMalformedJsonAndNamesTheField) {
  const Malformed cases[] = {
      {"{\"name\": \"skip\"", "{\"name\": \"skip\",, ", "is not JSON"},
      {"\"loss\": {\"value\": \"loss\"}, ",
       "\"loss\": {\"value\": \"loss\"}, \"loss\": {\"value\": \"out\"}, ", "has the key \"loss\" twice"},
      {"\"loss\": {\"value\": \"loss\"}, ", "", "loss: reads unknown operator ''"},
      {"\"loss\": {\"value\": \"loss\"}", "\"loss\": {\"value\": \"out\"}",
       "loss 'out' must be a floating scalar, not float32[batch, 3]"},
      {"\"loss\": {\"value\": \"loss\"}", "\"loss\": {\"value\": \"loss\", \"index\": 7}", "reads output 7"},
      {"\"operators\": [", "\"operatorz\": [", "operatorz: unknown field"},
      {"\"kind\": \"PLACEHOLDER\"", "\"kind\": \"INPUT\"", "operators[0].kind: must be one of"},
      {"\"shape\": [-1, 5]", "\"shape\": [\"batch\", 5]",
       "operators[0].outputs[0].shape[0]: must be an integer"},
      {"\"dtype\": \"FLOAT32\", \"shape\": [-1, 5]", "\"dtype\": \"FLOAT8\", \"shape\": [-1, 5]",
       "operators[0].outputs[0].dtype: must be one of"},
      {"\"dtype\": \"FLOAT32\", \"shape\": [-1, 5]", "\"shape\": [-1, 5]",
       "operators[0].outputs[0].dtype 'input': output has no known dtype"},
      {"\"shape\": [-1, 5]", "\"shape\": [-1, 0]", "operators[0].outputs[0].shape 'input': shape"},
      {"\"shape\": [-1, 5]", "\"shape\": [32, 5]",
       "operators[0].outputs[0].shape: the first dimension of 'input' must be -1"},
      {"\"name\": \"label\"", "\"name\": \"target\"",
       "operators[15].name: placeholder 'target' gets no data"},
      {"\"args\": [{\"value\": \"in\"}]", "\"args\": [{\"value\": \"second\"}]",
       "operators[6].args[0].value 'first': reads 'second', which is not before it"},
      {"{\"value\": \"sum\"}, {\"value\": \"input\"}", "{\"value\": \"sum\"}, {\"value\": \"inputs\"}",
       "operators[13].args[0].values[1] 'joined': reads unknown operator 'inputs'"},
      {"{\"value\": \"first\"}, {\"int\": 1}", "{\"value\": \"first\"}, {\"int\": 1.5}",
       "operators[7].args[1].int: must be an integer"},
      {"{\"value\": \"first\"}, {\"int\": 1}", "{\"value\": \"first\"}, {\"float\": 1}",
       "operators[7].args[1].float: unknown kind of argument"},
      {"{\"value\": \"first\"}, {\"int\": 1}", "{\"value\": \"first\"}, {}",
       "operators[7].args[1]: must be an object"},
      {"\"type\": \"aten.silu\", \"args\": [{\"value\": \"in\"}]",
       "\"type\": \"aten.silu_\", \"args\": [{\"value\": \"in\"}]",
       "operators[6].type 'first': aten.silu_ writes into its arguments"},
      {"\"type\": \"aten.cumsum\"", "\"type\": \"cumsum\"",
       "operators[7].type 'scan': type 'cumsum' is not NAMESPACE"},
      {"\"overload\": \"Tensor\", \"args\": [{\"value\": \"gate\"}",
       "\"overload\": \"out\", \"args\": [{\"value\": \"gate\"}", "operators[10].overload 'gated': "},
      {"\"name\": \"second\"", "\"name\": \"first\"",
       "operators[11].name 'first': name is taken by operators[6]"},
      {"\"name\": \"gate\", \"kind\": \"NON_PARAMETRIC\"", "\"name\": \"gate\", \"kind\": \"PARAMETRIC\"",
       "operators[9].kind 'gate': reads no variable"},
      {"\"tensorName\": \"in.bias\"", "\"tensorName\": \"in.weight\"",
       "operators[2].variable.tensorName 'in.bias': tensorName 'in.weight' is taken"},
      {"\"kind\": \"NORMAL\", \"standardDeviation\": 0.4", "\"kind\": \"NORMAL\", \"standardDeviation\": -1",
       "operators[1].variable.init 'in.weight': NORMAL needs"},
      {"\"shape\": [-1, 13]", "\"shape\": [-1, 12]", "operators[14] 'out': arguments"},
  };
  static_assert(std::size(cases) >= 20);
  for (const Malformed& test : cases) {
    std::string text = SkipGraphJson();
    const size_t at = text.find(test.from);
    ASSERT_NE(at, std::string::npos) << test.from;
    text.replace(at, std::string(test.from).size(), test.to);
    const auto graph = ParseGraph(text);
    EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument) << test.to;
    EXPECT_THAT(std::string(graph.status().message()), HasSubstr(test.message)) << test.to;
  }
}

TEST(GraphFile, RefusesMalformedBinary) {
  const std::string bytes = SkipGraph().SerializeAsString();
  EXPECT_THAT(std::string(ParseGraph("").status().message()), HasSubstr("is empty"));
  EXPECT_THAT(std::string(ParseGraph(" \n").status().message()), HasSubstr("is empty"));
  EXPECT_THAT(std::string(ParseGraph("[1, 2]").status().message()), HasSubstr("neither JSON nor"));
  EXPECT_THAT(std::string(ParseGraph(bytes.substr(0, bytes.size() - 3)).status().message()),
              HasSubstr("damaged, cut off"));
  EXPECT_THAT(std::string(ParseGraph(bytes + "\xfa\x3f\x01x").status().message()),
              StartsWith("1023: is a field"));
  v1::Graph inner = SkipGraph();
  inner.mutable_operators(3)
      ->GetReflection()
      ->MutableUnknownFields(inner.mutable_operators(3))
      ->AddVarint(99, 1);
  EXPECT_THAT(std::string(ParseGraph(inner.SerializeAsString()).status().message()),
              StartsWith("operators[3].99: is a field"));
}

TEST(GraphFile, AnErrorBeginsWithThePath) {
  const std::string path = testing::TempDir() + "/graph-" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << "{}";
  EXPECT_THAT(std::string(ReadGraph(path).status().message()), StartsWith(path + ": graph has no operators"));
  EXPECT_TRUE(absl::IsNotFound(ReadGraph(path + ".missing").status()));
  EXPECT_TRUE(absl::IsNotFound(ReadGraph(testing::TempDir()).status()));
  v1alpha1::Model model;
  model.mutable_graph()->set_uri(path.substr(path.rfind('/') + 1));
  const auto relative = BuildModel(model, path.substr(0, path.rfind('/')));
  EXPECT_THAT(std::string(relative.status().message()), StartsWith("spec.model.graph.uri: " + path));
  std::ofstream(path) << SkipGraphJson();
  const auto graph = BuildModel(model, path.substr(0, path.rfind('/')));
  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(*ModelConfigJson(model), HasSubstr("fusion-graph"));
  unlink(path.c_str());
}

TEST(GraphFile, OperatorsOutsideTheRegistryCostWhatTheyDeclareOrTouch) {
  v1::Graph graph = SkipGraph();
  const int scan = GraphIndex(graph).Find("scan");
  const OperatorCost touched = *CostOf(graph, scan, 4);
  EXPECT_EQ(touched.forward_flops, 4 * (8 + 8));
  EXPECT_EQ(touched.backward_flops, 2 * 4 * (8 + 8));
  EXPECT_EQ(touched.forward_bytes, 4 * 4 * (8 + 8));
  EXPECT_EQ(touched.output_bytes, 4 * 4 * 8);
  graph.mutable_operators(scan)->mutable_flops()->set_forward(100);
  EXPECT_EQ(CostOf(graph, scan, 4)->forward_flops, 400);
  EXPECT_EQ(CostOf(graph, scan, 4)->backward_flops, 0);
}

TEST(GraphFile, ARecordedOperatorIsNotHeldToTheRegistry) {
  // Whole numbers, which the registry's row of add does not have.
  std::string text = absl::StrReplaceAll(
      SkipGraphJson(),
      {{R"({"name": "loss", "kind")",
        R"({"name": "ids", "kind": "NON_PARAMETRIC", "type": "aten.add", "overload": "Tensor", RECORDED
            "args": [{"value": "gate"}, {"int": 1}], "outputs": [{"dtype": "FLOAT32", "shape": [-1, 8]}]},
           {"name": "loss", "kind")"}});
  const auto held = ParseGraph(absl::StrReplaceAll(text, {{"RECORDED", ""}}));
  EXPECT_THAT(std::string(held.status().message()), HasSubstr("'ids': argument 'other' must be Tensor"));
  const auto recorded = ParseGraph(absl::StrReplaceAll(text, {{"RECORDED", "\"recorded\": true,"}}));
  EXPECT_TRUE(recorded.ok()) << recorded.status();
}

TEST(GraphFile, ValuesLieBesideTheGraph) {
  EXPECT_EQ(StoredValuesUri("a/b.c/model.json"), "a/b.c/model.safetensors");
  EXPECT_EQ(StoredValuesUri("a/b.c/model"), "a/b.c/model.safetensors");
  EXPECT_EQ(StoredValuesUri("model.tar.pb"), "model.tar.safetensors");
  EXPECT_EQ(StoredValuesUri("a/.hidden"), "a/.hidden.safetensors");
  v1::Graph graph = SkipGraph();
  EXPECT_FALSE(HasStoredValues(graph));
  graph.mutable_operators(1)->mutable_variable()->mutable_init()->set_kind(v1::Init::STORED);
  EXPECT_TRUE(HasStoredValues(graph));
}

v1alpha1::FusionJobSpec Spec(const std::string& text) {
  v1alpha1::FusionJobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  return spec;
}

TEST(CompleteSpec, TellsTheWorkersWhatTheDataIs) {
  v1::Graph graph = SkipGraph();
  v1alpha1::FusionJobSpec spec = Spec("model { graph { uri: 'm.json' } } data { kind: table }");
  ASSERT_TRUE(CompleteSpec(graph, &spec).ok());
  EXPECT_EQ(spec.model().config().inputs(), 5);
  EXPECT_EQ(spec.model().config().outputs(), 3);
  EXPECT_EQ(spec.model().loss().type(), v1alpha1::Loss::MeanSquaredError);
  EXPECT_FALSE(spec.model().has_init_from());

  graph.mutable_operators(1)->mutable_variable()->mutable_init()->set_kind(v1::Init::STORED);
  ASSERT_TRUE(CompleteSpec(graph, &spec).ok());
  EXPECT_EQ(spec.model().init_from().uri(), "m.safetensors");
  spec.mutable_model()->mutable_init_from()->set_uri("other.safetensors");
  ASSERT_TRUE(CompleteSpec(graph, &spec).ok());
  EXPECT_EQ(spec.model().init_from().uri(), "other.safetensors") << "the job's own comes first";
}

TEST(CompleteSpec, ClassesComeFromTheLoss) {
  v1::Graph graph = SkipGraph();
  const GraphIndex index(graph);
  v1::Operator* label = graph.mutable_operators(index.Find("label"));
  label->mutable_outputs(0)->set_dtype(v1::INT64);
  label->mutable_outputs(0)->mutable_shape()->Truncate(1);
  graph.mutable_operators(index.Find("loss"))->set_type("aten.cross_entropy_loss");
  ASSERT_TRUE(ValidateGraph(graph).ok()) << ValidateGraph(graph);
  v1alpha1::FusionJobSpec spec = Spec("model { graph { uri: 'm.json' } } data { kind: table }");
  ASSERT_TRUE(CompleteSpec(graph, &spec).ok());
  EXPECT_EQ(spec.model().loss().type(), v1alpha1::Loss::CrossEntropy);
  EXPECT_EQ(spec.model().config().outputs(), 3);
}

/// Two texts looked up in tables of `rows` and `more` rows, the first in another shape.
v1::Graph TowersOfTables(int64_t rows, int64_t more) {
  GraphBuilder builder("towers");
  const auto input = builder.Placeholder("input", v1::INT64, {Batch(), 6});
  const auto flat = builder.Add("flat", "aten.flatten.using_ints", {Read(input), Int(0), Int(1)});
  const auto label = builder.Placeholder("label", v1::INT64, {Batch(), 6});
  const auto first = builder.Add("first", "aten.embedding",
                                 {Read(builder.Variable("first.weight", {rows, 4}, Normal(1))), Read(flat)});
  const auto second =
      builder.Add("second", "aten.embedding",
                  {Read(builder.Variable("second.weight", {more, 4}, Normal(1))), Read(label)});
  const auto apart = builder.Add("apart", "aten.flatten.using_ints", {Read(second), Int(0), Int(1)});
  return *builder.Finish(builder.Add("loss", "aten.mse_loss", {Read(first), Read(apart)}));
}

TEST(CompleteSpec, PairsOfTextsHaveTheSmallerTable) {
  const v1::Graph graph = TowersOfTables(300, 90);
  v1alpha1::FusionJobSpec spec = Spec("model { graph { uri: 'm' } } data { kind: textPairs }");
  ASSERT_TRUE(CompleteSpec(graph, &spec).ok()) << CompleteSpec(graph, &spec);
  EXPECT_EQ(spec.model().config().context(), 6);
  EXPECT_EQ(spec.model().config().vocabulary(), 90);
  ASSERT_TRUE(CompleteSpec(TowersOfTables(300, 400), &spec).ok());
  EXPECT_EQ(spec.model().config().vocabulary(), 256) << "bytes";
  spec.mutable_data()->mutable_tokenizer()->set_uri("vocab.txt");
  ASSERT_TRUE(CompleteSpec(TowersOfTables(300, 400), &spec).ok());
  EXPECT_EQ(spec.model().config().vocabulary(), 300);
  EXPECT_THAT(std::string(CompleteSpec(SkipGraph(), &spec).message()),
              StartsWith("spec.data.kind: textPairs feeds"));
}

TEST(CompleteSpec, SyntheticDataFollowThePlaceholders) {
  v1alpha1::FusionJobSpec pairs = Spec("model { graph { uri: 'm' } } data { kind: synthetic }");
  v1alpha1::FusionJobSpec columns = pairs;
  ASSERT_TRUE(CompleteSpec(TowersOfTables(300, 400), &pairs).ok());
  EXPECT_EQ(pairs.model().config().towers(), 2);
  EXPECT_EQ(pairs.model().config().vocabulary(), 300);
  ASSERT_TRUE(CompleteSpec(SkipGraph(), &columns).ok());
  EXPECT_EQ(columns.model().config().inputs(), 5);
  EXPECT_EQ(columns.model().config().outputs(), 3);

  v1alpha1::Model family;
  family.set_family(v1alpha1::Model::gpt2);
  family.mutable_config()->set_layers(1);
  family.mutable_config()->set_heads(1);
  family.mutable_config()->set_width(4);
  family.mutable_config()->set_context(7);
  family.mutable_config()->set_vocabulary(31);
  v1alpha1::FusionJobSpec text = Spec("model { graph { uri: 'm' } } data { kind: synthetic }");
  ASSERT_TRUE(CompleteSpec(*BuildModel(family), &text).ok());
  EXPECT_EQ(text.model().config().context(), 7);
  EXPECT_EQ(text.model().config().vocabulary(), 31);
  EXPECT_FALSE(text.model().config().has_towers());

  family.Clear();
  family.set_family(v1alpha1::Model::resnet);
  family.mutable_config()->add_blocks(1);
  family.mutable_config()->set_width(2);
  family.mutable_config()->set_classes(5);
  family.mutable_config()->set_image_size(16);
  v1alpha1::FusionJobSpec images = Spec("model { graph { uri: 'm' } } data { kind: synthetic }");
  v1::Graph resnet = *BuildModel(family);
  ASSERT_TRUE(CompleteSpec(resnet, &images).ok());
  EXPECT_EQ(images.model().config().classes(), 5);
  EXPECT_EQ(images.model().config().image_size(), 16);

  for (v1::Operator& op : *resnet.mutable_operators()) {
    if (op.name() == "label") op.set_name("other");
  }
  v1alpha1::FusionJobSpec none = Spec("model { graph { uri: 'm' } } data { kind: synthetic }");
  EXPECT_THAT(std::string(CompleteSpec(resnet, &none).message()), StartsWith("spec.data.kind: images feeds"));
}

TEST(CompleteSpec, RefusesDataThatDoesNotFit) {
  const v1::Graph graph = SkipGraph();
  v1alpha1::FusionJobSpec spec = Spec("model { graph { uri: 'm.json' } } data { kind: text }");
  const absl::Status status = CompleteSpec(graph, &spec);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), StartsWith("spec.data.kind: text feeds"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the graph's 'input' is float32[batch, 5]"));
  v1alpha1::FusionJobSpec family = Spec("model { family: mlp } data { kind: text }");
  EXPECT_TRUE(CompleteSpec(graph, &family).ok());
  EXPECT_FALSE(family.model().has_config());
}

}  // namespace
}  // namespace fusion::graph
