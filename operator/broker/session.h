// One worker's stream, on the broker's side.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "fusion/wire/v1/broker.grpc.pb.h"

namespace fusion::op {

/// Queues what is sent, and hands what comes to its handlers on gRPC's threads: they must be quick. Lives
/// until the stream is done and nobody holds it. Thread-safe.
class Session : public grpc::ServerBidiReactor<wire::v1::WorkerMessage, wire::v1::BrokerMessage> {
 public:
  struct Handlers {
    std::function<void(std::shared_ptr<Session>, wire::v1::WorkerMessage)> on_message;
    std::function<void(std::shared_ptr<Session>)> on_end;  ///< nothing comes any more; once
  };

  static std::shared_ptr<Session> Start(Handlers handlers);

  void Send(wire::v1::BrokerMessage message);

  /// Ends the stream with `status` when what is queued has been sent.
  void Close(const absl::Status& status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  explicit Session(Handlers handlers) : handlers_(std::move(handlers)) {}

  /// What to do next without the lock: gRPC is not called with one held.
  enum class Next { kNothing, kWrite, kFinish };
  Next NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(Next next);

  const Handlers handlers_;
  wire::v1::WorkerMessage incoming_;  ///< used by the reactions alone
  std::shared_ptr<Session> self_;     ///< until OnDone

  absl::Mutex mutex_;
  std::deque<wire::v1::BrokerMessage> queue_ ABSL_GUARDED_BY(mutex_);  ///< the front one is being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fusion::op
