// A thread that runs what it is given, in order.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace fusion::worker {

/// Thread-safe. The destructor drops what has not begun and waits for what has.
class SerialQueue {
 public:
  SerialQueue() : thread_([this] { Run(); }) {}
  ~SerialQueue();
  SerialQueue(const SerialQueue&) = delete;
  SerialQueue& operator=(const SerialQueue&) = delete;

  void Post(std::function<void()> work);

  /// Waits until everything posted before is done.
  void Drain();

 private:
  void Run();

  absl::Mutex mutex_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fusion::worker
