#include "worker/checkpoint/checkpoint_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace fusion::worker {
namespace {

using ::testing::HasSubstr;

const std::string kDigest(64, 'a');

TEST(CheckpointJson, ManifestsReadAsWritten) {
  const CheckpointManifest manifest = {{"a.json", {3, kDigest}}, {"b", {0, std::string(64, '0')}}};
  const auto read = ParseManifest(ManifestJson(manifest));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2);
  EXPECT_EQ(read->at("a.json").bytes, 3);
  EXPECT_EQ(read->at("a.json").sha256, kDigest);
}

TEST(CheckpointJson, TrainingStatesReadAsWritten) {
  const TrainingState state = {.job = "default/j",
                               .step = 20,
                               .incarnation = 3,
                               .seed = -4,
                               .samples = 160,
                               .global_batch = 8,
                               .optimizer = "SGD"};
  const auto read = ParseTrainingState(TrainingStateJson(state));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(TrainingStateJson(*read), TrainingStateJson(state));
  EXPECT_EQ(read->seed, -4);
  EXPECT_EQ(read->optimizer, "SGD");
}

TEST(CheckpointJson, IndexesReadAsWritten) {
  const ShardIndex index = {{"a", "1.safetensors"}, {"b", "2.safetensors"}};
  EXPECT_EQ(*ParseShardIndex(ShardIndexJson(index, 10)), index);
}

struct Malformed {
  std::string what;
  absl::Status (*parse)(const std::string&);
  std::string text;
  std::string message;
};

absl::Status Manifest(const std::string& text) { return ParseManifest(text).status(); }
absl::Status State(const std::string& text) { return ParseTrainingState(text).status(); }
absl::Status Index(const std::string& text) { return ParseShardIndex(text).status(); }

std::string Entry(const std::string& name, const std::string& entry) {
  return "{\"version\": 1, \"files\": {\"" + name + "\": " + entry + "}}";
}

class MalformedJson : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedJson, IsRefusedWithTheReason) {
  const absl::Status status = GetParam().parse(GetParam().text);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Files, MalformedJson,
    ::testing::Values(
        Malformed{"EmptyManifest", Manifest, "", "not a JSON object"},
        Malformed{"CutOffManifest", Manifest, R"({"version": 1, "files": {"a)", "not a JSON object"},
        Malformed{"ManifestOfBytes", Manifest, std::string("\xff\xfe\0\x01", 4), "not a JSON object"},
        Malformed{"ManifestWithoutVersion", Manifest, R"({"files": {}})", "'version' is not an integer"},
        Malformed{"ManifestOfTheFuture", Manifest, R"({"version": 2, "files": {}})", "'version' is 2"},
        Malformed{"ManifestWithoutFiles", Manifest, R"({"version": 1, "files": []})",
                  "'files' is not an object"},
        Malformed{"ManifestThatLeadsAway", Manifest, Entry("../x", "{}"), "'../x' is not a plain file name"},
        Malformed{"ManifestOfAHiddenFile", Manifest, Entry(".x", "{}"), "'.x' is not a plain file name"},
        Malformed{"ManifestEntryOfText", Manifest, Entry("x", "\"sum\""), "file 'x': is not an object"},
        Malformed{"ManifestWithANegativeSize", Manifest, Entry("x", R"({"bytes": -1, "sha256": ""})"),
                  "file 'x': 'bytes' is -1, below 0"},
        Malformed{"ManifestWithAHugeSize", Manifest,
                  Entry("x", R"({"bytes": 18446744073709551615, "sha256": ""})"),
                  "'bytes' is not an integer"},
        Malformed{"ManifestWithAShortSum", Manifest, Entry("x", R"({"bytes": 1, "sha256": "abc"})"),
                  "is not 64 lower-case hexadecimal digits"},
        Malformed{"ManifestWithANumberAsSum", Manifest, Entry("x", R"({"bytes": 1, "sha256": 7})"),
                  "'sha256' is not a string"},
        Malformed{"StateOfAList", State, "[1, 2]", "not a JSON object"},
        Malformed{"StateWithoutAStep", State, R"({"version": 1, "seed": 1, "samples": 1})",
                  "'step' is not an integer"},
        Malformed{"StateWithAFractionOfAStep", State,
                  R"({"version": 1, "step": 1.5, "seed": 1, "samples": 1})", "'step' is not an integer"},
        Malformed{"StateWithANegativeStep", State, R"({"version": 1, "step": -3, "seed": 1, "samples": 1})",
                  "'step' is -3, below 0"},
        Malformed{"StateWithATextSeed", State, R"({"version": 1, "step": 3, "seed": "1", "samples": 1})",
                  "'seed' is not an integer"},
        Malformed{"StateWithHugeSamples", State, R"({"version": 1, "step": 3, "seed": 1, "samples": 1e300})",
                  "'samples' is not an integer"},
        Malformed{"DeepState", State, std::string(100000, '['), "not a JSON object"},
        Malformed{"IndexWithoutAMap", Index, R"({"metadata": {}})", "'weight_map' is not an object"},
        Malformed{"EmptyIndex", Index, R"({"weight_map": {}})", "'weight_map' is not an object with tensors"},
        Malformed{"IndexOfNumbers", Index, R"({"weight_map": {"a": 1}})", "tensor 'a' has no file name"},
        Malformed{"IndexThatLeadsAway", Index, R"({"weight_map": {"a": "/etc/passwd"}})",
                  "tensor 'a': '/etc/passwd' is not a plain file name"}),
    [](const auto& info) { return info.param.what; });

}  // namespace
}  // namespace fusion::worker
