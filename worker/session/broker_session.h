// A worker's end of Broker.Session.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "fusion/wire/v1/broker.grpc.pb.h"
#include "fusion/wire/v1/broker.pb.h"

namespace fusion::worker {

/// Thread-safe. Pings are answered on gRPC's threads, whatever the worker computes. Handlers run there too
/// and must be quick.
class BrokerSession {
 public:
  struct Handlers {
    std::function<void(wire::v1::BrokerMessage)> message;  ///< all but pings, in order
    std::function<void(absl::Status)> ended;               ///< once, last; OK: the broker ended it in order
  };

  /// Dials and registers; a broker that is not there shows in `ended`.
  BrokerSession(const std::string& address, const wire::v1::Register& registration, Handlers handlers);
  /// Ends the stream, abruptly unless Close was called, and waits for `ended`.
  ~BrokerSession();
  BrokerSession(const BrokerSession&) = delete;
  BrokerSession& operator=(const BrokerSession&) = delete;

  /// Queues; dropped when the stream has ended.
  void Send(wire::v1::WorkerMessage message);

  /// Sends what is queued, then closes. False where that took longer than `timeout`; the stream is cancelled
  /// then.
  bool Close(absl::Duration timeout);

 private:
  class Stream;

  std::unique_ptr<wire::v1::Broker::Stub> stub_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace fusion::worker
