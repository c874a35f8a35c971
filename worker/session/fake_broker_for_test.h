// A broker that a test drives by hand.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fusion/wire/v1/broker.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace fusion::worker {

/// Listens on a free port of the loopback. Sessions are told apart by the stage that registered.
class FakeBroker : private wire::v1::Broker::Service {
 public:
  using Kind = wire::v1::WorkerMessage::KindCase;

  FakeBroker() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~FakeBroker() override { Stop(); }

  const std::string& address() const { return address_; }

  /// Ends all sessions abruptly.
  void Stop() {
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now());
      server_->Wait();
      server_ = nullptr;
    }
  }

  /// The next message of this kind from `stage`'s last session; others stay. Nothing after 20 s.
  std::optional<wire::v1::WorkerMessage> Await(int stage, Kind kind) {
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      for (const auto& message : received_[stage]) {
        if (message.kind_case() == kind) {
          return true;
        }
      }
      return false;
    };
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20))) {
      return std::nullopt;
    }
    auto& messages = received_[stage];
    auto found = messages.begin();
    while (found->kind_case() != kind) {
      ++found;
    }
    wire::v1::WorkerMessage message = *found;
    messages.erase(found);
    return message;
  }

  void Send(int stage, const wire::v1::BrokerMessage& message) {
    absl::MutexLock lock(&mutex_);
    if (const auto stream = streams_.find(stage); stream != streams_.end()) {
      stream->second->Write(message);
    }
  }

  /// Waits until the session of `stage` has ended; false after 20 s.
  bool AwaitEnd(int stage) {
    const auto gone = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return streams_.count(stage) == 0; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&gone), absl::Seconds(20));
  }

 private:
  using Stream = grpc::ServerReaderWriter<wire::v1::BrokerMessage, wire::v1::WorkerMessage>;

  grpc::Status Session(grpc::ServerContext*, Stream* stream) override {
    wire::v1::WorkerMessage message;
    int stage = -1;
    while (stream->Read(&message)) {
      absl::MutexLock lock(&mutex_);
      if (message.has_register_()) {
        stage = message.register_().stage();
        streams_[stage] = stream;
        received_[stage].clear();
      }
      received_[stage].push_back(message);
    }
    absl::MutexLock lock(&mutex_);
    streams_.erase(stage);
    return grpc::Status::OK;
  }

  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  absl::Mutex mutex_;
  std::map<int, std::deque<wire::v1::WorkerMessage>> received_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Stream*> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fusion::worker
