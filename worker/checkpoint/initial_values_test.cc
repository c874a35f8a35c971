#include "worker/checkpoint/initial_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "nlohmann/json.hpp"
#include "worker/checkpoint/checkpoint_fixture_for_test.h"
#include "worker/testing/fake_engine.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class InitializeFromTest : public CheckpointFixture {
 protected:
  void SetUp() override { fs::create_directories(directory_); }

  std::string WriteModel(const std::map<std::string, Tensor>& tensors,
                         const std::string& name = "initial.safetensors") const {
    std::map<std::string, TensorView> views;
    for (const auto& [tensor, value] : tensors) views[tensor] = ViewOf(value);
    std::string path = directory_ + "/" + name;
    EXPECT_TRUE(WriteSafetensors(path, views).ok());
    return path;
  }

  /// Into a new engine with these variables.
  absl::StatusOr<TensorMatch> Initialize(const std::string& path,
                                         const std::vector<std::string>& variables = {"transformer.a",
                                                                                      "transformer.b"}) {
    program_ = ProgramWith(variables);
    engine_ = std::make_unique<FakeEngine>();
    EXPECT_TRUE(engine_->Load(program_, {}).ok());
    return InitializeFrom(path, WantedBy(*engine_), *engine_);
  }
  float FirstOf(const std::string& name) { return engine_->ReadVariable("variable " + name)->floats()[0]; }

  graph::v1::StageProgram program_;
  std::unique_ptr<FakeEngine> engine_;
};

TEST_F(InitializeFromTest, ReadsAFileAndSaysWhatItLeaves) {
  const auto match = Initialize(WriteModel({{"transformer.a", Constant({3}, 4)},
                                            {"transformer.b", Constant({3}, 5)},
                                            {"lm_head.weight", Constant({7}, 6)}}));
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(FirstOf("transformer.a"), 4);
  EXPECT_EQ(FirstOf("transformer.b"), 5);
  EXPECT_THAT(match->unused, ElementsAre("lm_head.weight"));
}

struct Spelling {
  std::string what;
  std::string variable;
  std::string tensor;
};

class Spellings : public InitializeFromTest, public ::testing::WithParamInterface<Spelling> {};

TEST_P(Spellings, AreFound) {
  const auto match =
      Initialize(WriteModel({{GetParam().tensor, Constant({3}, 4)}, {"other", Constant({3}, 9)}}),
                 {GetParam().variable});
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(FirstOf(GetParam().variable), 4);
}

INSTANTIATE_TEST_SUITE_P(
    OfPublishedFiles, Spellings,
    ::testing::Values(
        Spelling{"Gpt2WithoutPrefix", "transformer.h.0.ln_1.weight", "h.0.ln_1.weight"},
        Spelling{"BertWithoutPrefix", "bert.embeddings.word_embeddings.weight",
                 "embeddings.word_embeddings.weight"},
        Spelling{"BertWithPrefix", "encoder.layer.0.output.dense.bias",
                 "bert.encoder.layer.0.output.dense.bias"},
        Spelling{"BertGamma", "bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma"},
        Spelling{"BertBetaWithoutPrefix", "bert.embeddings.LayerNorm.bias", "embeddings.LayerNorm.beta"},
        Spelling{"DecoderBias", "cls.predictions.bias", "cls.predictions.decoder.bias"},
        Spelling{"DataParallel", "layer1.0.conv1.weight", "module.layer1.0.conv1.weight"},
        Spelling{"DataParallelGpt2", "transformer.wte.weight", "module.transformer.wte.weight"},
        Spelling{"Torchvision", "layer1.0.bn1.running_mean", "layer1.0.bn1.running_mean"}),
    [](const auto& info) { return info.param.what; });

TEST_F(InitializeFromTest, TheNameItselfComesFirstAndNoTensorIsTakenTwice) {
  const std::string both = WriteModel({{"a", Constant({3}, 1)}, {"transformer.a", Constant({3}, 2)}});
  ASSERT_TRUE(Initialize(both, {"transformer.a"}).ok());
  EXPECT_EQ(FirstOf("transformer.a"), 2);
  ASSERT_TRUE(Initialize(both, {"transformer.a", "a"}).ok());
  EXPECT_EQ(FirstOf("a"), 1);
  const auto once = Initialize(WriteModel({{"a", Constant({3}, 1)}}), {"transformer.a", "a"});
  EXPECT_THAT(std::string(once.status().message()), HasSubstr("missing: transformer.a"));
}

TEST_F(InitializeFromTest, ListsWhatIsMissingMisshapedAndOfNoVariable) {
  const auto match = Initialize(WriteModel({{"a", Constant({1, 3}, 4)},
                                            {"b", AllocateTensor(graph::v1::INT64, {3})},
                                            {"stranger", Constant({2}, 0)}}),
                                {"transformer.a", "transformer.b", "transformer.c", "transformer.d"});
  EXPECT_EQ(match.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(match.status().message(),
            "model.initFrom: " + directory_ +
                "/initial.safetensors does not fit the model's 4 variables; missing: transformer.c, "
                "transformer.d; misshaped: a is FLOAT32[1, 3], the model needs FLOAT32[3], b is INT64[3], "
                "the model needs FLOAT32[3]; of no variable: stranger");
}

TEST_F(InitializeFromTest, ConvertsHalvesAndDoubles) {
  Tensor half = AllocateTensor(graph::v1::FLOAT16, {3});
  const uint16_t halves[] = {0x3555, 0xC000, 0x0001};  // 0.333251953125, -2, 2^-24
  std::memcpy(half.data.get(), halves, sizeof(halves));
  Tensor brain = AllocateTensor(graph::v1::BFLOAT16, {3});
  const uint16_t brains[] = {0x3EAB, 0xC000, 0x7F7F};
  std::memcpy(brain.data.get(), brains, sizeof(brains));
  ASSERT_TRUE(Initialize(WriteModel({{"a", half}, {"b", brain}})).ok());
  EXPECT_THAT(engine_->ReadVariable("variable transformer.a")->floats(),
              ElementsAre(0.333251953125F, -2.0F, 0x1p-24F));
  EXPECT_THAT(engine_->ReadVariable("variable transformer.b")->floats(),
              ElementsAre(0.333984375F, -2.0F, 0x1.FEp127F));
  Tensor wide = AllocateTensor(graph::v1::FLOAT64, {3});
  const double doubles[] = {0.1, -1e-50, 3};
  std::memcpy(wide.data.get(), doubles, sizeof(doubles));
  ASSERT_TRUE(Initialize(WriteModel({{"a", wide}, {"b", half}})).ok());
  EXPECT_EQ(engine_->ReadVariable("variable transformer.a")->floats()[0], 0.1F);
}

TEST_F(InitializeFromTest, ReadsShardsByTheIndexOrItsFolder) {
  WriteModel({{"a", Constant({3}, 1)}}, "model-1.safetensors");
  WriteModel({{"b", Constant({3}, 2)}}, "model-2.safetensors");
  const std::string index = directory_ + "/model.safetensors.index.json";
  WriteText(index, R"({"metadata": {"total_size": 24}, "weight_map":
                       {"a": "model-1.safetensors", "b": "model-2.safetensors"}})");
  for (const std::string& path : {index, directory_}) {
    const auto match = Initialize(path);
    ASSERT_TRUE(match.ok()) << match.status();
    EXPECT_EQ(FirstOf("transformer.b"), 2);
  }
  WriteText(index, R"({"weight_map": {"a": "model-1.safetensors", "b": "model-3.safetensors"}})");
  EXPECT_THAT(std::string(Initialize(index).status().message()),
              AllOf(HasSubstr("index.json names a shard"), HasSubstr("model-3.safetensors")));
}

TEST_F(InitializeFromTest, OldFilesHaveNoCountOfBatches) {
  const auto graph = ProgramWith({"bn1.weight", "bn1.num_batches_tracked"});
  std::vector<WantedTensor> model = {
      {.name = "bn1.weight", .shape = {3}},
      {.name = "bn1.num_batches_tracked", .dtype = graph::v1::INT64, .shape = {}, .trainable = false}};
  const std::map<std::string, TensorView> old = {{"bn1.weight", ViewOf(Constant({3}, 1))}};
  const auto match = MatchTensors("old", old, model, Matching::kPublished);
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_THAT(match->unset, ElementsAre("bn1.num_batches_tracked"));
  EXPECT_FALSE(MatchTensors("old", old, model, Matching::kExact).ok()) << "ours have it";
}

TEST_F(InitializeFromTest, ReadsACheckpointAndRefusesADamagedOne) {
  const auto match = Initialize(WriteModel({{"a", Constant({3}, 8)}, {"b", Constant({3}, 9)}}));
  ASSERT_TRUE(match.ok());
  const auto snapshot = TakeSnapshot(*engine_, 3);
  ASSERT_TRUE(snapshot.ok());
  const auto part = WritePart(directory_, 0, *snapshot);
  const auto checkpoint = AssembleCheckpoint(directory_, Info(3), {*part});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_TRUE(Initialize(*checkpoint).ok());
  EXPECT_EQ(FirstOf("transformer.a"), 8);

  std::fstream file(*checkpoint + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  const auto damaged = Initialize(*checkpoint);
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr("is not what manifest.json says"));
}

TEST_F(InitializeFromTest, AMissingFileOrAnEmptyFolderIsAnError) {
  const auto missing = Initialize(directory_ + "/nothing");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("model.initFrom: cannot open"));
  const auto empty = Initialize(directory_);
  EXPECT_THAT(std::string(empty.status().message()),
              HasSubstr(directory_ + " has neither model.safetensors nor model.safetensors.index.json"));
}

}  // namespace
}  // namespace fusion::worker
