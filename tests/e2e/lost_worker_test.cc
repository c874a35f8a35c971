// What becomes of a run whose processes are killed, stopped or interrupted: two real workers train an mlp.

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/process.h"

namespace fusion {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::Process;
using testing::ProcessResult;

const std::string kFusionctl = std::string(FUSION_BINARY_DIR) + "/bin/fusionctl";

bool Within(seconds patience, const std::function<bool()>& holds) {
  const auto deadline = steady_clock::now() + patience;
  while (!holds()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

/// A run of a job too long to end by itself.
class LostWorker : public ::testing::Test {
 protected:
  LostWorker() {
    std::string table = "a,b,target\n";
    for (int i = 0; i < 100; ++i)
      table += std::to_string(i % 7) + "," + std::to_string(i % 5) + "," + std::to_string(i % 3) + "\n";
    testing::WriteFile(folder_ / "table.csv", table);
    std::string text = "apiVersion: fusion.dev/v1alpha1\nkind: FusionJob\nmetadata: {name: " + name_ + R"(}
spec:
  model: {family: mlp, config: {inputs: 2, hidden: [8, 8], outputs: 1}}
  data: {kind: table, uri: table.csv}
  training: {steps: 100000000, batch: {global: 8, micro: 2}, optimizer: {type: SGD, learningRate: 1e-3}}
  placement: {policy: EqualNumber}
  communication: {compression: {type: None}}
  checkpoint: {everySteps: 50}
)";
    for (const char* node : {"n0", "n1"}) {
      text += std::string("---\napiVersion: fusion.dev/v1alpha1\nkind: Compnode\nmetadata: {name: ") + node +
              "}\nspec: {cluster: home, devices: [{name: cpu, memory: 4Gi, peakFlops: {fp32: 5e10}}]}\n";
    }
    testing::WriteFile(folder_ / "job.yaml", text);
  }

  /// Starts the run and waits until it trains.
  void Begin() {
    run_.emplace(std::vector<std::string>{kFusionctl, "run", "-f", folder_ / "job.yaml", "--workdir",
                                          folder_ / "work", "-o", "json"},
                 folder_.path());
    ASSERT_TRUE(Within(seconds(120), [&] {
      const std::string metrics = JobFile("metrics.jsonl");
      return std::filesystem::exists(metrics) && std::filesystem::file_size(metrics) > 4096;
    })) << run_->Err();
    for (int stage : {0, 1}) {
      const auto pids = Workers(stage);
      ASSERT_EQ(pids.size(), 1u);
      workers_.push_back(pids[0]);
    }
  }
  std::string JobFile(const std::string& name) const { return folder_ / ("work/" + name_ + "/" + name); }
  std::vector<pid_t> Workers(int stage) const {
    const std::string separator(1, '\0');  // of arguments in /proc/PID/cmdline
    return testing::ProcessesWith("default/" + name_ + separator + "--stage" + separator +
                                  std::to_string(stage));
  }
  bool NoneLeft() const { return Workers(0).empty() && Workers(1).empty(); }

  /// The run has failed within five seconds from `since`, by stage 1, and nothing of it is left.
  void ExpectFailedByStageOne(steady_clock::time_point since, const std::string& words) {
    const std::string object = folder_ / ("work/.objects/fusionjobs/default." + name_ + ".json");
    ASSERT_TRUE(Within(seconds(20), [&] {
      return json::parse(testing::ReadFile(object)).at("status").at("phase") == "Failed";
    }));
    EXPECT_LE(steady_clock::now() - since, seconds(5));
    const ProcessResult result = run_->Wait(seconds(30));
    EXPECT_EQ(result.exit_code, 1) << result.err;
    const json printed = json::parse(result.out);
    EXPECT_EQ(printed.at("phase"), "Failed");
    const std::string message = printed.at("message");
    EXPECT_EQ(message.rfind("stage 1 (compnode n1)", 0), 0u) << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_TRUE(NoneLeft());
  }

  testing::ScratchFolder folder_;
  const std::string name_ = "lost-" + std::to_string(getpid());
  std::optional<Process> run_;
  std::vector<pid_t> workers_;
};

TEST_F(LostWorker, AKilledWorkerFailsTheJobWithinFiveSeconds) {
  Begin();
  const auto since = steady_clock::now();
  kill(workers_[1], SIGKILL);
  ExpectFailedByStageOne(since, "was ended by signal 9 (Killed)");
}

TEST_F(LostWorker, AHungWorkerFailsTheJobWithinFiveSeconds) {
  Begin();
  const auto since = steady_clock::now();
  kill(workers_[1], SIGSTOP);
  ExpectFailedByStageOne(since, "has not answered");
}

TEST_F(LostWorker, AnInterruptLeavesNoProcessAndNoPartialFile) {
  Begin();
  run_->Signal(SIGINT);
  const ProcessResult result = run_->Wait(seconds(30));
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_TRUE(NoneLeft());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / ("work/" + name_))) {
    const std::string file = entry.path().filename().string();
    EXPECT_NE(file.front(), '.') << entry.path();
    EXPECT_EQ(file.find(".new"), std::string::npos) << entry.path();
  }
  for (std::istringstream lines(testing::ReadFile(JobFile("metrics.jsonl"))); lines.peek() != EOF;) {
    std::string line;
    std::getline(lines, line);
    EXPECT_TRUE(json::accept(line)) << line;
  }
}

TEST_F(LostWorker, WorkersDoNotOutliveAKilledRun) {
  Begin();
  run_->Signal(SIGKILL);
  run_->Wait(seconds(10));
  EXPECT_TRUE(Within(seconds(10), [&] { return NoneLeft(); }));
}

}  // namespace
}  // namespace fusion
