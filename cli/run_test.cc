// `fusionctl run` with real worker processes whose engine computes nothing (fusion-worker --engine none).
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/support/process.h"

namespace fusion::cli {
namespace {

namespace fs = std::filesystem;

using fusion::testing::ProcessResult;
using fusion::testing::ScratchFolder;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kProfile[] =
    R"({"flops": 5e10, "lambda": {"matmul": 0.9, "convolution": 0.8, "elementwise": 0.1, "reduction": 0.1,)"
    R"( "memory": 0.1}, "memoryBytesPerSecond": 1e10, "operatorSeconds": 9e-6, "updateSecondsPerParameter": 2e-9,)"
    R"( "operators": {}})";

std::string JobText(const std::string& name, int64_t steps) {
  return absl::StrCat(R"(apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: )",
                      name, R"(}
spec:
  model: {family: mlp, config: {inputs: 3, hidden: [8, 8], outputs: 1}}
  data: {kind: table, uri: table.csv}
  training:
    steps: )",
                      steps, R"(
    batch: {global: 8, micro: 2}
    optimizer: {type: SGD, learningRate: 0.01}
  placement: {policy: EqualNumber}
---
)");
}

std::string CompnodeText(const std::string& name, const std::string& memory) {
  return absl::StrCat("apiVersion: fusion.dev/v1alpha1\nkind: Compnode\nmetadata: {name: ", name,
                      "}\nspec:\n  cluster: home\n  devices: [{name: cpu, memory: ", memory,
                      ", peakFlops: {fp32: 5e10}}]\n---\n");
}

class RunTest : public ::testing::Test {
 protected:
  RunTest() : name_(absl::StrCat("job-", getpid())) {
    fs::create_directory(folder_ / "captured");
    fs::create_directory(folder_ / "get");
    std::string table = "a,b,c,target\n";
    for (int i = 0; i < 100; ++i) absl::StrAppend(&table, i, ",", i % 7, ",", i % 3, ",", 2 * i, "\n");
    fusion::testing::WriteFile(folder_ / "table.csv", table);
    fusion::testing::WriteFile(
        folder_ / "worker",
        absl::StrCat("#!/bin/sh\nif [ \"$1\" = profile ]; then echo '", kProfile, "'; else exec ",
                     FUSION_BINARY_DIR, "/bin/fusion-worker \"$@\" --engine none; fi\n"));
    chmod((folder_ / "worker").c_str(), 0755);
  }

  std::string WriteJob(int64_t steps, const std::string& memory = "1Gi") const {
    fusion::testing::WriteFile(folder_ / "job.yaml", JobText(name_, steps) + CompnodeText("left", memory) +
                                                         CompnodeText("right", memory));
    return folder_ / "job.yaml";
  }
  std::vector<std::string> Words(std::vector<std::string> arguments) const {
    std::vector<std::string> words = {"/usr/bin/env", absl::StrCat("FUSION_WORKER=", folder_ / "worker"),
                                      FUSION_BINARY_DIR "/bin/fusionctl"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    words.insert(words.end(), {"--workdir", Workdir()});
    return words;
  }
  ProcessResult Ctl(const std::vector<std::string>& arguments) const {
    return fusion::testing::Run(Words(arguments), folder_ / "captured");
  }
  std::string Workdir() const { return folder_ / "work"; }
  std::string JobFolder() const { return absl::StrCat(Workdir(), "/", name_); }

  /// What `get` says of the job now; null before there is one.
  json Get() const {
    const ProcessResult result =
        fusion::testing::Run(Words({"get", "job", name_, "-o", "json"}), folder_ / "get");
    return result.exit_code == 0 ? json::parse(result.out) : json();
  }
  static bool Await(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (absl::Now() < deadline) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return false;
  }
  /// Until steps are done and `get` says so while the run goes on.
  bool AwaitSteps() const {
    return Await([&] {
      std::error_code none;
      if (fs::file_size(JobFolder() + "/metrics.jsonl", none) == 0 || none) return false;
      const json job = Get();
      return job.is_object() && job.value("/status/phase"_json_pointer, "") == "Running";
    });
  }
  /// Workers carry the job's name, NAMESPACE/NAME, in their command lines.
  std::vector<pid_t> Workers() const {
    return fusion::testing::ProcessesWith(absl::StrCat("default/", name_));
  }
  std::set<std::string> FilesOfJob() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(JobFolder()))
      names.insert(entry.path().filename().string());
    return names;
  }

  const std::string name_;
  ScratchFolder folder_;
};

/// The port after --broker in a worker's command line.
int BrokerPort(pid_t worker) {
  const std::vector<std::string> words =
      absl::StrSplit(fusion::testing::ReadFile(absl::StrCat("/proc/", worker, "/cmdline")), '\0');
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    int port = 0;
    if (words[i] == "--broker" && absl::SimpleAtoi(words[i + 1].substr(words[i + 1].rfind(':') + 1), &port))
      return port;
  }
  return 0;
}

bool AcceptsConnections(int port) {
  const int socket_descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool accepted =
      connect(socket_descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(socket_descriptor);
  return accepted;
}

TEST_F(RunTest, JobsRunInFileOrder) {
  fusion::testing::WriteFile(folder_ / "jobs.yaml",
                             JobText("second-by-name", 3) + JobText("first-by-name", 2) +
                                 CompnodeText("left", "1Gi") + CompnodeText("right", "1Gi"));
  const ProcessResult result = Ctl({"run", "-f", folder_ / "jobs.yaml", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> lines = absl::StrSplit(result.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(json::parse(lines[0])["job"], "second-by-name");
  EXPECT_EQ(json::parse(lines[0])["phase"], "Succeeded");
  EXPECT_EQ(json::parse(lines[0])["step"], 3);
  EXPECT_EQ(json::parse(lines[1])["job"], "first-by-name");
  EXPECT_TRUE(fs::exists(json::parse(lines[1])["plan"].get<std::string>()));
  EXPECT_TRUE(fs::exists(json::parse(lines[1])["checkpoint"].get<std::string>()));
  EXPECT_THAT(result.err, HasSubstr("first-by-name: Running"));
}

TEST_F(RunTest, OverwriteAndReplay) {
  const std::string job = WriteJob(2);
  const ProcessResult first = Ctl({"run", "-f", job});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("Succeeded after 2 steps"));
  EXPECT_EQ(Ctl({"run", "-f", job}).exit_code, 2);
  const std::string plan = Ctl({"plan", "-f", job, "-o", "json"}).out;
  fusion::testing::WriteFile(folder_ / "plan.json", plan);
  const ProcessResult replayed = Ctl({"run", "-f", job, "--overwrite", "--plan", folder_ / "plan.json"});
  ASSERT_EQ(replayed.exit_code, 0) << replayed.err;
  EXPECT_EQ(json::parse(fusion::testing::ReadFile(JobFolder() + "/plan.json"))["stages"],
            json::parse(plan)["stages"]);
}

TEST_F(RunTest, CtrlCLeavesNoProcessPortOrPartialFile) {
  fusion::testing::Process run(Words({"run", "-f", WriteJob(1'000'000)}), folder_ / "captured");
  ASSERT_TRUE(AwaitSteps()) << run.Err();
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 2U);
  const int port = BrokerPort(workers[0]);
  EXPECT_TRUE(AcceptsConnections(port));
  run.Signal(SIGINT);
  const ProcessResult result = run.Wait(std::chrono::seconds(30));
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_TRUE(Workers().empty());
  EXPECT_FALSE(AcceptsConnections(port));
  EXPECT_EQ(FilesOfJob(), (std::set<std::string>{"checkpoints", "logs", "metrics.jsonl", "plan.json"}));
  EXPECT_TRUE(fs::is_empty(JobFolder() + "/checkpoints"));
}

TEST_F(RunTest, AWorkersDeathFailsTheJobSoon) {
  fusion::testing::Process run(Words({"run", "-f", WriteJob(1'000'000), "-o", "json"}), folder_ / "captured");
  ASSERT_TRUE(AwaitSteps()) << run.Err();
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 2U);
  const absl::Time killed = absl::Now();
  kill(workers[1], SIGKILL);
  const ProcessResult result = run.Wait(std::chrono::seconds(30));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(10));
  EXPECT_EQ(result.exit_code, 1);
  const json outcome = json::parse(result.out);
  EXPECT_EQ(outcome["phase"], "Failed");
  EXPECT_THAT(outcome["message"].get<std::string>(), HasSubstr("stage "));
  EXPECT_TRUE(Workers().empty());
}

TEST_F(RunTest, WhatFitsNowhereFailsWithTheReason) {
  const ProcessResult result = Ctl({"run", "-f", WriteJob(2, "1Ki")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr(absl::StrCat(name_, ": Failed: Infeasible: ")));
  EXPECT_TRUE(Workers().empty());
}

}  // namespace
}  // namespace fusion::cli
