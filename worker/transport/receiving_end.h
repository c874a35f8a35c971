// The receiver's half of a stream: Hello, tensors in, acknowledgements and credits out. Knows no socket.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/transport/frame.h"
#include "worker/transport/handler_gate.h"
#include "worker/transport/inbox.h"
#include "worker/transport/options.h"

namespace fusion::worker {

class ReceivingEnd;

/// All streams that come in to a stage. Thread-safe.
class ReceivingSide {
 public:
  explicit ReceivingSide(TransportOptions options) : options_(std::move(options)) {}

  HandlerGate& gate() { return gate_; }
  const TransportOptions& options() const { return options_; }

  /// Whether a stream that opens so may go on; if so, `end` stands for its stage until it is released or
  /// gone.
  absl::Status Admit(const wire::v1::Hello& hello, const std::shared_ptr<ReceivingEnd>& end);
  /// The stage may open another stream.
  void Release(int from_stage, const ReceivingEnd* end);

  /// Null where no stream from that stage is open.
  std::shared_ptr<ReceivingEnd> Find(int from_stage);

  /// Closes all of them in order.
  void CloseAll(absl::Time deadline);

 private:
  const TransportOptions options_;
  HandlerGate gate_;
  absl::Mutex mutex_;
  std::map<int, std::weak_ptr<ReceivingEnd>> ends_ ABSL_GUARDED_BY(mutex_);
};

/// Takes replies back to the sender. Write is called for one reply at a time, and answered by
/// ReceivingEnd::OnReplyWritten, from anywhere.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  virtual void Write(const wire::v1::FrameHeader& reply) = 0;
  /// All replies are written: the stream ends in order.
  virtual void End() = 0;
};

/// One stream. Thread-safe, but for OnFrame: one call after the other.
class ReceivingEnd : public std::enable_shared_from_this<ReceivingEnd> {
 public:
  ReceivingEnd(std::shared_ptr<ReceivingSide> side, std::shared_ptr<ReplyWriter> writer)
      : side_(std::move(side)), writer_(std::move(writer)), inbox_(side_->options().memory_limit_bytes) {}

  /// A frame of any bytes. Tensors that it completes go to the stage's handler. An error is told to the peer
  /// and to the handler, and ends the stream: nothing more may come in.
  absl::Status OnFrame(const Pieces& pieces);

  /// The last reply is written; the next one may follow.
  void OnReplyWritten();

  void Grant(int32_t edge, wire::v1::Direction direction);

  /// The connection is gone. An error for the handler unless the peer said Close before.
  void OnDisconnected();

  /// Waits until all replies are written, then ends the stream.
  void Close(absl::Time deadline);

 private:
  absl::Status Take(const ReceivedFrame& frame);
  absl::Status Greet(const wire::v1::FrameHeader& header);
  /// Writes the next reply if there is one and the writer is free.
  void WriteReply();
  bool HasReply() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return hello_due_ || acknowledgement_due_ || error_due_.has_value();
  }
  bool Silent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return over_ || (!writing_ && !HasReply()); }
  wire::v1::FrameHeader NextReply() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<ReceivingSide> side_;
  const std::shared_ptr<ReplyWriter> writer_;
  Inbox inbox_;  ///< of OnFrame

  absl::Mutex mutex_;
  int from_stage_ ABSL_GUARDED_BY(mutex_) = -1;  ///< -1 before Hello
  bool closed_by_peer_ ABSL_GUARDED_BY(mutex_) = false;
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;  ///< nothing more may come in
  bool over_ ABSL_GUARDED_BY(mutex_) = false;    ///< nothing more goes out
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool hello_due_ ABSL_GUARDED_BY(mutex_) = false;
  bool acknowledgement_due_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> error_due_ ABSL_GUARDED_BY(mutex_);
  uint64_t tensors_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::pair<int32_t, wire::v1::Direction>, uint64_t> granted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fusion::worker
