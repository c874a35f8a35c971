// What a gRPC transport does with peers that do not keep to the protocol.
#include "worker/transport/grpc_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/generic/generic_stub.h"
#include "worker/transport/channel_factory.h"
#include "worker/transport/frame.h"

namespace fusion::worker {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

TransportOptions Options(int stage) {
  TransportOptions options;
  options.job = "job";
  options.incarnation = 4;
  options.stage = stage;
  return options;
}

/// A stream that says what it is told to, the first frame until it is answered, and keeps what it hears.
class RawStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  RawStream(const std::string& address, const std::string& method, std::vector<std::string> frames)
      : stub_(MakeChannel(address)), frames_(std::move(frames)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stub_.PrepareBidiStreamingCall(&context_, method, {}, this);
    StartRead(&incoming_);
    WriteNext();
    StartCall();
  }

  grpc::Status Wait() {
    done_.WaitForNotification();
    return status_;
  }
  const std::vector<wire::v1::FrameHeader>& replies() const { return replies_; }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(incoming_.Dump(&slices).ok());
    Pieces pieces;
    for (const auto& slice : slices) {
      pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
    }
    const auto frame = ParseFrame(pieces);
    EXPECT_TRUE(frame.ok()) << frame.status();
    replies_.push_back(frame->header);
    if (replies_.size() == 1) FirstFrameIs(kAnswered);
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return;
    if (next_ == 1) {
      FirstFrameIs(kWritten);
    } else {
      WriteNext();
    }
  }

  void OnDone(const grpc::Status& status) override {
    status_ = status;
    done_.Notify();
  }

 private:
  static constexpr int kWritten = 1;
  static constexpr int kAnswered = 2;

  void FirstFrameIs(int what) {
    if ((first_frame_.fetch_or(what) | what) == (kWritten | kAnswered)) WriteNext();
  }

  void WriteNext() {
    if (next_ == frames_.size()) {
      StartWritesDone();
      return;
    }
    const grpc::Slice slice(frames_[next_++]);
    outgoing_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&outgoing_);
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  const std::vector<std::string> frames_;
  size_t next_ = 0;
  std::atomic<int> first_frame_ = 0;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::vector<wire::v1::FrameHeader> replies_;
  grpc::Status status_;
  absl::Notification done_;
};

class GrpcTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    auto transport = MakeGrpcTransport(Options(1));
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    transport_->SetHandlers({.receive =
                                 [this](int, const EncodedTensor&) {
                                   absl::MutexLock lock(&mutex_);
                                   ++received_;
                                 },
                             .granted = nullptr,
                             .error =
                                 [this](int peer, const absl::Status& status) {
                                   absl::MutexLock lock(&mutex_);
                                   errors_.emplace_back(peer, status);
                                 }});
  }

  static wire::v1::FrameHeader Hello() {
    wire::v1::FrameHeader header;
    auto& hello = *header.mutable_hello();
    hello.set_min_version(kMinTensorVersion);
    hello.set_max_version(kMaxTensorVersion);
    hello.set_job("job");
    hello.set_incarnation(4);
    hello.set_from_stage(0);
    hello.set_to_stage(1);
    return header;
  }

  static wire::v1::FrameHeader Descriptor(const std::string& content) {
    wire::v1::FrameHeader header;
    auto& descriptor = *header.mutable_tensor();
    descriptor.set_tensor(1);
    descriptor.set_edge(7);
    descriptor.set_direction(wire::v1::FORWARD);
    descriptor.set_codec("int8");
    descriptor.set_dtype(graph::v1::FLOAT32);
    descriptor.add_shape(4);
    descriptor.set_bytes(content.size());
    descriptor.set_checksum(
        Checksum(reinterpret_cast<const std::byte*>(content.data()), static_cast<int64_t>(content.size())));
    return header;
  }

  static std::string Data(uint64_t offset, const std::string& payload) {
    wire::v1::FrameHeader header;
    header.mutable_data()->set_tensor(1);
    header.mutable_data()->set_offset(offset);
    return FramePrefix(header) + payload;
  }

  static std::string Close() {
    wire::v1::FrameHeader header;
    header.mutable_close();
    return FramePrefix(header);
  }

  grpc::Status Say(std::vector<std::string> frames) {
    RawStream stream(transport_->address(), kTensorStreamMethod, std::move(frames));
    grpc::Status status = stream.Wait();
    replies_ = stream.replies();
    return status;
  }

  absl::Status AwaitError() {
    const auto any = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !errors_.empty(); };
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), kPatience)) return absl::OkStatus();
    EXPECT_EQ(errors_.front().first, 0);
    return errors_.front().second;
  }

  int received() {
    absl::MutexLock lock(&mutex_);
    return received_;
  }

  void ExpectStillServes() {
    const grpc::Status status =
        Say({FramePrefix(Hello()), FramePrefix(Descriptor("0123")), Data(0, "0123"), Close()});
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  absl::Mutex mutex_;
  int received_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::pair<int, absl::Status>> errors_ ABSL_GUARDED_BY(mutex_);
  std::vector<wire::v1::FrameHeader> replies_;
  std::unique_ptr<Transport> transport_;  ///< destroyed first
};

TEST_F(GrpcTransportTest, AnswersAPeerThatKeepsToTheProtocol) {
  ExpectStillServes();
  ASSERT_GE(replies_.size(), 2U);
  EXPECT_EQ(replies_.front().hello().from_stage(), 1);
  EXPECT_EQ(replies_.back().acknowledge().tensors(), 1U);
  EXPECT_EQ(replies_.back().acknowledge().bytes(),
            FramePrefix(Descriptor("0123")).size() + Data(0, "0123").size());
  EXPECT_EQ(received(), 1);
}

TEST_F(GrpcTransportTest, RefusesAnotherVersion) {
  wire::v1::FrameHeader hello = Hello();
  hello.mutable_hello()->set_min_version(kMaxTensorVersion + 1);
  hello.mutable_hello()->set_max_version(kMaxTensorVersion + 5);
  const grpc::Status status = Say({FramePrefix(hello)});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_NE(status.error_message().find("speaks versions 2 to 6"), std::string::npos)
      << status.error_message();
  ASSERT_EQ(replies_.size(), 1U);
  EXPECT_EQ(replies_.front().error().message(), status.error_message());
}

TEST_F(GrpcTransportTest, RefusesAStreamWithoutHello) {
  EXPECT_EQ(Say({FramePrefix(Descriptor("0123"))}).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(GrpcTransportTest, RefusesAnotherMethod) {
  RawStream stream(transport_->address(), "/fusion.wire.v1.Tensors/Other", {});
  EXPECT_EQ(stream.Wait().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(GrpcTransportTest, GarbageBeforeAndAfterHello) {
  EXPECT_EQ(Say({std::string(1000, '\xee')}).error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(Say({FramePrefix(Hello()), std::string(1000, '\xee')}).error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(AwaitError().code(), absl::StatusCode::kDataLoss);
  ExpectStillServes();
}

TEST_F(GrpcTransportTest, EmptyAndTruncatedFrames) {
  EXPECT_EQ(Say({FramePrefix(Hello()), ""}).error_code(), grpc::StatusCode::DATA_LOSS);
  const std::string descriptor = FramePrefix(Descriptor("0123"));
  EXPECT_EQ(Say({FramePrefix(Hello()), descriptor.substr(0, descriptor.size() - 3)}).error_code(),
            grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(received(), 0);
  ExpectStillServes();
}

TEST_F(GrpcTransportTest, WrongChecksumDeliversNothing) {
  const grpc::Status status = Say({FramePrefix(Hello()), FramePrefix(Descriptor("0123")), Data(0, "0124")});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  const absl::Status error = AwaitError();
  EXPECT_NE(error.message().find("from stage 0: step 0, micro-batch 0, edge 7 FORWARD: checksum"),
            absl::string_view::npos)
      << error;
  EXPECT_EQ(received(), 0);
  ExpectStillServes();
}

TEST_F(GrpcTransportTest, WrongOrderDeliversNothing) {
  EXPECT_EQ(Say({FramePrefix(Hello()), FramePrefix(Descriptor("0123")), Data(2, "23")}).error_code(),
            grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(received(), 0);
}

TEST_F(GrpcTransportTest, MessageAboveTheLimitEndsItsStreamOnly) {
  EXPECT_EQ(Say({FramePrefix(Hello()), std::string(2 * kMaxPayloadBytes, 'x')}).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  // gRPC itself ends this stream, and tells its two ends when it likes.
  EXPECT_EQ(AwaitError().code(), absl::StatusCode::kUnavailable);
  ExpectStillServes();
}

TEST_F(GrpcTransportTest, HalfATensorIsNotDelivered) {
  Say({FramePrefix(Hello()), FramePrefix(Descriptor("0123")), Data(0, "01")});
  EXPECT_EQ(AwaitError().code(), absl::StatusCode::kUnavailable);  // no Close came
  EXPECT_EQ(received(), 0);
}

TEST(GrpcTransportListenTest, PortInUseIsAnError) {
  const auto first = MakeGrpcTransport(Options(1));
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MakeGrpcTransport(Options(2), (*first)->address());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << second.status();
}

}  // namespace
}  // namespace fusion::worker
