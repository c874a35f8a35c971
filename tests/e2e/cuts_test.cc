// Any cut gives the numbers of the uncut run: the same job is run over real processes with several plans, and
// every step's loss must be the same to the last bit.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "graph/skip_graph_for_test.h"
#include "tests/support/process.h"

namespace fusion {
namespace {

using nlohmann::json;
using testing::ProcessResult;
using testing::ScratchFolder;

const std::string kFusionctl = std::string(FUSION_BINARY_DIR) + "/bin/fusionctl";

std::string Compnodes(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "---\napiVersion: fusion.dev/v1alpha1\nkind: Compnode\nmetadata: {name: n" + std::to_string(i) +
            "}\nspec:\n  cluster: home\n  devices: [{name: cpu, kind: CPU, memory: 4Gi, peakFlops: {fp32: "
            "5e10}}]\n";
  }
  return text;
}

std::string Gpt2Job(int compnodes) {
  return R"(apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: job}
spec:
  model: {family: gpt2, config: {layers: 2, heads: 2, width: 16, context: 16, vocabulary: 256, dropout: 0.1}}
  data: {kind: text, uri: text.txt}
  training:
    steps: 50
    batch: {global: 8, micro: 2}
    seed: 3
    recompute: true
    optimizer: {type: AdamW, learningRate: 1e-3}
    learningRateSchedule: {type: Cosine, warmupSteps: 5, finalFraction: 0.1}
    gradientClipping: {maxNorm: 1}
  communication: {compression: {type: None}}
)" + Compnodes(compnodes);
}

std::string MlpJob(int compnodes) {
  return R"(apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: job}
spec:
  model: {family: mlp, config: {inputs: 3, hidden: [8, 8, 8], outputs: 1}}
  data: {kind: table, uri: table.csv}
  training:
    steps: 50
    batch: {global: 16, micro: 4}
    seed: 3
    precision: bf16
    optimizer: {type: SGD, learningRate: 1e-2, momentum: 0.9}
  communication: {compression: {type: None}}
)" + Compnodes(compnodes);
}

/// One tower predicts masked bytes of text.txt; two compare the halves of its records. `placement` is empty
/// or YAML.
std::string BertJob(int towers, int compnodes, const std::string& placement) {
  return R"(apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: job}
spec:
  model:
    family: bert
    config: {layers: 2, heads: 2, width: 16, context: 16, vocabulary: 257, dropout: 0.1, towers: )" +
         std::to_string(towers) + R"(}
  data: {kind: )" +
         (towers == 2 ? "textPairs" : "text") + R"(, uri: text.txt}
  training:
    steps: 20
    batch: {global: 12, micro: 4}
    seed: 3
    optimizer: {type: AdamW, learningRate: 1e-3}
    validation: {batches: 2}
)" + (towers == 2 ? "    precision: bf16\n    recompute: true\n" : "") +
         "  communication: {compression: {type: None}}\n" + placement + Compnodes(compnodes);
}

std::string ResnetJob(int compnodes, const std::string& training = "") {
  return R"(apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: job}
spec:
  model: {family: resnet, config: {blocks: [1, 1], width: 4, classes: 3, imageSize: 6, channels: 1, stem: small}}
  data: {kind: images, uri: images.csv}
  training:
    steps: 50
    batch: {global: 16, micro: 4}
    seed: 3
    optimizer: {type: SGD, learningRate: 5e-2, momentum: 0.9}
)" + training +
         "  communication: {compression: {type: None}}\n" + Compnodes(compnodes);
}

// A graph of one's own with operators that the registry does not have, and edges that skip stages.
std::string GraphJob(int compnodes) {
  return R"(apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: job}
spec:
  model: {graph: {uri: model.json}}
  data: {kind: table, uri: wide.csv}
  training:
    steps: 50
    batch: {global: 16, micro: 4}
    seed: 3
    optimizer: {type: AdamW, learningRate: 1e-2}
  communication: {compression: {type: None}}
)" + Compnodes(compnodes);
}

std::string JobOf(const std::string& family, int compnodes) {
  if (family == "graph") return GraphJob(compnodes);
  return family == "gpt2"     ? Gpt2Job(compnodes)
         : family == "resnet" ? ResnetJob(compnodes)
         : family == "resnetInBf16WithRecompute"
             ? ResnetJob(compnodes, "    precision: bf16\n    recompute: true\n")
             : MlpJob(compnodes);
}

void WriteData(const ScratchFolder& folder) {
  testing::WriteFile(folder / "model.json", graph::SkipGraphJson());
  std::mt19937 random(7);
  std::string images;
  for (int i = 0; i < 200; ++i) {
    for (int pixel = 0; pixel < 36; ++pixel)
      images += std::to_string(random() % 3 + pixel / 12 * (i % 3)) + ",";
    images += std::to_string(i % 3) + "\n";
  }
  testing::WriteFile(folder / "images.csv", images);
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    text += i % 50 == 49 ? std::string("\n%\n") : std::string(1, static_cast<char>('a' + random() % 26));
  }
  testing::WriteFile(folder / "text.txt", text);
  std::string table = "a,b,c,target\n";
  for (int i = 0; i < 200; ++i) {
    const double a = random() % 100 / 10.0, b = random() % 100 / 10.0, c = random() % 100 / 10.0;
    table += std::to_string(a) + "," + std::to_string(b) + "," + std::to_string(c) + "," +
             std::to_string(2 * a - b + 0.5 * c) + "\n";
  }
  testing::WriteFile(folder / "table.csv", table);
  std::string wide = "a,b,c,d,e,x,y,z\n";
  for (int i = 0; i < 200; ++i) {
    double sum = 0;
    for (int column = 0; column < 5; ++column) {
      const double value = random() % 100 / 10.0;
      sum += value;
      wide += std::to_string(value) + ",";
    }
    wide += std::to_string(sum) + "," + std::to_string(sum * sum) + "," + std::to_string(-sum) + "\n";
  }
  testing::WriteFile(folder / "wide.csv", wide);
}

/// Loss, learning rate and gradient norm of every step, as the texts of the numbers, so that equality is
/// equality of bits.
std::vector<std::string> Losses(const std::string& metrics_file) {
  std::vector<std::string> losses;
  std::istringstream lines(testing::ReadFile(metrics_file));
  for (std::string line; std::getline(lines, line);) {
    const json step = json::parse(line);
    losses.push_back(step.at("loss").dump() + " " + step.at("learningRate").dump() + " " +
                     step.at("gradientNorm").dump());
  }
  return losses;
}

/// Whether something goes past a stage: from stage i to i + 2 or further.
bool SkipsAStage(const std::string& metrics_file) {
  std::istringstream lines(testing::ReadFile(metrics_file));
  std::string line;
  std::getline(lines, line);
  const json metrics = json::parse(line);
  return std::any_of(metrics.at("links").begin(), metrics.at("links").end(), [](const json& link) {
    return link.at("to").get<int>() >= link.at("from").get<int>() + 2;
  });
}

/// Cuts the one stage of `plan` into runs of operators, of which run i begins at bounds[i] and goes to stage
/// i % stages.
json CutAt(const json& plan, const std::vector<size_t>& bounds, int stages) {
  const auto operators = plan.at("stages").at(0).at("operators").get<std::vector<std::string>>();
  const int segments = static_cast<int>(bounds.size()) - 1;
  json cut = plan;
  cut["links"] = json::array();
  cut["stages"] = json::array();
  for (int stage = 0; stage < stages; ++stage) {
    json entry = plan.at("stages").at(0);
    entry["index"] = stage;
    entry["compnode"] = "n" + std::to_string(stage);
    entry["operators"] = json::array();
    entry["subDags"] = json::array();
    for (int segment = stage; segment < segments; segment += stages) {
      json sub_dag = {{"operators", json::array()}, {"depth", segments - segment + 1}};
      for (size_t i = bounds[segment]; i < bounds[segment + 1]; ++i) {
        sub_dag["operators"].push_back(operators[i]);
        entry["operators"].push_back(operators[i]);
      }
      entry["subDags"].push_back(sub_dag);
    }
    cut["stages"].push_back(entry);
  }
  return cut;
}

/// The same into `segments` runs at random places.
json Cut(const json& plan, int segments, int stages, std::mt19937& random) {
  const size_t operators = plan.at("stages").at(0).at("operators").size();
  std::vector<size_t> bounds = {0, operators};
  while (static_cast<int>(bounds.size()) <= segments) {
    const size_t bound = 1 + random() % (operators - 1);
    if (std::find(bounds.begin(), bounds.end(), bound) == bounds.end()) bounds.push_back(bound);
  }
  std::sort(bounds.begin(), bounds.end());
  return CutAt(plan, bounds, stages);
}

class Cuts : public ::testing::TestWithParam<std::string> {};

TEST_P(Cuts, EveryCutGivesTheBitsOfTheUncutRun) {
  ScratchFolder folder;
  WriteData(folder);
  testing::WriteFile(folder / "job.yaml", JobOf(GetParam(), 4));
  testing::WriteFile(folder / "single.yaml", JobOf(GetParam(), 1));

  const ProcessResult planned = testing::Run(
      {kFusionctl, "plan", "-f", folder / "single.yaml", "-o", "json", "--workdir", folder / "plan"},
      folder.path());
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const json uncut = json::parse(planned.out);
  ASSERT_EQ(uncut.at("stages").size(), 1u);

  const ProcessResult reference =
      testing::Run({kFusionctl, "run", "-f", folder / "single.yaml", "--workdir", folder / "uncut"},
                   folder.path(), std::chrono::seconds(240));
  ASSERT_EQ(reference.exit_code, 0) << reference.err;
  const std::vector<std::string> expected = Losses(folder / "uncut/job/metrics.jsonl");
  ASSERT_EQ(expected.size(), 50u);
  EXPECT_NE(expected.front(), expected.back());
  const std::string model_path = "/job/checkpoints/step-50/model.safetensors";
  const std::string model = testing::ReadFile(folder / ("uncut" + model_path));
  ASSERT_FALSE(model.empty());

  std::mt19937 random(11);
  // (segments, stages): two, three and four stages, and four segments on two stages, so that each holds two
  // sub-DAGs.
  for (const auto& [segments, stages] : {std::pair(2, 2), {3, 3}, {4, 4}, {4, 2}}) {
    SCOPED_TRACE(std::to_string(segments) + " sub-DAGs on " + std::to_string(stages) + " stages");
    const std::string name = std::to_string(segments) + "-" + std::to_string(stages);
    // `input` and `first` of the graph are read again in the last of four stages.
    const bool skipping = GetParam() == "graph" && stages == 4;
    const json plan = skipping ? CutAt(uncut, {0, 3, 5, 8, 13}, 4) : Cut(uncut, segments, stages, random);
    testing::WriteFile(folder / (name + ".json"), plan.dump(2));
    const ProcessResult run = testing::Run({kFusionctl, "run", "-f", folder / "job.yaml", "--workdir",
                                            folder / name, "--plan", folder / (name + ".json")},
                                           folder.path(), std::chrono::seconds(240));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(Losses(folder / (name + "/job/metrics.jsonl")), expected);
    EXPECT_TRUE(testing::ReadFile(folder / (name + model_path)) == model)
        << "parameters or statistics differ";
    if (skipping) {
      EXPECT_TRUE(SkipsAStage(folder / (name + "/job/metrics.jsonl")));
    }
  }
}

/// The object that `run -o json` ends with, of a run that succeeds.
json RunJob(const ScratchFolder& folder, const std::string& job, const std::string& name,
            const std::vector<std::string>& more = {}) {
  testing::WriteFile(folder / (name + ".yaml"), job);
  std::vector<std::string> words = {kFusionctl,  "run",         "-f", folder / (name + ".yaml"),
                                    "--workdir", folder / name, "-o", "json"};
  words.insert(words.end(), more.begin(), more.end());
  const ProcessResult result = testing::Run(words, folder.path(), std::chrono::seconds(240));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

/// Each tower on the compnode of whoever owns its texts.
constexpr char kTowersApart[] = R"(  placement:
    pins:
      - {operators: "input|anchor.*", compnode: n0}
      - {operators: "label|positive.*|similarity*|loss*", compnode: n1}
)";

class BertCuts : public ::testing::TestWithParam<int> {};

TEST_P(BertCuts, TrainsAndEvaluatesWithTheBitsOfTheUncutRun) {
  const int towers = GetParam();
  ScratchFolder folder;
  WriteData(folder);
  const json uncut = RunJob(folder, BertJob(towers, 1, ""), "uncut");
  ASSERT_TRUE(uncut.is_object());
  const std::vector<std::string> expected = Losses(folder / "uncut/job/metrics.jsonl");
  ASSERT_EQ(expected.size(), 20u);
  EXPECT_NE(expected.front(), expected.back());

  json cut;
  if (towers == 2) {
    cut = RunJob(folder, BertJob(2, 2, kTowersApart), "cut");
  } else {
    std::mt19937 random(11);
    const json plan = json::parse(testing::ReadFile(uncut.at("plan").get<std::string>()));
    testing::WriteFile(folder / "plan.json", Cut(plan, 4, 3, random).dump());
    cut = RunJob(folder, BertJob(1, 3, ""), "cut", {"--plan", folder / "plan.json"});
  }
  ASSERT_TRUE(cut.is_object());
  EXPECT_EQ(Losses(folder / "cut/job/metrics.jsonl"), expected);
  EXPECT_EQ(cut.at("validationLoss").dump(), uncut.at("validationLoss").dump());

  std::string evaluation = BertJob(towers, 1, "");
  evaluation.replace(
      evaluation.find("  model:\n"), 9,
      "  task: Evaluate\n  model:\n    initFrom: {uri: " + cut.at("checkpoint").get<std::string>() + "}\n");
  const json evaluated = RunJob(folder, evaluation, "evaluated");
  ASSERT_TRUE(evaluated.is_object());
  EXPECT_EQ(evaluated.at("validationLoss").dump(), uncut.at("validationLoss").dump());
}

INSTANTIATE_TEST_SUITE_P(Towers, BertCuts, ::testing::Values(1, 2),
                         [](const auto& info) { return info.param == 2 ? "Pairs" : "MaskedTokens"; });

INSTANTIATE_TEST_SUITE_P(Families, Cuts,
                         ::testing::Values("mlp", "gpt2", "resnet", "resnetInBf16WithRecompute", "graph"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fusion
