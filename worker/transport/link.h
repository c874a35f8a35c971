// The sender's half of a stream: queue, credits, pace, acknowledgements. Knows no socket.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/transport/frame.h"
#include "worker/transport/link_emulation.h"
#include "worker/transport/outbox.h"
#include "worker/transport/receiving_end.h"

namespace fusion::worker {

/// Takes frames to the peer. Write is called for one frame at a time and answered by Link::OnWritten, from
/// anywhere.
class FrameWriter {
 public:
  virtual ~FrameWriter() = default;
  virtual void Write(Frame frame) = 0;
  /// No Write follows.
  virtual void WritesDone() = 0;
};

/// Sizes that follow from a link's rate and latency.
struct LinkLimits {
  int64_t frame_bytes = kMaxPayloadBytes;            ///< payload; clamp(rate x 20 ms, 4 KiB, 1 MiB)
  int64_t unacknowledged_bytes = int64_t{32} << 20;  ///< rate x round trip + 2 frames

  /// `bytes_per_second` 0: unknown.
  static LinkLimits For(double bytes_per_second, double latency_seconds);
};

/// One peer that we send to. Thread-safe. A thread of its own takes frames from the queue when the link is
/// free for them, sends each when it is due, and acts on what the peer answers.
///
/// Emulated: a frame reserves its way shortly before the one before has left, and is written when it would
/// arrive; what the peer answers waits a latency too. So nothing is decided earlier than on a real link, and
/// a slow link holds up no other.
class Link {
 public:
  /// `way` is null where the link is not emulated. `side` has the handlers.
  Link(int to_stage, std::shared_ptr<EmulatedWay> way, std::shared_ptr<ReceivingSide> side);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void Send(EncodedTensor tensor);
  void SetWindow(int32_t edge, wire::v1::Direction direction, int tensors);
  LinkCounters Counters() const;

  /// Starts: Hello goes first. Once.
  void Open(std::shared_ptr<FrameWriter> writer);
  /// OK when the peer has said Hello.
  absl::Status WaitUntilOpen(absl::Time deadline);

  /// From the connection: the writer is free again; the peer said something; the connection is gone (with OK
  /// when the peer ended it in order).
  void OnWritten();
  void OnReply(const wire::v1::FrameHeader& reply);
  void OnDisconnected(const absl::Status& status);

  /// Waits until all is sent and acknowledged, then says Close and WritesDone. Else what was left.
  absl::Status Drain(absl::Time deadline);
  /// Ends the thread. Frees the writer.
  void Stop();

 private:
  struct Leaving {
    int64_t due;
    Frame frame;
  };
  struct Arrived {
    int64_t due;
    std::variant<wire::v1::FrameHeader, absl::Status> what;
  };

  void Run();
  /// When the thread has something to do next; max() for never.
  int64_t NextEvent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayLoad() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayClose() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OpenOrFailed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_ || !status_.ok(); }
  bool DrainedOrFailed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return close_sent_ || !status_.ok(); }

  // These release the mutex for a while.
  void Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Write(Frame frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SayClose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeReply() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeAcknowledge(const wire::v1::Acknowledge& acknowledge) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Arrive(std::variant<wire::v1::FrameHeader, absl::Status> what);
  void CountBusy() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Rest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int to_stage_;
  const std::shared_ptr<EmulatedWay> way_;
  const std::shared_ptr<ReceivingSide> side_;
  const LinkLimits limits_;
  std::thread thread_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;  ///< wakes the thread
  std::shared_ptr<FrameWriter> writer_ ABSL_GUARDED_BY(mutex_);
  bool open_ ABSL_GUARDED_BY(mutex_) = false;     ///< the peer said Hello
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  ///< Drain was called
  bool close_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool peer_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  ///< until OnWritten
  bool loading_ ABSL_GUARDED_BY(mutex_) = false;  ///< a frame is neither queued nor leaving
  absl::Status status_ ABSL_GUARDED_BY(mutex_);   ///< not OK: failed for good
  Outbox outbox_ ABSL_GUARDED_BY(mutex_);
  std::deque<Leaving> leaving_ ABSL_GUARDED_BY(mutex_);
  std::deque<Arrived> arrived_ ABSL_GUARDED_BY(mutex_);
  int64_t free_at_ ABSL_GUARDED_BY(mutex_) = 0;  ///< from when on the next frame may reserve
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  LinkCounters counters_ ABSL_GUARDED_BY(mutex_);
  int64_t busy_since_ ABSL_GUARDED_BY(mutex_) = 0;  ///< 0: nothing is under way
};

}  // namespace fusion::worker
