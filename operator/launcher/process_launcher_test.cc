#include "operator/launcher/process_launcher.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/process.h"

namespace fusion::op {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

/// Runs shell scripts as workers and collects their ends.
class ProcessLauncherTest : public ::testing::Test {
 protected:
  void Launch(const std::string& script) {
    ProcessLauncherOptions options;
    options.command = [script](const WorkerSpec&) {
      return std::vector<std::string>{"/bin/sh", "-c", script};
    };
    options.log_file = [this](const WorkerSpec& w) {
      return absl::StrCat(folder_.path(), "/stage-", w.stage, ".log");
    };
    options.environment = {{"STAGE_COLOUR", "green"}};
    options.voluntary = absl::Milliseconds(50);
    options.grace = absl::Milliseconds(200);
    launcher_ = std::make_unique<ProcessLauncher>(std::move(options), [this](const WorkerExit& exit) {
      absl::MutexLock lock(&mutex_);
      exits_.push_back(exit);
    });
  }
  static WorkerSpec Worker(int stage) { return {"default/job", stage, "a1", 1}; }

  WorkerExit NextExit() {
    absl::MutexLock lock(&mutex_);
    const auto any = [this] { return !exits_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), kPatience)) return {};
    WorkerExit exit = exits_.front();
    exits_.erase(exits_.begin());
    return exit;
  }
  std::string Log(int stage) {
    std::ostringstream text;
    text << std::ifstream(absl::StrCat(folder_.path(), "/stage-", stage, ".log")).rdbuf();
    return text.str();
  }
  /// Waits until the worker's script has printed something.
  void AwaitLog(int stage) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (Log(stage).empty() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    ASSERT_FALSE(Log(stage).empty());
  }

  testing::ScratchFolder folder_;
  absl::Mutex mutex_;
  std::vector<WorkerExit> exits_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ProcessLauncher> launcher_;
};

TEST_F(ProcessLauncherTest, ACrashIsReportedWithItsStatusAndLastLines) {
  Launch("echo starting $STAGE_COLOUR; for i in 1 2 3 4 5 6 7 8 9 10 11; do echo line $i >&2; done; exit 3");
  ASSERT_TRUE(launcher_->Start(Worker(2)).ok());
  const WorkerExit exit = NextExit();
  EXPECT_EQ(exit.worker.stage, 2);
  EXPECT_EQ(exit.description, "exited with status 3");
  EXPECT_EQ(exit.last_lines.substr(0, 7), "line 2\n");
  EXPECT_EQ(exit.last_lines.substr(exit.last_lines.size() - 7), "line 11");
  EXPECT_EQ(Log(2).substr(0, 15), "starting green\n");
}

TEST_F(ProcessLauncherTest, ASignalIsNamed) {
  Launch("kill -9 $$");
  ASSERT_TRUE(launcher_->Start(Worker(0)).ok());
  EXPECT_EQ(NextExit().description, "was ended by signal 9 (Killed)");
}

TEST_F(ProcessLauncherTest, StartingAnAttemptTwiceStartsItOnce) {
  Launch("echo run; sleep 100");
  ASSERT_TRUE(launcher_->Start(Worker(0)).ok());
  const int pid = launcher_->PidOf(Worker(0).Name());
  ASSERT_TRUE(launcher_->Start(Worker(0)).ok());
  EXPECT_EQ(launcher_->PidOf(Worker(0).Name()), pid);
  EXPECT_EQ(launcher_->Running("default/job"), 1);
  kill(pid, SIGKILL);
  NextExit();
  ASSERT_TRUE(launcher_->WaitUntilGone("default/job", kPatience));
  ASSERT_TRUE(launcher_->Start(Worker(0)).ok());  // this attempt was made
  EXPECT_EQ(launcher_->Running("default/job"), 0);
  WorkerSpec next = Worker(0);
  next.incarnation = 2;
  ASSERT_TRUE(launcher_->Start(next).ok());
  EXPECT_EQ(launcher_->Running("default/job"), 1);
}

TEST_F(ProcessLauncherTest, AMissingProgramIsAnError) {
  ProcessLauncherOptions options;
  options.command = [](const WorkerSpec&) { return std::vector<std::string>{"/no/such/fusion-worker"}; };
  options.log_file = [this](const WorkerSpec&) { return folder_.path() + "/log"; };
  ProcessLauncher launcher(std::move(options), [](const WorkerExit&) { ADD_FAILURE() << "nothing ran"; });
  const absl::Status status = launcher.Start(Worker(0));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.message().find("/no/such/fusion-worker"), absl::string_view::npos);
  EXPECT_EQ(launcher.Running("default/job"), 0);
}

TEST_F(ProcessLauncherTest, TerminateAsksThenForces) {
  Launch("trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done");
  ASSERT_TRUE(launcher_->Start(Worker(0)).ok());
  AwaitLog(0);
  launcher_->Terminate("default/another");
  EXPECT_EQ(launcher_->Running("default/job"), 1);
  launcher_->Terminate("default/job");
  EXPECT_EQ(NextExit().description, "exited with status 7");
  EXPECT_TRUE(launcher_->WaitUntilGone("default/job", kPatience));

  Launch("trap '' TERM; echo up; while :; do sleep 0.01; done");
  ASSERT_TRUE(launcher_->Start(Worker(1)).ok());
  AwaitLog(1);
  launcher_->Terminate("default/job");
  EXPECT_EQ(NextExit().description, "was ended by signal 9 (Killed)");
}

TEST_F(ProcessLauncherTest, NothingOfAGroupOutlivesItsLeader) {
  Launch("sleep 1000 & echo $!; exit 0");
  ASSERT_TRUE(launcher_->Start(Worker(0)).ok());
  EXPECT_EQ(NextExit().description, "exited with status 0");
  const int orphan = std::stoi(Log(0));
  const absl::Time deadline = absl::Now() + kPatience;
  // An orphan's new parent reaps it; until then it is a zombie.
  const auto gone = [&] {
    std::ifstream stat(absl::StrCat("/proc/", orphan, "/stat"));
    std::string field;
    return !(stat >> field >> field >> field) || field == "Z";
  };
  while (!gone() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(gone());
}

TEST_F(ProcessLauncherTest, TheDestructorLeavesNoProcess) {
  Launch("trap '' TERM; echo up; while :; do sleep 0.01; done");
  for (int stage = 0; stage < 3; ++stage) ASSERT_TRUE(launcher_->Start(Worker(stage)).ok());
  AwaitLog(2);
  std::vector<int> pids;
  pids.reserve(3);
  for (int stage = 0; stage < 3; ++stage) pids.push_back(launcher_->PidOf(Worker(stage).Name()));
  launcher_.reset();
  for (const int pid : pids) EXPECT_EQ(kill(pid, 0), -1) << pid;
}

}  // namespace
}  // namespace fusion::op
