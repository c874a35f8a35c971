// Real faults of writing: a full disk, a folder that may not be written, a limit on file sizes, a process
// that is killed. Whatever happens, the checkpoint before is there and is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/checkpoint/checkpoint_fixture_for_test.h"
#include "worker/checkpoint/restore.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uid_t kNobody = 65534;

// What `work` says in a process of its own, whose limits and user it may change.
std::string InChild(const std::function<absl::Status()>& work) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = work().ToString();
    const ssize_t written = write(ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = read(ends[0], buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return text;
}

class CheckpointFaultsTest : public CheckpointFixture {
 protected:
  void SetUp() override { ASSERT_TRUE(Save(5, 1).ok()); }

  void ExpectStepFiveAlone() {
    EXPECT_THAT(NamesIn(directory_), ElementsAre("step-5"));
    const auto search = FindNewestCheckpoint(directory_);
    ASSERT_TRUE(search.ok() && search->newest.has_value());
    EXPECT_EQ(search->newest->state.step, 5);
  }
};

TEST_F(CheckpointFaultsTest, AFullDiskIsSaidWithThePath) {
  for (const char* name :
       {"model.safetensors", "optimizer.safetensors", "training-state.json", "manifest.json"}) {
    SCOPED_TRACE(name);
    const auto part = WritePart(directory_, 0, SnapshotOf(10, "x", 1));
    fs::create_symlink("/dev/full", fs::path(*part).parent_path() / name);
    const auto full = AssembleCheckpoint(directory_, Info(10), {*part});
    EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted) << full.status();
    EXPECT_THAT(std::string(full.status().message()),
                AllOf(HasSubstr(directory_ + "/.step-10.partial/" + name), HasSubstr("No space left")));
    ExpectStepFiveAlone();
  }
}

TEST_F(CheckpointFaultsTest, AFolderThatMayNotBeWrittenIsSaidWithThePath) {
  fs::permissions(directory_, fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read |
                                  fs::perms::others_exec);
  const std::string said = InChild([this]() -> absl::Status {
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) {
      return absl::InternalError("cannot become another user");
    }
    return Save(10, 2).status();
  });
  EXPECT_THAT(said, AllOf(HasSubstr("PERMISSION_DENIED: cannot create " + directory_ + "/.step-10.partial"),
                          HasSubstr("Permission denied")));
  fs::permissions(directory_, fs::perms::owner_all);
  ExpectStepFiveAlone();
}

TEST_F(CheckpointFaultsTest, ALimitOnFileSizesIsSaidWithThePath) {
  const std::string said = InChild([this]() -> absl::Status {
    signal(SIGXFSZ, SIG_IGN);  // as fusion-worker does
    const rlimit limit{.rlim_cur = 100, .rlim_max = 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    return Save(10, 2).status();
  });
  EXPECT_THAT(said, AllOf(HasSubstr("cannot write " + directory_ + "/.step-10.partial/stage-0.safetensors"),
                          HasSubstr("File too large")));
  ASSERT_TRUE(RemovePartialCheckpoints(directory_).ok());
  ExpectStepFiveAlone();
}

TEST_F(CheckpointFaultsTest, AProcessKilledAtAnyMomentLeavesAWholeCheckpoint) {
  const absl::Time begin = absl::Now();
  ASSERT_TRUE(Save(5, 1).ok());
  const absl::Duration one = absl::Now() - begin;
  int64_t newest = 5;
  int partial = 0;
  for (int round = 0; round < 16; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (int64_t step = newest;; ++step) {  // the first one is replaced
        if (!Save(step, static_cast<float>(step)).ok()) _exit(1);
      }
    }
    absl::SleepFor((0.3 + 0.23 * round) * one);  // the moment is what is tested
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself: a checkpoint could not be written";

    for (const std::string& name : NamesIn(directory_)) partial += name.front() == '.' ? 1 : 0;
    ASSERT_TRUE(RemovePartialCheckpoints(directory_).ok());
    const auto search = FindNewestCheckpoint(directory_);
    ASSERT_TRUE(search.ok() && search->newest.has_value()) << search.status();
    EXPECT_TRUE(search->damaged.empty()) << search->damaged[0].reason;
    EXPECT_GE(search->newest->state.step, newest);
    newest = search->newest->state.step;
    for (const std::string& name : NamesIn(directory_)) EXPECT_EQ(name.rfind("step-", 0), 0) << name;
  }
  EXPECT_GT(newest, 5) << "nothing was ever written";
  EXPECT_GT(partial, 0) << "nothing was ever interrupted";
}

}  // namespace
}  // namespace fusion::worker
