// How a worker learns that it should end: SIGTERM, SIGINT, or the death of the process that started it.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace fusion::worker {

/// Make one at the start of main, before any thread. SIGPIPE is ignored from then on.
class ProcessSignals {
 public:
  ProcessSignals();
  ~ProcessSignals();
  ProcessSignals(const ProcessSignals&) = delete;
  ProcessSignals& operator=(const ProcessSignals&) = delete;

  /// `handler` is called once, on a thread of its own, at once when it was asked to end before.
  void OnTermination(std::function<void()> handler);

 private:
  void Run();
  void Terminate();

  const int parent_;  ///< process id when we were started
  absl::Mutex mutex_;
  std::function<void()> handler_ ABSL_GUARDED_BY(mutex_);
  bool terminated_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

}  // namespace fusion::worker
