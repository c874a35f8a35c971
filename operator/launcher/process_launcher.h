// Workers as child processes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "operator/launcher/launcher.h"

namespace fusion::op {

struct ProcessLauncherOptions {
  /// Program, by path, and arguments.
  std::function<std::vector<std::string>(const WorkerSpec&)> command;
  /// File to which stdout and stderr are appended; its folder exists.
  std::function<std::string(const WorkerSpec&)> log_file;
  std::map<std::string, std::string> environment;  ///< beside the parent's
  absl::Duration voluntary = absl::Seconds(2);     ///< from Terminate to SIGTERM
  absl::Duration grace = absl::Seconds(2);         ///< from SIGTERM to SIGKILL
};

/// Each child leads a process group of its own, which ends with it. Children are made by posix_spawn from one
/// thread that lives as long as the launcher, so that a child that asks for a signal at its parent's death
/// (PR_SET_PDEATHSIG looks at the parent thread) gets it when the launcher is gone, not before. The
/// destructor ends all children and waits for them.
class ProcessLauncher : public Launcher {
 public:
  ProcessLauncher(ProcessLauncherOptions options, ExitHandler on_exit);
  ~ProcessLauncher() override;

  absl::Status Start(const WorkerSpec& worker) override;
  void Terminate(const std::string& job) override;
  int Running(const std::string& job) const override;

  /// False: some of the job's processes are still there after the time.
  bool WaitUntilGone(const std::string& job, absl::Duration timeout) const;

  /// Process id of a running worker, or -1.
  int PidOf(const std::string& name) const;

 private:
  struct Child {
    WorkerSpec worker;
    int pid = -1;
    int pid_file = -1;  ///< descriptor that becomes readable at the end
    absl::Time terminate_at = absl::InfiniteFuture();
    absl::Time kill_at = absl::InfiniteFuture();
  };
  struct Request {
    WorkerSpec worker;
    absl::Status status;
    bool done = false;
  };

  void Run();
  /// Spawns what was asked for; the time of the next signal to send.
  absl::Time ServeRequestsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time SendSignalsLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Child> Spawn(const WorkerSpec& worker) const;
  WorkerExit Reap(const Child& child) const;
  void Wake() const;

  const ProcessLauncherOptions options_;
  const ExitHandler on_exit_;
  int wake_file_ = -1;  ///< eventfd

  mutable absl::Mutex mutex_;
  std::vector<Request*> requests_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Child> children_ ABSL_GUARDED_BY(mutex_);      ///< running, by worker name
  std::map<std::string, WorkerSpec> started_ ABSL_GUARDED_BY(mutex_);  ///< ever, by worker name
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fusion::op
