// Runs that end in the middle go on: killed, stopped by a full disk, with a damaged checkpoint, over another
// cut, or as another job. What comes out has the bits of the run that went through.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/process.h"

namespace fusion {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Process;
using testing::ProcessResult;

const std::string kFusionctl = std::string(FUSION_BINARY_DIR) + "/bin/fusionctl";
const seconds kPatience(120);

struct JobSettings {
  std::string name = "job";
  int compnodes = 2;
  int steps = 12;
  int every = 2;
  std::string more = "";  ///< of training, in flow style
};

std::string JobText(const JobSettings& settings) {
  std::string text = "apiVersion: fusion.dev/v1alpha1\nkind: FusionJob\nmetadata: {name: " + settings.name +
                     R"(}
spec:
  model: {family: gpt2, config: {layers: 2, heads: 2, width: 16, context: 16, vocabulary: 256, dropout: 0.1}}
  data: {kind: text, uri: text.txt}
  training:
    steps: )" + std::to_string(settings.steps) +
                     R"(
    batch: {global: 8, micro: 2}
    seed: 3
    optimizer: {type: AdamW, learningRate: 1e-3}
    validation: {everySteps: 4, batches: 1}
)" + settings.more + R"(  placement: {policy: EqualNumber}
  communication: {compression: {type: None}}
  checkpoint: {keep: 3, everySteps: )" +
                     std::to_string(settings.every) + "}\n";
  for (int i = 0; i < settings.compnodes; ++i) {
    text += "---\napiVersion: fusion.dev/v1alpha1\nkind: Compnode\nmetadata: {name: n" + std::to_string(i) +
            "}\nspec: {cluster: home, devices: [{name: cpu, memory: 4Gi, peakFlops: {fp32: 5e10}}]}\n";
  }
  return text;
}

class Resume : public ::testing::Test {
 protected:
  Resume() {
    std::string text;
    for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + i * i % 26);
    testing::WriteFile(folder_ / "text.txt", text);
  }

  std::vector<std::string> RunWords(const JobSettings& settings, const std::vector<std::string>& flags = {}) {
    const std::string file = folder_ / (settings.name + ".yaml");
    testing::WriteFile(file, JobText(settings));
    std::vector<std::string> words = {kFusionctl, "run", "-f", file, "--workdir", folder_ / "work"};
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }
  ProcessResult RunJob(const JobSettings& settings, const std::vector<std::string>& flags = {}) {
    return testing::Run(RunWords(settings, flags), folder_.path(), kPatience);
  }
  std::string JobFile(const std::string& job, const std::string& name) const {
    return folder_ / ("work/" + job + "/" + name);
  }
  /// Step, loss and validation loss of each line, as text, so that equality is equality of bits.
  std::vector<std::string> Curve(const std::string& job) const {
    std::vector<std::string> curve;
    std::istringstream lines(testing::ReadFile(JobFile(job, "metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const json value = json::parse(line);
      curve.push_back(value.at("step").dump() + " " + value.at("loss").dump() + " " +
                      value.value("validationLoss", json()).dump());
    }
    return curve;
  }
  /// Parameters and moments, as bytes.
  std::string Tensors(const std::string& job, int step) const {
    std::string bytes;
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
      const std::string file =
          testing::ReadFile(JobFile(job, "checkpoints/step-" + std::to_string(step) + "/" + name));
      EXPECT_FALSE(file.empty()) << job << " " << step << " " << name;
      bytes += file;
    }
    return bytes;
  }
  void ExpectSameEnd(const std::string& job, const std::string& reference, int step) {
    EXPECT_EQ(Curve(job), Curve(reference));
    EXPECT_TRUE(Tensors(job, step) == Tensors(reference, step)) << "parameters or moments differ";
  }

  testing::ScratchFolder folder_;
};

TEST_F(Resume, KilledAgainAndAgainTheRunGoesOnAndEndsWithTheSameBits) {
  const ProcessResult whole = RunJob({.name = "whole", .steps = 60, .every = 1});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;

  const JobSettings killed{.name = "killed", .steps = 60, .every = 1};
  for (const size_t lines : {5, 22, 40}) {
    Process run(RunWords(killed, {"--resume"}), folder_.path());
    const auto deadline = steady_clock::now() + kPatience;
    while (steady_clock::now() < deadline) {
      const std::string metrics = testing::ReadFile(JobFile("killed", "metrics.jsonl"));
      if (std::count(metrics.begin(), metrics.end(), '\n') >= static_cast<std::ptrdiff_t>(lines)) break;
      std::this_thread::sleep_for(milliseconds(1));
    }
    run.Signal(SIGKILL);
    EXPECT_EQ(run.Wait(seconds(10)).exit_code, 128 + SIGKILL) << "it had ended before it was killed";
  }
  const ProcessResult last = RunJob(killed, {"--resume"});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_THAT(last.err, HasSubstr("goes on after step "));
  ExpectSameEnd("killed", "whole", 60);
  EXPECT_EQ(Curve("killed").size(), 60);
}

TEST_F(Resume, ADamagedCheckpointIsSkippedAndTheOneBeforeTaken) {
  ASSERT_EQ(RunJob({.name = "whole"}).exit_code, 0);
  ASSERT_EQ(RunJob({.name = "job", .steps = 6}).exit_code, 0);
  const std::string newest = JobFile("job", "checkpoints/step-6");
  fs::resize_file(newest + "/optimizer.safetensors", 1000);
  const ProcessResult resumed = RunJob({.name = "job"}, {"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err,
              AllOf(HasSubstr(newest + " is damaged and was renamed to " + newest + ".damaged"),
                    HasSubstr("optimizer.safetensors has 1000 bytes, manifest.json says"),
                    HasSubstr("goes on after step 4 from " + JobFile("job", "checkpoints/step-4"))));
  ExpectSameEnd("job", "whole", 12);
  EXPECT_TRUE(fs::exists(newest + ".damaged/optimizer.safetensors"));

  // Nothing intact is left: nothing is begun anew, and nothing removed.
  for (const auto& entry : fs::directory_iterator(JobFile("job", "checkpoints"))) {
    fs::remove(entry.path() / "manifest.json");
  }
  const std::string metrics = testing::ReadFile(JobFile("job", "metrics.jsonl"));
  const ProcessResult hopeless = RunJob({.name = "job", .steps = 14}, {"--resume"});
  EXPECT_EQ(hopeless.exit_code, 1);
  EXPECT_THAT(hopeless.out, AllOf(HasSubstr("checkpoints is intact"), HasSubstr("step-12/manifest.json"),
                                  HasSubstr("step-8/manifest.json"), HasSubstr("--overwrite")));
  EXPECT_EQ(testing::ReadFile(JobFile("job", "metrics.jsonl")), metrics);
  EXPECT_TRUE(fs::exists(JobFile("job", "checkpoints/step-12/model.safetensors")));
}

TEST_F(Resume, AnotherCutAndAnotherJobGoOnWithTheSameBits) {
  ASSERT_EQ(RunJob({.name = "whole", .compnodes = 1}).exit_code, 0);
  ASSERT_EQ(RunJob({.name = "job", .compnodes = 1, .steps = 8}).exit_code, 0);

  const ProcessResult heir =
      RunJob({.name = "heir", .more = "    resumeFrom: {uri: work/job/checkpoints/step-8}\n"});
  ASSERT_EQ(heir.exit_code, 0) << heir.err;
  const std::vector<std::string> curve = Curve("whole");
  EXPECT_EQ(Curve("heir"), std::vector<std::string>(curve.begin() + 8, curve.end()));
  EXPECT_TRUE(Tensors("heir", 12) == Tensors("whole", 12));

  const ProcessResult recut = RunJob({.name = "job", .compnodes = 3}, {"--resume"});
  ASSERT_EQ(recut.exit_code, 0) << recut.err;
  EXPECT_EQ(json::parse(testing::ReadFile(JobFile("job", "plan.json"))).at("stages").size(), 3);
  ExpectSameEnd("job", "whole", 12);
}

TEST_F(Resume, AFileThatCannotBeWrittenFailsTheJobAndKeepsTheCheckpointBefore) {
  ASSERT_EQ(RunJob({.name = "whole", .steps = 8}).exit_code, 0);
  ASSERT_EQ(RunJob({.name = "job", .steps = 4}).exit_code, 0);
  std::string line = "ulimit -f 48; exec";
  for (const std::string& word : RunWords({.name = "job", .steps = 8}, {"--resume"}))
    line += " '" + word + "'";
  const ProcessResult limited = testing::Run({"/bin/bash", "-c", line}, folder_.path(), kPatience);
  EXPECT_EQ(limited.exit_code, 1);
  EXPECT_THAT(limited.out,
              AllOf(HasSubstr("CheckpointFailed"),
                    HasSubstr("could not write its part of the checkpoint after step 6"),
                    HasSubstr("/checkpoints/.step-6.partial/stage-"), HasSubstr("File too large")));
  EXPECT_TRUE(fs::exists(JobFile("job", "checkpoints/step-4/manifest.json")));
  EXPECT_FALSE(fs::exists(JobFile("job", "checkpoints/step-6")));
  const ProcessResult resumed = RunJob({.name = "job", .steps = 8}, {"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  ExpectSameEnd("job", "whole", 8);
}

}  // namespace
}  // namespace fusion
