#include "worker/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/safetensors.h"
#include "worker/testing/fake_engine.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor Constant(std::vector<int64_t> shape, float value) {
  Tensor tensor = AllocateTensor(graph::v1::FLOAT32, std::move(shape));
  std::fill(tensor.mutable_floats().begin(), tensor.mutable_floats().end(), value);
  return tensor;
}

StageSnapshot Snapshot(int64_t step, const std::string& name, float value) {
  return {.step = step,
          .variables = {{name, Constant({2, 2}, value)}},
          .optimizer = {{name + ".exp_avg", Constant({2, 2}, value / 2)}}};
}

std::vector<std::string> Names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() : directory_(absl::StrCat(::testing::TempDir(), "/checkpoint-", getpid())) {
    fs::remove_all(directory_);
  }
  ~CheckpointTest() override { fs::remove_all(directory_); }

  absl::StatusOr<std::string> Save(int64_t step, float value) {
    std::vector<std::string> parts;
    for (int stage = 0; stage < 2; ++stage) {
      const auto part = WritePart(directory_, stage, Snapshot(step, absl::StrCat("layer.", stage), value));
      if (!part.ok()) {
        return part.status();
      }
      parts.push_back(*part);
    }
    return AssembleCheckpoint(directory_,
                              {.job = "job",
                               .step = step,
                               .incarnation = 2,
                               .seed = 7,
                               .samples = 64 * step,
                               .config_files = {{"config.json", "{\"model_type\": \"gpt2\"}"}}},
                              parts);
  }

  const std::string directory_;
};

// Two parameters, as GPT-2's files name them.
graph::v1::StageProgram Program() {
  graph::v1::StageProgram program;
  auto* sub_dag = program.add_sub_dags();
  for (const std::string name : {"transformer.a", "transformer.b"}) {
    auto* op = sub_dag->add_operators();
    op->set_name("variable " + name);
    op->set_kind(graph::v1::Operator::VARIABLE);
    op->mutable_variable()->set_tensor_name(name);
    auto* spec = op->add_outputs();
    spec->set_dtype(graph::v1::FLOAT32);
    spec->add_shape(3);
  }
  return program;
}

TEST_F(CheckpointTest, HoldsTheTensorsOfAllPartsAndAManifest) {
  const auto path = Save(50, 1.5F);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, directory_ + "/step-50");
  EXPECT_THAT(Names(directory_), ElementsAre("step-50"));
  EXPECT_THAT(Names(*path), ElementsAre("config.json", "manifest.json", "model.safetensors",
                                        "optimizer.safetensors", "training-state.json"));
  const auto model = SafetensorsFile::Open(*path + "/model.safetensors");
  ASSERT_TRUE(model.ok());
  ASSERT_EQ(model->tensors().size(), 2);
  EXPECT_EQ(CopyTensor(model->tensors().at("layer.1")).floats()[3], 1.5F);
  const auto optimizer = SafetensorsFile::Open(*path + "/optimizer.safetensors");
  ASSERT_TRUE(optimizer.ok());
  EXPECT_EQ(CopyTensor(optimizer->tensors().at("layer.0.exp_avg")).floats()[0], 0.75F);

  std::ifstream state_file(*path + "/training-state.json");
  const auto state = nlohmann::json::parse(state_file);
  EXPECT_EQ(state["step"], 50);
  EXPECT_EQ(state["samples"], 3200);
  std::ifstream manifest_file(*path + "/manifest.json");
  const auto manifest = nlohmann::json::parse(manifest_file);
  EXPECT_EQ(manifest["files"].size(), 4);
  EXPECT_EQ(manifest["files"]["config.json"]["bytes"], 22);
}

TEST_F(CheckpointTest, Sha256IsTheStandards) {
  const std::string abc = "abc";  // FIPS 180-2, appendix B.1
  EXPECT_EQ(Sha256({reinterpret_cast<const std::byte*>(abc.data()), 3}),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(CheckpointTest, SavingAStepAgainReplacesIt) {
  ASSERT_TRUE(Save(5, 1).ok());
  ASSERT_TRUE(Save(5, 2).ok());
  EXPECT_THAT(Names(directory_), ElementsAre("step-5"));
  const auto model = SafetensorsFile::Open(directory_ + "/step-5/model.safetensors");
  EXPECT_EQ(CopyTensor(model->tensors().at("layer.0")).floats()[0], 2);
}

TEST_F(CheckpointTest, AFailureLeavesTheCheckpointBeforeAndNothingElse) {
  ASSERT_TRUE(Save(5, 1).ok());
  const auto first = WritePart(directory_, 0, Snapshot(10, "same", 1));
  const auto second = WritePart(directory_, 1, Snapshot(10, "same", 2));
  const auto twice =
      AssembleCheckpoint(directory_, {.job = "job", .step = 10, .config_files = {}}, {*first, *second});
  EXPECT_EQ(twice.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(twice.status().message()), HasSubstr("'model/same' is in another part too"));
  EXPECT_THAT(Names(directory_), ElementsAre("step-5"));
}

TEST_F(CheckpointTest, AFullDiskLeavesTheCheckpointBefore) {
  ASSERT_TRUE(Save(5, 1).ok());
  const auto part = WritePart(directory_, 0, Snapshot(10, "x", 1));
  fs::create_symlink("/dev/full", fs::path(*part).parent_path() / "model.safetensors");
  const auto full = AssembleCheckpoint(directory_, {.job = "job", .step = 10, .config_files = {}}, {*part});
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted) << full.status();
  EXPECT_THAT(Names(directory_), ElementsAre("step-5"));
  FakeEngine engine;
  EXPECT_TRUE(SafetensorsFile::Open(directory_ + "/step-5/model.safetensors").ok());
}

TEST_F(CheckpointTest, ADirectoryThatCannotBeMadeIsAnError) {
  fs::create_directories(directory_);
  std::ofstream(directory_ + "/file") << "x";
  const auto part = WritePart(directory_ + "/file", 0, Snapshot(1, "x", 1));
  EXPECT_THAT(std::string(part.status().message()), HasSubstr(directory_ + "/file/.step-1.partial"));
}

TEST_F(CheckpointTest, RemovesWhatAnEarlierRunLeft) {
  ASSERT_TRUE(Save(5, 1).ok());
  ASSERT_TRUE(WritePart(directory_, 0, Snapshot(10, "x", 1)).ok());
  ASSERT_TRUE(RemovePartialCheckpoints(directory_).ok());
  EXPECT_THAT(Names(directory_), ElementsAre("step-5"));
  EXPECT_TRUE(RemovePartialCheckpoints(directory_ + "/missing").ok());
}

class InitializeFromTest : public CheckpointTest {
 protected:
  void SetUp() override {
    fs::create_directories(directory_);
    ASSERT_TRUE(engine_.Load(program_, {}).ok());
  }

  std::string WriteModel(const std::map<std::string, Tensor>& tensors) {
    std::map<std::string, TensorView> views;
    for (const auto& [name, tensor] : tensors) {
      views[name] = ViewOf(tensor);
    }
    std::string path = directory_ + "/initial.safetensors";
    EXPECT_TRUE(WriteSafetensors(path, views).ok());
    return path;
  }
  float FirstOf(const std::string& name) { return engine_.ReadVariable("variable " + name)->floats()[0]; }

  const graph::v1::StageProgram program_ = Program();
  FakeEngine engine_;
};

TEST_F(InitializeFromTest, ReadsAFileAndLeavesOtherTensors) {
  const absl::Status status = InitializeFrom(WriteModel({{"transformer.a", Constant({3}, 4)},
                                                         {"transformer.b", Constant({3}, 5)},
                                                         {"lm_head.weight", Constant({7}, 6)}}),
                                             engine_);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(FirstOf("transformer.a"), 4);
  EXPECT_EQ(FirstOf("transformer.b"), 5);
}

TEST_F(InitializeFromTest, FindsPublishedNamesWithoutThePrefix) {
  ASSERT_TRUE(InitializeFrom(WriteModel({{"a", Constant({3}, 4)}, {"b", Constant({3}, 5)}}), engine_).ok());
  EXPECT_EQ(FirstOf("transformer.b"), 5);
}

TEST_F(InitializeFromTest, SaysWhichTensorIsMissingOrDiffers) {
  const absl::Status missing = InitializeFrom(WriteModel({{"transformer.a", Constant({3}, 4)}}), engine_);
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("model.initFrom: "));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no tensor 'transformer.b'"));
  const absl::Status shape = InitializeFrom(WriteModel({{"transformer.a", Constant({1, 3}, 4)}}), engine_);
  EXPECT_THAT(std::string(shape.message()),
              HasSubstr("'transformer.a' is FLOAT32[1, 3], the model needs FLOAT32[3]"));
  const absl::Status dtype =
      InitializeFrom(WriteModel({{"transformer.a", AllocateTensor(graph::v1::FLOAT16, {3})}}), engine_);
  EXPECT_THAT(std::string(dtype.message()), HasSubstr("is FLOAT16[3]"));
}

TEST_F(InitializeFromTest, ReadsACheckpointAndRefusesADamagedOne) {
  ASSERT_TRUE(engine_.WriteVariable("variable transformer.a", Constant({3}, 8)).ok());
  const auto snapshot = TakeSnapshot(engine_, 3);
  ASSERT_TRUE(snapshot.ok());
  const auto part = WritePart(directory_, 0, *snapshot);
  const auto checkpoint =
      AssembleCheckpoint(directory_, {.job = "job", .step = 3, .config_files = {}}, {*part});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  FakeEngine other;
  ASSERT_TRUE(other.Load(program_, {}).ok());
  ASSERT_TRUE(InitializeFrom(*checkpoint, other).ok());
  EXPECT_EQ(other.ReadVariable("variable transformer.a")->floats()[0], 8);

  std::fstream file(*checkpoint + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  const absl::Status damaged = InitializeFrom(*checkpoint, other);
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("is not what manifest.json says"));
}

TEST_F(InitializeFromTest, AMissingFileIsAnError) {
  const absl::Status status = InitializeFrom(directory_ + "/nothing", engine_);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.initFrom: cannot open"));
}

}  // namespace
}  // namespace fusion::worker
