#include "worker/checkpoint/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "worker/checkpoint/checkpoint_fixture_for_test.h"
#include "worker/testing/fake_engine.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A manifest that fits what is in the folder now: damage that sums do not show.
void Reseal(const std::string& folder) {
  CheckpointManifest manifest;
  for (const std::string& name : NamesIn(folder)) {
    if (name == kManifestFile) continue;
    const std::string text = ReadText(folder + "/" + name);
    manifest[name] = {static_cast<int64_t>(text.size()),
                      Sha256({reinterpret_cast<const std::byte*>(text.data()), text.size()})};
  }
  WriteText(folder + "/manifest.json", ManifestJson(manifest));
}

void Replace(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = ReadText(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << path << " has no " << from;
  WriteText(path, text.replace(at, from.size(), to));
}

std::string Tensors(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

struct Damage {
  std::string what;
  std::function<void(const std::string& folder)> harm;
  std::string reason;
};

std::ostream& operator<<(std::ostream& out, const Damage& damage) { return out << damage.what; }

class RestoreTest : public CheckpointFixture {};
class DamagedCheckpoints : public RestoreTest, public ::testing::WithParamInterface<Damage> {};

TEST_P(DamagedCheckpoints, AreSkippedWithThePathAndTheReason) {
  ASSERT_TRUE(Save(5, 1).ok());
  const auto newer = Save(10, 2, /*shard_bytes=*/16);
  ASSERT_TRUE(newer.ok()) << newer.status();
  ASSERT_TRUE(VerifyCheckpoint(*newer).ok());
  GetParam().harm(*newer);
  const auto search = FindNewestCheckpoint(directory_);
  ASSERT_TRUE(search.ok()) << search.status();
  ASSERT_TRUE(search->newest.has_value());
  EXPECT_EQ(search->newest->path, directory_ + "/step-5");
  EXPECT_EQ(search->newest->state.step, 5);
  ASSERT_EQ(search->damaged.size(), 1);
  EXPECT_EQ(search->damaged[0].path, *newer);
  EXPECT_THAT(search->damaged[0].reason, AllOf(HasSubstr(*newer), HasSubstr(GetParam().reason)));
}

const char kShard[] = "/model-00001-of-00002.safetensors";

INSTANTIATE_TEST_SUITE_P(
    Kinds, DamagedCheckpoints,
    ::testing::Values(
        Damage{"CutOff", [](const auto& f) { fs::resize_file(f + kShard, fs::file_size(f + kShard) - 1); },
               "was cut off or changed"},
        Damage{"Emptied", [](const auto& f) { fs::resize_file(f + "/optimizer.safetensors", 0); },
               "has 0 bytes"},
        Damage{"LongerFile",
               [](const auto& f) { WriteText(f + "/config.json", ReadText(f + "/config.json") + " "); },
               "was cut off or changed"},
        Damage{"AFlippedBit",
               [](const auto& f) {
                 std::string text = ReadText(f + kShard);
                 text.back() ^= 1;
                 WriteText(f + kShard, text);
               },
               "is not what manifest.json says (SHA-256)"},
        Damage{"AWrongSum",
               [](const auto& f) { Replace(f + "/manifest.json", "\"sha256\": \"", "\"sha256\": \"0"); },
               "is not 64 lower-case"},
        Damage{"AMissingShard", [](const auto& f) { fs::remove(f + kShard); }, "No such file"},
        Damage{"AMissingState", [](const auto& f) { fs::remove(f + "/training-state.json"); },
               "No such file"},
        Damage{"NoManifest", [](const auto& f) { fs::remove(f + "/manifest.json"); }, "No such file"},
        Damage{"AManifestOfNothing", [](const auto& f) { WriteText(f + "/manifest.json", ""); },
               "manifest.json: it is not a JSON object"},
        Damage{"AFolderAsManifest",
               [](const auto& f) {
                 fs::remove(f + "/manifest.json");
                 fs::create_directory(f + "/manifest.json");
               },
               "manifest.json"},
        Damage{"AnEmptyFolder",
               [](const auto& f) {
                 fs::remove_all(f);
                 fs::create_directory(f);
               },
               "manifest.json"},
        Damage{"AFileAsFolder",
               [](const auto& f) {
                 fs::remove_all(f);
                 WriteText(f, "x");
               },
               "manifest.json"},
        Damage{"ASealWithoutAnOptimizer",
               [](const auto& f) {
                 fs::remove(f + "/optimizer.safetensors");
                 Reseal(f);
               },
               "does not list optimizer.safetensors"},
        Damage{"ASealWithoutAModel",
               [](const auto& f) {
                 fs::remove(f + "/model.safetensors.index.json");
                 Reseal(f);
               },
               "does not list model.safetensors"},
        Damage{"ASealWithoutAShard",
               [](const auto& f) {
                 fs::remove(f + kShard);
                 Reseal(f);
               },
               "does not list model-00001-of-00002.safetensors"},
        Damage{"StateOfAnotherStep",
               [](const auto& f) {
                 Replace(f + "/training-state.json", "\"step\": 10", "\"step\": 11");
                 Reseal(f);
               },
               "training-state.json is of step 11"},
        Damage{"StateWithoutASeed",
               [](const auto& f) {
                 Replace(f + "/training-state.json", "\"seed\"", "\"seat\"");
                 Reseal(f);
               },
               "training-state.json: 'seed' is not an integer"},
        Damage{"StateOfBytes",
               [](const auto& f) {
                 WriteText(f + "/training-state.json", std::string("\x80\x00\xff", 3));
                 Reseal(f);
               },
               "training-state.json: it is not a JSON object"},
        Damage{"AnIndexThatIsAList",
               [](const auto& f) {
                 WriteText(f + "/model.safetensors.index.json", "[]");
                 Reseal(f);
               },
               "index.json: it is not a JSON object"},
        Damage{"AnIndexOfAnotherTensor",
               [](const auto& f) {
                 Replace(f + "/model.safetensors.index.json", "layer.0", "layer.7");
                 Reseal(f);
               },
               "tensor 'layer.0' is in model-00001-of-00002.safetensors, the index has it nowhere"},
        Damage{"AHeaderBeyondTheFile",
               [](const auto& f) {
                 WriteText(f + "/optimizer.safetensors", std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8));
                 Reseal(f);
               },
               "does not fit into 8"},
        Damage{"AHeaderOfText",
               [](const auto& f) {
                 WriteText(f + "/optimizer.safetensors", Tensors("weights!", ""));
                 Reseal(f);
               },
               "the header is not a JSON object"},
        Damage{"TensorsThatOverlap",
               [](const auto& f) {
                 WriteText(f + "/optimizer.safetensors",
                           Tensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                   R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                                   "123456"));
                 Reseal(f);
               },
               "overlap"},
        Damage{"AShapeThatOverflows",
               [](const auto& f) {
                 WriteText(
                     f + "/optimizer.safetensors",
                     Tensors(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
                             ""));
                 Reseal(f);
               },
               "overflows"}),
    [](const auto& info) { return info.param.what; });

TEST_F(RestoreTest, TheNewestIsTheHighestStep) {
  for (const int64_t step : {9, 10, 100}) ASSERT_TRUE(Save(step, 1).ok());
  for (const char* other :
       {"step-", "step-abc", "step-0200", "step-300.damaged", ".step-400.partial", "latest"}) {
    fs::create_directories(directory_ + "/" + other);
  }
  const auto search = FindNewestCheckpoint(directory_);
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_EQ(search->newest->state.step, 100);
  EXPECT_THAT(search->damaged, IsEmpty());
}

TEST_F(RestoreTest, NoDirectoryIsNoCheckpoint) {
  const auto search = FindNewestCheckpoint(directory_ + "/none");
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_FALSE(search->newest.has_value());
  WriteText(directory_, "a file");
  EXPECT_THAT(std::string(FindNewestCheckpoint(directory_).status().message()), HasSubstr(directory_));
}

TEST_F(RestoreTest, ADamagedOneIsSetAside) {
  ASSERT_TRUE(Save(5, 1).ok());
  fs::remove(directory_ + "/step-5/manifest.json");
  fs::create_directories(directory_ + "/step-5.damaged/old");
  const auto aside = SetAside({directory_ + "/step-5", "why"});
  ASSERT_TRUE(aside.ok()) << aside.status();
  EXPECT_THAT(NamesIn(directory_), ElementsAre("step-5.damaged"));
  EXPECT_FALSE(fs::exists(*aside + "/old"));
  EXPECT_THAT(std::string(SetAside({directory_ + "/step-6", "why"}).status().message()),
              HasSubstr(directory_ + "/step-6"));
}

TEST_F(RestoreTest, SetsVariablesAndTheOptimizersState) {
  const auto program = ProgramWith({"a", "a.b"});
  FakeEngine engine;
  ASSERT_TRUE(engine.Load(program, {}).ok());
  ASSERT_TRUE(engine.WriteVariable("variable a", Constant({3}, 7)).ok());
  ASSERT_TRUE(
      engine.WriteOptimizerState({{"a.exp_avg", Constant({3}, 8)}, {"a.b.exp_avg", Constant({3}, 9)}}).ok());
  const auto part = WritePart(directory_, 0, *TakeSnapshot(engine, 4));
  const auto path = AssembleCheckpoint(directory_, Info(4, /*shard_bytes=*/12), {*part});
  ASSERT_TRUE(path.ok()) << path.status();

  FakeEngine other;
  ASSERT_TRUE(other.Load(program, {}).ok());
  const absl::Status restored = RestoreCheckpoint(*path, WantedBy(other), other);
  ASSERT_TRUE(restored.ok()) << restored;
  EXPECT_EQ(other.ReadVariable("variable a")->floats()[2], 7);
  const auto state = other.ReadOptimizerState();
  ASSERT_EQ(state->size(), 2);
  EXPECT_EQ((*state)[0].tensor.floats()[0] + (*state)[1].tensor.floats()[0], 17);

  FakeEngine different;
  const auto larger = ProgramWith({"a", "c"});
  ASSERT_TRUE(different.Load(larger, {}).ok());
  EXPECT_THAT(std::string(RestoreCheckpoint(*path, WantedBy(different), different).message()),
              AllOf(HasSubstr(*path), HasSubstr("missing: c; of no variable: a.b")));
  EXPECT_TRUE(ReadFeedbackFile(*path)->empty());
}

TEST_F(RestoreTest, OnlyTheSameTrainingGoesOn) {
  const auto path = Save(10, 1);
  const auto state = VerifyCheckpoint(*path);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->samples, 640);
  const FoundCheckpoint found{*path, *state};
  v1alpha1::FusionJobSpec spec;
  spec.mutable_training()->set_seed(7);
  spec.mutable_training()->set_steps(10);
  spec.mutable_training()->mutable_optimizer()->set_type(v1alpha1::Optimizer::AdamW);
  EXPECT_TRUE(CheckContinues(found, spec).ok()) << CheckContinues(found, spec);
  spec.mutable_training()->set_steps(9);
  EXPECT_THAT(std::string(CheckContinues(found, spec).message()),
              HasSubstr("step-10 is after step 10, beyond training.steps 9"));
  spec.mutable_training()->set_steps(20);
  spec.mutable_training()->set_seed(8);
  EXPECT_THAT(std::string(CheckContinues(found, spec).message()),
              HasSubstr("training.seed 7, the job has 8"));
  spec.mutable_training()->set_seed(7);
  spec.mutable_training()->mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
  EXPECT_THAT(std::string(CheckContinues(found, spec).message()), HasSubstr("AdamW, the job has SGD"));
}

}  // namespace
}  // namespace fusion::worker
