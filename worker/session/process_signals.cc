#include "worker/session/process_signals.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <utility>

namespace fusion::worker {
namespace {

constexpr timespec kPoll{.tv_sec = 0, .tv_nsec = 200'000'000};
// Sent by the kernel when the thread that started us ends. That may be a short-lived thread of a living
// parent: we look.
constexpr int kParentSignal = SIGUSR2;

sigset_t Watched() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, kParentSignal}) {
    sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

ProcessSignals::ProcessSignals() : parent_(getppid()) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // the write says it, with the path
  const sigset_t set = Watched();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);  // inherited by every thread to come
  prctl(PR_SET_PDEATHSIG, kParentSignal);
  thread_ = std::thread([this] { Run(); });
}

ProcessSignals::~ProcessSignals() {
  stopped_ = true;
  thread_.join();
}

void ProcessSignals::OnTermination(std::function<void()> handler) {
  bool now = false;
  {
    absl::MutexLock lock(&mutex_);
    now = terminated_;
    if (!now) {
      handler_ = std::move(handler);
    }
  }
  if (now) {
    handler();
  }
}

void ProcessSignals::Run() {
  const sigset_t set = Watched();
  while (!stopped_) {
    const int signal = sigtimedwait(&set, nullptr, &kPoll);
    if (signal == SIGTERM || signal == SIGINT || getppid() != parent_) {
      Terminate();
      return;
    }
  }
}

void ProcessSignals::Terminate() {
  std::function<void()> handler;
  {
    absl::MutexLock lock(&mutex_);
    terminated_ = true;
    handler = std::move(handler_);
  }
  if (handler) {
    handler();
  }
}

}  // namespace fusion::worker
