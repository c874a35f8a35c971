// Calls the stage's handlers, and stops calling them for good.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

/// Thread-safe. Handlers run side by side, one at a time for each stream.
class HandlerGate {
 public:
  void Open(TransportHandlers handlers) {
    absl::MutexLock lock(&mutex_);
    handlers_ = std::move(handlers);
    open_ = true;
  }

  /// Waits for the handlers that are running; none runs afterwards. Not from a handler.
  void Close() {
    absl::MutexLock lock(&mutex_);
    open_ = false;
  }

  void Receive(int from_stage, EncodedTensor tensor) {
    absl::ReaderMutexLock lock(&mutex_);
    if (open_ && handlers_.receive) handlers_.receive(from_stage, std::move(tensor));
  }

  void Granted(int to_stage, int32_t edge, wire::v1::Direction direction) {
    absl::ReaderMutexLock lock(&mutex_);
    if (open_ && handlers_.granted) handlers_.granted(to_stage, edge, direction);
  }

  void Error(int peer_stage, const absl::Status& status) {
    absl::ReaderMutexLock lock(&mutex_);
    if (open_ && handlers_.error) handlers_.error(peer_stage, status);
  }

 private:
  absl::Mutex mutex_;
  TransportHandlers handlers_ ABSL_GUARDED_BY(mutex_);
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fusion::worker
