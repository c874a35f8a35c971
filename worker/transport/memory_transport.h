// Transport between stages of one process, for tests and for single-process runs: the same frames, queues,
// credits and checks as between processes, without sockets.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/transport/options.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

class ReceivingSide;

/// Where the stages of a process find each other. Thread-safe; outlives its transports.
class MemoryHub {
 public:
  /// An address for a stage that will come.
  std::string NewAddress();
  void Register(const std::string& address, std::shared_ptr<ReceivingSide> side);
  void Remove(const std::string& address);
  /// Waits for it to be registered; null at the deadline.
  std::shared_ptr<ReceivingSide> Find(const std::string& address, absl::Time deadline);

 private:
  absl::Mutex mutex_;
  int addresses_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::shared_ptr<ReceivingSide>> sides_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<Transport>> MakeMemoryTransport(std::shared_ptr<MemoryHub> hub,
                                                               TransportOptions options);

}  // namespace fusion::worker
