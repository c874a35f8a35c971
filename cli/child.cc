#include "cli/child.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace fusion::cli {
namespace {

constexpr size_t kMaxOutput = size_t{64} << 20;

/// Reads until the other end closes; an error when the time is over or Ctrl-C comes first.
absl::StatusOr<std::string> ReadAll(int descriptor, const Interrupt& interrupt, absl::Time deadline) {
  std::string text;
  while (true) {
    pollfd wait[2] = {{descriptor, POLLIN, 0}, {interrupt.descriptor(), POLLIN, 0}};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0) return absl::DeadlineExceededError("takes too long");
    if (poll(wait, 2, static_cast<int>(left)) < 0 && errno != EINTR)
      return absl::InternalError(std::strerror(errno));
    if (wait[1].revents != 0) return absl::CancelledError("interrupted");
    if (wait[0].revents == 0) continue;
    char buffer[65536];
    const ssize_t count = read(descriptor, buffer, sizeof(buffer));
    if (count == 0) return text;
    if (count < 0 && errno != EINTR) return absl::InternalError(std::strerror(errno));
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
    if (text.size() > kMaxOutput) return absl::ResourceExhaustedError("prints too much");
  }
}

std::string BesideThisProgram(const std::string& name) {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / name).string();
}

}  // namespace

absl::StatusOr<std::string> CaptureOutput(const std::vector<std::string>& arguments, absl::Duration limit,
                                          const Interrupt& interrupt) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ResourceExhaustedError(std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A process group of its own: a terminal's Ctrl-C reaches us alone, and we end the child.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int failure = posix_spawn(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  if (failure != 0) {
    close(ends[0]);
    return absl::FailedPreconditionError(
        absl::StrCat(arguments[0], " cannot be started: ", std::strerror(failure)));
  }
  absl::StatusOr<std::string> output = ReadAll(ends[0], interrupt, absl::Now() + limit);
  close(ends[0]);
  if (!output.ok()) kill(-pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!output.ok())
    return absl::Status(output.status().code(), absl::StrCat(arguments[0], " ", output.status().message()));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::FailedPreconditionError(
        WIFEXITED(status) ? absl::StrCat(arguments[0], " ended with status ", WEXITSTATUS(status))
                          : absl::StrCat(arguments[0], " was ended by signal ", WTERMSIG(status)));
  }
  return output;
}

absl::StatusOr<std::string> WorkerProgram() {
  const char* chosen = std::getenv("FUSION_WORKER");
  const std::string path = chosen != nullptr ? chosen : BesideThisProgram("fusion-worker");
  if (access(path.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, " cannot be run: ", std::strerror(errno),
                                                      "; build it, or name it in FUSION_WORKER"));
  }
  return path;
}

absl::StatusOr<std::string> JaxWorkerProgram() {
  constexpr char kName[] = "fusion-jax-worker";
  std::vector<std::string> candidates;
  if (const char* chosen = std::getenv("FUSION_JAX_WORKER"); chosen != nullptr) {
    candidates = {chosen};
  } else {
    candidates = {BesideThisProgram(kName)};
    if (const char* path = std::getenv("PATH"); path != nullptr) {
      for (const absl::string_view folder : absl::StrSplit(path, ':', absl::SkipEmpty())) {
        candidates.push_back(absl::StrCat(folder, "/", kName));
      }
    }
  }
  for (const std::string& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("a compnode has the engine jax, whose worker ", candidates[0],
                   " cannot be run; install python/fusion_jax_worker, or name its program in "
                   "FUSION_JAX_WORKER"));
}

}  // namespace fusion::cli
