#include "worker/session/broker_session.h"

#include <utility>

#include "grpcpp/grpcpp.h"

namespace fusion::worker {
namespace {

using wire::v1::BrokerMessage;
using wire::v1::WorkerMessage;

// Assignments carry a stage's part of the graph.
constexpr int kMaxMessageBytes = 256 << 20;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // The broker's pings come every few seconds: a connection that is silent for longer is gone.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // The operator is reached as it was named, not over somebody's web proxy.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

class BrokerSession::Stream : public grpc::ClientBidiReactor<WorkerMessage, BrokerMessage> {
 public:
  explicit Stream(Handlers handlers) : handlers_(std::move(handlers)) {}

  void Begin(wire::v1::Broker::Stub& stub) {
    stub.async()->Session(&context_, this);
    AddHold();  // until reading ends: writes begin outside of reactions
    StartRead(&incoming_);
    StartCall();
  }

  void Send(WorkerMessage message) {
    {
      absl::MutexLock lock(&mutex_);
      if (reading_ended_ || closing_) {
        return;
      }
      queue_.push_back(std::move(message));
      if (writing_) {
        return;
      }
      writing_ = true;
      AddHold();  // the call cannot end before the write has begun
    }
    StartWrite(&queue_front());
    RemoveHold();
  }

  bool Close(absl::Duration timeout) {
    const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_; };
    bool half_close = false;
    {
      absl::MutexLock lock(&mutex_);
      half_close = !closing_ && !writing_ && !reading_ended_;
      closing_ = true;
      if (half_close) {
        AddHold();
      }
    }
    if (half_close) {
      StartWritesDone();
      RemoveHold();
    }
    bool in_time = false;
    {
      absl::MutexLock lock(&mutex_);
      in_time = mutex_.AwaitWithTimeout(absl::Condition(&done), timeout);
    }
    context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done));
    return in_time;
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        absl::MutexLock lock(&mutex_);
        reading_ended_ = true;
      }
      RemoveHold();
      return;
    }
    if (incoming_.has_ping()) {
      WorkerMessage pong;
      pong.mutable_pong()->set_sequence(incoming_.ping().sequence());
      Send(std::move(pong));
    } else {
      handlers_.message(std::move(incoming_));
    }
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    bool more = false;
    bool half_close = false;
    {
      absl::MutexLock lock(&mutex_);
      queue_.pop_front();
      if (!ok) {
        queue_.clear();
      }
      more = !queue_.empty();
      writing_ = more;
      half_close = ok && !more && closing_;
    }
    if (more) {
      StartWrite(&queue_front());
    } else if (half_close) {
      StartWritesDone();
    }
  }

  void OnDone(const grpc::Status& status) override {
    handlers_.ended(absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }

 private:
  // A deque's elements stay where they are while others are added behind.
  const WorkerMessage& queue_front() {
    absl::MutexLock lock(&mutex_);
    return queue_.front();
  }

  const Handlers handlers_;
  grpc::ClientContext context_;
  BrokerMessage incoming_;  // of the reading reactions

  absl::Mutex mutex_;
  std::deque<WorkerMessage> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  ///< the front is under way
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

BrokerSession::BrokerSession(const std::string& address, const wire::v1::Register& registration,
                             Handlers handlers)
    : stub_(wire::v1::Broker::NewStub(MakeChannel(address))),
      stream_(std::make_unique<Stream>(std::move(handlers))) {
  WorkerMessage message;
  *message.mutable_register_() = registration;
  stream_->Begin(*stub_);
  stream_->Send(std::move(message));
}

BrokerSession::~BrokerSession() { stream_->Close(absl::ZeroDuration()); }

void BrokerSession::Send(WorkerMessage message) { stream_->Send(std::move(message)); }

bool BrokerSession::Close(absl::Duration timeout) { return stream_->Close(timeout); }

}  // namespace fusion::worker
