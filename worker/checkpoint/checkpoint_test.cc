#include "worker/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "nlohmann/json.hpp"
#include "worker/checkpoint/checkpoint_fixture_for_test.h"
#include "worker/checkpoint/tensor_files.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointTest : public CheckpointFixture {};

TEST_F(CheckpointTest, HoldsTheTensorsOfAllPartsAndAManifest) {
  const auto path = Save(50, 1.5F);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, directory_ + "/step-50");
  EXPECT_THAT(NamesIn(directory_), ElementsAre("step-50"));
  EXPECT_THAT(NamesIn(*path), ElementsAre("config.json", "manifest.json", "model.safetensors",
                                          "optimizer.safetensors", "training-state.json"));
  const auto model = SafetensorsFile::Open(*path + "/model.safetensors");
  ASSERT_TRUE(model.ok());
  ASSERT_EQ(model->tensors().size(), 2);
  EXPECT_EQ(CopyTensor(model->tensors().at("layer.1")).floats()[3], 1.5F);
  const auto optimizer = SafetensorsFile::Open(*path + "/optimizer.safetensors");
  ASSERT_TRUE(optimizer.ok());
  EXPECT_EQ(CopyTensor(optimizer->tensors().at("layer.0.exp_avg")).floats()[0], 0.75F);

  const auto state = nlohmann::json::parse(ReadText(*path + "/training-state.json"));
  EXPECT_EQ(state["step"], 50);
  EXPECT_EQ(state["samples"], 3200);
  const auto manifest = nlohmann::json::parse(ReadText(*path + "/manifest.json"));
  EXPECT_EQ(manifest["files"].size(), 4);
  EXPECT_EQ(manifest["files"]["config.json"]["bytes"], 22);
}

TEST_F(CheckpointTest, ErrorFeedbackHasAFileOfItsOwn) {
  StageSnapshot snapshot = SnapshotOf(5, "layer", 1);
  snapshot.feedback = {{"h.0:0/0-1/FORWARD", Constant({2}, 3)}};
  const auto part = WritePart(directory_, 0, snapshot);
  const auto path = AssembleCheckpoint(directory_, Info(5), {*part});
  ASSERT_TRUE(path.ok()) << path.status();
  const auto file = SafetensorsFile::Open(*path + "/error-feedback.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(CopyTensor(file->tensors().at("h.0:0/0-1/FORWARD")).floats()[1], 3);
  EXPECT_EQ(nlohmann::json::parse(ReadText(*path + "/manifest.json"))["files"].size(), 5);
}

TEST_F(CheckpointTest, Sha256IsTheStandards) {
  const std::string abc = "abc";  // FIPS 180-2, appendix B.1
  EXPECT_EQ(Sha256({reinterpret_cast<const std::byte*>(abc.data()), 3}),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(CheckpointTest, SavingAStepAgainReplacesIt) {
  ASSERT_TRUE(Save(5, 1).ok());
  ASSERT_TRUE(Save(5, 2).ok());
  EXPECT_THAT(NamesIn(directory_), ElementsAre("step-5"));
  const auto model = SafetensorsFile::Open(directory_ + "/step-5/model.safetensors");
  EXPECT_EQ(CopyTensor(model->tensors().at("layer.0")).floats()[0], 2);
}

TEST_F(CheckpointTest, ModelsAboveTheLimitAreSplitAsTransformersDoes) {
  std::vector<NamedTensor> variables;
  for (const char* name : {"a", "b", "c", "d"}) {
    variables.push_back({name, Constant({2, 2}, static_cast<float>(*name))});
  }
  variables.push_back({"e", Constant({100}, 1)});  // alone above the limit
  const auto part = WritePart(directory_, 0, {.step = 1, .variables = variables, .optimizer = {}});
  const auto path = AssembleCheckpoint(directory_, Info(1, /*shard_bytes=*/40), {*part});
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(NamesIn(*path),
              ElementsAre("config.json", "manifest.json", "model-00001-of-00003.safetensors",
                          "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                          "model.safetensors.index.json", "optimizer.safetensors", "training-state.json"));
  EXPECT_EQ(nlohmann::json::parse(ReadText(*path + "/model.safetensors.index.json")),
            nlohmann::json::parse(R"({"metadata": {"total_size": 464}, "weight_map": {
                "a": "model-00001-of-00003.safetensors", "b": "model-00001-of-00003.safetensors",
                "c": "model-00002-of-00003.safetensors", "d": "model-00002-of-00003.safetensors",
                "e": "model-00003-of-00003.safetensors"}})"));
  const auto files = TensorFiles::Open(*path);
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->tensors().size(), 5);
  EXPECT_EQ(CopyTensor(files->tensors().at("d")).floats()[3], 'd');
}

TEST_F(CheckpointTest, AFailureLeavesTheCheckpointBeforeAndNothingElse) {
  ASSERT_TRUE(Save(5, 1).ok());
  const auto first = WritePart(directory_, 0, SnapshotOf(10, "same", 1));
  const auto second = WritePart(directory_, 1, SnapshotOf(10, "same", 2));
  const auto twice = AssembleCheckpoint(directory_, Info(10), {*first, *second});
  EXPECT_EQ(twice.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(twice.status().message()), HasSubstr("'model/same' is in another part too"));
  EXPECT_THAT(NamesIn(directory_), ElementsAre("step-5"));
}

TEST_F(CheckpointTest, ADirectoryThatCannotBeMadeIsAnError) {
  fs::create_directories(directory_);
  WriteText(directory_ + "/file", "x");
  const auto part = WritePart(directory_ + "/file", 0, SnapshotOf(1, "x", 1));
  EXPECT_THAT(std::string(part.status().message()), HasSubstr(directory_ + "/file/.step-1.partial"));
}

TEST_F(CheckpointTest, RemovesWhatAnEarlierRunLeft) {
  ASSERT_TRUE(Save(5, 1).ok());
  ASSERT_TRUE(WritePart(directory_, 0, SnapshotOf(10, "x", 1)).ok());
  ASSERT_TRUE(RemovePartialCheckpoints(directory_).ok());
  EXPECT_THAT(NamesIn(directory_), ElementsAre("step-5"));
  EXPECT_TRUE(RemovePartialCheckpoints(directory_ + "/missing").ok());
}

}  // namespace
}  // namespace fusion::worker
