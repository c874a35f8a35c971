#include "operator/launcher/process_launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace fusion::op {
namespace {

constexpr std::streamoff kTailBytes = 4096;
constexpr size_t kTailLines = 10;

std::string LastLines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const std::streamoff size = file.tellg();
  if (!file || size <= 0) return "";
  file.seekg(std::max<std::streamoff>(0, size - kTailBytes));
  std::string tail((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> lines = absl::StrSplit(tail, '\n', absl::SkipWhitespace());
  if (lines.size() > kTailLines) lines.erase(lines.begin(), lines.end() - kTailLines);
  return absl::StrJoin(lines, "\n");
}

// The parent's environment with some variables set.
std::vector<std::string> MergedEnvironment(const std::map<std::string, std::string>& more) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::strcspn(*entry, "="));
    if (more.count(name) == 0) merged.emplace_back(*entry);
  }
  for (const auto& [name, value] : more) merged.push_back(absl::StrCat(name, "=", value));
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// posix_spawn's two argument objects.
class SpawnSetup {
 public:
  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

}  // namespace

std::string WorkerSpec::Name() const {
  return absl::StrCat(absl::StrReplaceAll(job, {{"/", "-"}}), "-s", stage, "-a", incarnation);
}

ProcessLauncher::ProcessLauncher(ProcessLauncherOptions options, ExitHandler on_exit)
    : options_(std::move(options)),
      on_exit_(std::move(on_exit)),
      wake_file_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Run(); }) {}

ProcessLauncher::~ProcessLauncher() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (auto& [name, child] : children_) child.terminate_at = absl::Now();
  }
  Wake();
  thread_.join();
  close(wake_file_);
}

void ProcessLauncher::Wake() const {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread wakes anyway.
  [[maybe_unused]] const ssize_t written = write(wake_file_, &one, sizeof(one));
}

absl::Status ProcessLauncher::Start(const WorkerSpec& worker) {
  Request request{worker, absl::OkStatus(), false};
  absl::MutexLock lock(&mutex_);
  if (closing_) return absl::CancelledError("the launcher is closing");
  if (started_.count(worker.Name()) != 0) return absl::OkStatus();
  requests_.push_back(&request);
  Wake();
  mutex_.Await(absl::Condition(&request.done));
  return request.status;
}

void ProcessLauncher::Terminate(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  const absl::Time terminate_at = absl::Now() + options_.voluntary;
  for (auto& [name, child] : children_) {
    const bool asked =
        child.terminate_at != absl::InfiniteFuture() || child.kill_at != absl::InfiniteFuture();
    if (child.worker.job == job && !asked) child.terminate_at = terminate_at;
  }
  Wake();
}

int ProcessLauncher::Running(const std::string& job) const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(std::count_if(children_.begin(), children_.end(),
                                        [&](const auto& entry) { return entry.second.worker.job == job; }));
}

bool ProcessLauncher::WaitUntilGone(const std::string& job, absl::Duration timeout) const {
  absl::MutexLock lock(&mutex_);
  const auto gone = [&] {
    mutex_.AssertReaderHeld();
    return std::none_of(children_.begin(), children_.end(),
                        [&](const auto& entry) { return entry.second.worker.job == job; });
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&gone), timeout);
}

int ProcessLauncher::PidOf(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  const auto child = children_.find(name);
  return child == children_.end() ? -1 : child->second.pid;
}

absl::StatusOr<ProcessLauncher::Child> ProcessLauncher::Spawn(const WorkerSpec& worker) const {
  std::vector<std::string> command = options_.command(worker);
  std::vector<std::string> environment = MergedEnvironment(options_.environment);
  const std::string log = options_.log_file(worker);

  SpawnSetup setup;
  posix_spawn_file_actions_addopen(&setup.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&setup.actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                   0644);
  posix_spawn_file_actions_adddup2(&setup.actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&setup.actions, STDERR_FILENO + 1);
  // Whatever the parent blocks or ignores, the child starts as from a shell.
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&setup.attributes, &none);
  posix_spawnattr_setsigdefault(&setup.attributes, &all);
  posix_spawnattr_setpgroup(&setup.attributes, 0);
  posix_spawnattr_setflags(&setup.attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  Child child;
  child.worker = worker;
  const int error = posix_spawn(&child.pid, command[0].c_str(), &setup.actions, &setup.attributes,
                                Pointers(command).data(), Pointers(environment).data());
  if (error != 0)
    return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", command[0], " with log ", log));
  child.pid_file = static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0));
  if (child.pid_file < 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, "cannot watch a worker's process");
    kill(-child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
    return status;
  }
  return child;
}

WorkerExit ProcessLauncher::Reap(const Child& child) const {
  siginfo_t info{};
  // The id of an unreaped leader is not used again, so the rest of its group can be ended safely first.
  waitid(static_cast<idtype_t>(P_PIDFD), child.pid_file, &info, WEXITED | WNOWAIT);
  kill(-child.pid, SIGKILL);
  waitid(static_cast<idtype_t>(P_PIDFD), child.pid_file, &info, WEXITED);
  close(child.pid_file);
  const std::string description =
      info.si_code == CLD_EXITED
          ? absl::StrCat("exited with status ", info.si_status)
          : absl::StrCat("was ended by signal ", info.si_status, " (", sigdescr_np(info.si_status), ")");
  return {child.worker, description, LastLines(options_.log_file(child.worker))};
}

absl::Time ProcessLauncher::ServeRequestsLocked() {
  for (Request* request : requests_) {
    const std::string name = request->worker.Name();
    if (closing_) {
      request->status = absl::CancelledError("the launcher is closing");
    } else if (started_.count(name) == 0) {
      absl::StatusOr<Child> child = Spawn(request->worker);
      request->status = child.status();
      if (child.ok()) {
        started_.emplace(name, request->worker);
        children_.emplace(name, *std::move(child));
      }
    }
    request->done = true;
  }
  requests_.clear();
  return SendSignalsLocked(absl::Now());
}

absl::Time ProcessLauncher::SendSignalsLocked(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto& [name, child] : children_) {
    if (child.terminate_at <= now) {
      kill(-child.pid, SIGTERM);
      child.terminate_at = absl::InfiniteFuture();
      child.kill_at = now + options_.grace;
    } else if (child.kill_at <= now) {
      kill(-child.pid, SIGKILL);
      child.kill_at = now + options_.grace;
    }
    next = std::min({next, child.terminate_at, child.kill_at});
  }
  return next;
}

void ProcessLauncher::Run() {
  while (true) {
    std::vector<pollfd> files = {{wake_file_, POLLIN, 0}};
    std::vector<std::string> names;
    absl::Time next;
    {
      absl::MutexLock lock(&mutex_);
      next = ServeRequestsLocked();
      if (closing_ && children_.empty()) return;
      for (const auto& [name, child] : children_) {
        files.push_back({child.pid_file, POLLIN, 0});
        names.push_back(name);
      }
    }
    const int64_t wait_ms = next == absl::InfiniteFuture()
                                ? -1
                                : std::max<int64_t>(0, absl::ToInt64Milliseconds(next - absl::Now()) + 1);
    if (poll(files.data(), files.size(), static_cast<int>(wait_ms)) < 0) continue;
    uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t drained = read(wake_file_, &wakes, sizeof(wakes));

    for (size_t i = 0; i < names.size(); ++i) {
      if (files[i + 1].revents == 0) continue;
      Child child;
      {
        absl::MutexLock lock(&mutex_);
        child = children_.at(names[i]);
      }
      const WorkerExit exit = Reap(child);
      on_exit_(exit);
      absl::MutexLock lock(&mutex_);
      children_.erase(names[i]);
    }
  }
}

}  // namespace fusion::op
