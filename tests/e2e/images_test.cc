// A residual network learns images over two compnodes, and its checkpoint evaluates as the run did.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace fusion {
namespace {

using nlohmann::json;
using testing::ProcessResult;
using testing::ScratchFolder;

const std::string kFusionctl = std::string(FUSION_BINARY_DIR) + "/bin/fusionctl";

// Noise of 8 x 8, and a bright row that is the class.
std::string Images(int count) {
  std::mt19937 random(5);
  std::string text;
  for (int i = 0; i < count; ++i) {
    const int label = static_cast<int>(random() % 4);
    for (int pixel = 0; pixel < 64; ++pixel) {
      text += std::to_string(random() % 8 + (pixel / 8 == 2 * label ? 8 : 0)) + ",";
    }
    text += std::to_string(label) + "\n";
  }
  return text;
}

std::string Job(const std::string& what) {
  std::string text = R"(apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: images}
spec:
  model:
    family: resnet
    config: {blocks: [1, 1], width: 8, classes: 4, imageSize: 8, channels: 1, stem: small}
)" + what + R"(
  data: {kind: images, uri: images.csv, scale: 0.0625, validationFraction: 0.25}
)";
  for (const std::string name : {"left", "right"}) {
    text += "---\napiVersion: fusion.dev/v1alpha1\nkind: Compnode\nmetadata: {name: " + name +
            "}\nspec:\n  cluster: home\n  devices: [{name: cpu, kind: CPU, memory: 4Gi, peakFlops: {fp32: "
            "5e10}}]\n";
  }
  return text;
}

ProcessResult RunJob(const ScratchFolder& folder, const std::string& name, const std::string& job) {
  testing::WriteFile(folder / (name + ".yaml"), job);
  return testing::Run(
      {kFusionctl, "run", "-f", folder / (name + ".yaml"), "-o", "json", "--workdir", folder / name},
      folder.path(), std::chrono::seconds(120));
}

TEST(ImagesTest, ARunLearnsAndItsCheckpointEvaluatesTheSame) {
  ScratchFolder folder;
  testing::WriteFile(folder / "images.csv", Images(400));
  const std::string training = R"(  placement: {policy: EqualNumber}
  communication: {compression: {type: None}}
  training:
    batch: {global: 20, micro: 10}
    validation: {everySteps: 15, batches: 5}
)";
  const ProcessResult trained =
      RunJob(folder, "trained",
             Job(training + "    steps: 45\n    optimizer: {type: SGD, learningRate: 0.05, momentum: 0.9}"));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const json result = json::parse(trained.out);
  EXPECT_GE(result.at("validationAccuracy").get<double>(), 0.95);

  std::vector<json> accuracies;
  std::istringstream lines(testing::ReadFile(folder / "trained/images/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json metrics = json::parse(line);
    EXPECT_EQ(metrics.contains("validationAccuracy"), metrics.contains("validationLoss"));
    if (metrics.contains("validationAccuracy")) accuracies.push_back(metrics.at("validationAccuracy"));
  }
  ASSERT_EQ(accuracies.size(), 3u);
  EXPECT_EQ(accuracies.back(), result.at("validationAccuracy"));
  EXPECT_EQ(json::parse(testing::ReadFile(folder / "trained/images/plan.json")).at("stages").size(), 2u);

  const std::string checkpoint = result.at("checkpoint").get<std::string>();
  const ProcessResult evaluated = RunJob(
      folder, "evaluated", Job("    initFrom: {uri: " + checkpoint + "}\n  task: Evaluate\n" + training));
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_EQ(json::parse(evaluated.out).at("validationLoss"), result.at("validationLoss"))
      << "statistics are part of the checkpoint";
  EXPECT_EQ(json::parse(evaluated.out).at("validationAccuracy"), result.at("validationAccuracy"));
}

}  // namespace
}  // namespace fusion
