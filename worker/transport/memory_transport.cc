#include "worker/transport/memory_transport.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/transport/link.h"
#include "worker/transport/receiving_end.h"
#include "worker/transport/stage_transport.h"

namespace fusion::worker {
namespace {

/// Replies go straight to the sender's link.
class MemoryReplies : public ReplyWriter {
 public:
  explicit MemoryReplies(std::weak_ptr<Link> link) : link_(std::move(link)) {}

  void SetEnd(std::weak_ptr<ReceivingEnd> end) { end_ = std::move(end); }

  void Write(const wire::v1::FrameHeader& reply) override {
    if (const auto link = link_.lock(); link != nullptr) link->OnReply(reply);
    if (const auto end = end_.lock(); end != nullptr) end->OnReplyWritten();
  }

  void End() override {
    if (const auto link = link_.lock(); link != nullptr) link->OnDisconnected(absl::OkStatus());
  }

 private:
  const std::weak_ptr<Link> link_;
  std::weak_ptr<ReceivingEnd> end_;  ///< constant once frames flow
};

/// Frames go straight to the peer's receiving end, on the link's thread.
class MemoryStream : public FrameWriter {
 public:
  MemoryStream(std::weak_ptr<Link> link, std::shared_ptr<ReceivingEnd> end)
      : link_(std::move(link)), end_(std::move(end)) {}

  void Write(Frame frame) override {
    const auto* prefix = reinterpret_cast<const std::byte*>(frame.prefix.data());
    Pieces pieces = {{prefix, frame.prefix.size()}};
    if (frame.payload_bytes > 0)
      pieces.emplace_back(frame.payload.get(), static_cast<size_t>(frame.payload_bytes));
    end_->OnFrame(pieces).IgnoreError();  // the end has told the link
    if (const auto link = link_.lock(); link != nullptr) link->OnWritten();
  }

  void WritesDone() override {}

  /// The sender is gone, in order or not.
  void Disconnect() { end_->OnDisconnected(); }

 private:
  const std::weak_ptr<Link> link_;
  const std::shared_ptr<ReceivingEnd> end_;
};

class MemoryTransport : public StageTransport {
 public:
  MemoryTransport(std::shared_ptr<MemoryHub> hub, TransportOptions options, Ways ways)
      : StageTransport(std::move(options), std::move(ways)),
        hub_(std::move(hub)),
        address_(hub_->NewAddress()) {}
  ~MemoryTransport() override { Abandon(); }

  std::string address() const override { return address_; }

 protected:
  void Accept() override { hub_->Register(address_, receiving()); }

  absl::Status Dial(int stage, const std::string& address, std::shared_ptr<Link> link) override {
    const absl::Time deadline = absl::Now() + absl::Seconds(receiving()->options().connect_timeout_seconds);
    const std::shared_ptr<ReceivingSide> side = hub_->Find(address, deadline);
    if (side == nullptr) {
      return absl::DeadlineExceededError(absl::StrCat("stage ", stage, " is not at ", address));
    }
    const auto replies = std::make_shared<MemoryReplies>(link);
    const auto end = std::make_shared<ReceivingEnd>(side, replies);
    replies->SetEnd(end);
    const auto stream = std::make_shared<MemoryStream>(link, end);
    streams_.push_back(stream);
    link->Open(stream);
    return absl::OkStatus();
  }

  void EndDialled(absl::Time) override {
    for (const auto& stream : streams_) stream->Disconnect();
    streams_.clear();
  }

  void EndAccepted(absl::Time deadline) override {
    hub_->Remove(address_);
    receiving()->CloseAll(deadline);
  }

 private:
  const std::shared_ptr<MemoryHub> hub_;
  const std::string address_;
  std::vector<std::shared_ptr<MemoryStream>> streams_;  ///< of the thread that connects and closes
};

}  // namespace

std::string MemoryHub::NewAddress() {
  absl::MutexLock lock(&mutex_);
  return absl::StrCat("memory:", ++addresses_);
}

void MemoryHub::Register(const std::string& address, std::shared_ptr<ReceivingSide> side) {
  absl::MutexLock lock(&mutex_);
  sides_[address] = std::move(side);
}

void MemoryHub::Remove(const std::string& address) {
  absl::MutexLock lock(&mutex_);
  sides_.erase(address);
}

std::shared_ptr<ReceivingSide> MemoryHub::Find(const std::string& address, absl::Time deadline) {
  const auto is_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return sides_.count(address) > 0; };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(absl::Condition(&is_there), deadline) ? sides_[address] : nullptr;
}

absl::StatusOr<std::unique_ptr<Transport>> MakeMemoryTransport(std::shared_ptr<MemoryHub> hub,
                                                               TransportOptions options) {
  absl::StatusOr<StageTransport::Ways> ways = StageTransport::MakeWays(options);
  if (!ways.ok()) return ways.status();
  return std::make_unique<MemoryTransport>(std::move(hub), std::move(options), *std::move(ways));
}

}  // namespace fusion::worker
