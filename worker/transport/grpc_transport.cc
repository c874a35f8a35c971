#include "worker/transport/grpc_transport.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server.h"
#include "worker/transport/channel_factory.h"
#include "worker/transport/grpc_frame.h"
#include "worker/transport/link.h"
#include "worker/transport/receiving_end.h"
#include "worker/transport/stage_transport.h"

namespace fusion::worker {
namespace {

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

/// The stream that a link writes to. Reactions are called by gRPC one after the other for reads, and for
/// writes.
class OutgoingCall : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, public FrameWriter {
 public:
  OutgoingCall(const std::string& address, std::shared_ptr<Link> link)
      : stub_(MakeChannel(address)), link_(std::move(link)) {
    context_.set_wait_for_ready(true);
  }

  void Start() {
    stub_.PrepareBidiStreamingCall(&context_, kTensorStreamMethod, {}, this);
    AddHold();  // for writes, which begin outside of reactions
    StartRead(&incoming_);
    StartCall();
  }

  void Write(Frame frame) override {
    {
      absl::MutexLock lock(&mutex_);
      if (!writes_over_) {
        outgoing_ = ToByteBuffer(std::move(frame));
        StartWrite(&outgoing_);
        return;
      }
    }
    link_->OnWritten();
  }

  void WritesDone() override {
    absl::MutexLock lock(&mutex_);
    if (writes_over_) return;
    StartWritesDone();
    EndWrites();
  }

  /// Waits for the end that the peer makes after WritesDone; cancels without it or at the deadline.
  void End(absl::Time deadline) {
    bool in_order;
    {
      absl::MutexLock lock(&mutex_);
      in_order = writes_over_;
      EndWrites();
    }
    if (!in_order || !done_.WaitForNotificationWithDeadline(deadline)) context_.TryCancel();
    done_.WaitForNotification();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      absl::MutexLock lock(&mutex_);
      EndWrites();
      return;
    }
    const BufferPieces buffer(incoming_);
    const absl::StatusOr<ReceivedFrame> frame = ParseFrame(buffer.pieces());
    if (frame.ok()) {
      link_->OnReply(frame->header);
    } else {
      link_->OnDisconnected(frame.status());
      context_.TryCancel();
    }
    StartRead(&incoming_);
  }

  void OnWriteDone(bool) override {
    outgoing_.Clear();
    link_->OnWritten();
  }

  void OnDone(const grpc::Status& status) override {
    link_->OnDisconnected(FromGrpc(status));
    done_.Notify();  // last: this may be destroyed then
  }

 private:
  /// gRPC ends a call only when nobody can begin a write any more.
  void EndWrites() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writes_over_) return;
    writes_over_ = true;
    RemoveHold();
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  const std::shared_ptr<Link> link_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  absl::Notification done_;
  absl::Mutex mutex_;
  bool writes_over_ ABSL_GUARDED_BY(mutex_) = false;
};

class Service;

/// A stream that came in. Owns itself until gRPC is done with it.
class IncomingCall : public grpc::ServerGenericBidiReactor,
                     public ReplyWriter,
                     public std::enable_shared_from_this<IncomingCall> {
 public:
  IncomingCall(Service* service, std::shared_ptr<ReceivingSide> side)
      : service_(service), side_(std::move(side)) {}

  void KeepAlive() { self_ = shared_from_this(); }

  /// Not before the stage has its handlers.
  void Start() {
    end_ = std::make_shared<ReceivingEnd>(side_, shared_from_this());
    StartRead(&incoming_);
  }

  void Write(const wire::v1::FrameHeader& reply) override {
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    writing_ = true;
    outgoing_ = ToByteBuffer({.prefix = FramePrefix(reply), .payload = nullptr});
    StartWrite(&outgoing_);
  }

  void End() override { FinishWith(grpc::Status::OK); }

  /// Once what is being written is written.
  void FinishWith(const grpc::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (!final_.has_value()) final_ = status;
    FinishIfSilent();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      end_->OnDisconnected();
      FinishWith(grpc::Status::OK);
      return;
    }
    const BufferPieces buffer(incoming_);
    if (absl::Status status = end_->OnFrame(buffer.pieces()); !status.ok()) {
      FinishWith(ToGrpc(status));
      return;
    }
    StartRead(&incoming_);
  }

  void OnWriteDone(bool) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
    }
    end_->OnReplyWritten();
    absl::MutexLock lock(&mutex_);
    FinishIfSilent();
  }

  void OnCancel() override { FinishWith(grpc::Status::CANCELLED); }

  void OnDone() override;

 private:
  void FinishIfSilent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (over_ || writing_ || !final_.has_value()) return;
    over_ = true;
    Finish(*final_);
  }

  Service* const service_;
  const std::shared_ptr<ReceivingSide> side_;
  std::shared_ptr<IncomingCall> self_;
  std::shared_ptr<ReceivingEnd> end_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  absl::Mutex mutex_;
  std::optional<grpc::Status> final_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  ///< Finish was called
};

/// Knows one method, whatever the messages are.
class Service : public grpc::CallbackGenericService {
 public:
  explicit Service(std::shared_ptr<ReceivingSide> side) : side_(std::move(side)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    const auto call = std::make_shared<IncomingCall>(this, side_);
    call->KeepAlive();
    absl::MutexLock lock(&mutex_);
    calls_.insert(call.get());
    if (context->method() != kTensorStreamMethod) {
      call->FinishWith(
          grpc::Status(grpc::StatusCode::UNIMPLEMENTED, absl::StrCat("no method ", context->method())));
    } else if (closed_) {
      call->FinishWith(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker is closing"));
    } else if (accepting_) {
      call->Start();
    } else {
      waiting_.insert(call.get());
    }
    return call.get();
  }

  void Accept() {
    absl::MutexLock lock(&mutex_);
    accepting_ = true;
    for (IncomingCall* call : waiting_) call->Start();
    waiting_.clear();
  }

  /// Ends all calls, the greeted ones in order; waits until they are gone or the deadline.
  void Close(absl::Time deadline) {
    side_->CloseAll(deadline);
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    for (IncomingCall* call : calls_) {
      call->FinishWith(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker is closing"));
    }
    mutex_.AwaitWithDeadline(absl::Condition(this, &Service::Empty), deadline);
  }

  /// After the server's shutdown, which cancels those that are left.
  void AwaitLastCall() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Service::Empty));
  }

  void Remove(IncomingCall* call) {
    absl::MutexLock lock(&mutex_);
    calls_.erase(call);
    waiting_.erase(call);
  }

 private:
  bool Empty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_.empty(); }

  const std::shared_ptr<ReceivingSide> side_;
  absl::Mutex mutex_;
  bool accepting_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<IncomingCall*> calls_ ABSL_GUARDED_BY(mutex_);
  std::set<IncomingCall*> waiting_ ABSL_GUARDED_BY(mutex_);  ///< for Accept
};

void IncomingCall::OnDone() {
  if (end_ != nullptr) end_->OnDisconnected();
  service_->Remove(this);
  end_.reset();
  self_.reset();  // last: this may be destroyed then
}

class GrpcTransport : public StageTransport {
 public:
  GrpcTransport(TransportOptions options, Ways ways)
      : StageTransport(std::move(options), std::move(ways)), service_(receiving()) {}
  ~GrpcTransport() override { Abandon(); }

  absl::Status Listen(const std::string& address) {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
    }
    address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

 protected:
  void Accept() override { service_.Accept(); }

  absl::Status Dial(int, const std::string& address, std::shared_ptr<Link> link) override {
    auto call = std::make_shared<OutgoingCall>(address, link);
    calls_.push_back(call);
    call->Start();
    link->Open(call);
    return absl::OkStatus();
  }

  void EndDialled(absl::Time deadline) override {
    for (const auto& call : calls_) call->End(deadline);
    calls_.clear();
  }

  void EndAccepted(absl::Time deadline) override {
    if (server_ == nullptr) return;
    service_.Close(deadline);
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    service_.AwaitLastCall();
  }

 private:
  std::string address_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::shared_ptr<OutgoingCall>> calls_;  ///< of the thread that connects and closes
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeGrpcTransport(TransportOptions options,
                                                             const std::string& listen) {
  absl::StatusOr<StageTransport::Ways> ways = StageTransport::MakeWays(options);
  if (!ways.ok()) return ways.status();
  auto transport = std::make_unique<GrpcTransport>(std::move(options), *std::move(ways));
  if (absl::Status status = transport->Listen(listen); !status.ok()) return status;
  return transport;
}

}  // namespace fusion::worker
