#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

extern char** environ;

namespace fusion::testing {

Process::Process(std::vector<std::string> arguments, std::string folder) : folder_(std::move(folder)) {
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, (folder_ + "/stdout").c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0644);
  posix_spawn_file_actions_addopen(&files, 2, (folder_ + "/stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0644);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  if (posix_spawn(&pid_, argv[0], &files, &attributes, argv.data(), environ) != 0) {
    pid_ = -1;
    reaped_ = true;
  }
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
}

Process::~Process() {
  if (reaped_) return;
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::Signal(int signal) const {
  if (!reaped_) kill(pid_, signal);
}

ProcessResult Process::Wait(std::chrono::seconds deadline) {
  ProcessResult result;
  if (!reaped_) {
    const int handle = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    pollfd ended{handle, POLLIN, 0};
    const int milliseconds =
        static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count());
    result.timed_out = poll(&ended, 1, milliseconds) == 0;
    if (result.timed_out) kill(-pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    reaped_ = true;
    close(handle);
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  result.out = Out();
  result.err = Err();
  return result;
}

std::string Process::Out() const { return ReadFile(folder_ + "/stdout"); }
std::string Process::Err() const { return ReadFile(folder_ + "/stderr"); }

ProcessResult Run(const std::vector<std::string>& arguments, const std::string& folder,
                  std::chrono::seconds deadline) {
  return Process(arguments, folder).Wait(deadline);
}

ScratchFolder::ScratchFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "fusion-test-XXXXXX").string();
  path_ = mkdtemp(name.data());
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<pid_t> ProcessesWith(const std::string& text) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    if (ReadFile(entry.path().string() + "/cmdline").find(text) == std::string::npos) continue;
    // A zombie has an empty command line; this one lives.
    found.push_back(static_cast<pid_t>(std::stol(name)));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace fusion::testing
