// Runs real programs in tests: with a deadline, output captured, nothing left behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace fusion::testing {

struct ProcessResult {
  int exit_code = -1;  ///< 128 + signal when a signal ended it
  bool timed_out = false;
  std::string out;
  std::string err;
};

/// A child process in a process group of its own; the destructor kills the whole group and reaps it.
class Process {
 public:
  /// `arguments[0]` is the program's path. Output goes to files below `folder`, which must exist.
  Process(std::vector<std::string> arguments, std::string folder);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  /// Waits for the end, or kills the group at the deadline.
  ProcessResult Wait(std::chrono::seconds deadline);
  /// What it has written so far.
  std::string Out() const;
  std::string Err() const;

 private:
  std::string folder_;
  pid_t pid_ = -1;
  bool reaped_ = false;
};

/// Process and Wait in one.
ProcessResult Run(const std::vector<std::string>& arguments, const std::string& folder,
                  std::chrono::seconds deadline = std::chrono::seconds(60));

/// A folder below the test's temporary directory that is removed with its contents at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& text);

/// Live processes whose command line contains `text` (a workdir, say), by pid.
std::vector<pid_t> ProcessesWith(const std::string& text);

}  // namespace fusion::testing
