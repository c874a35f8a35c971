// One suite over all transports: in-memory and gRPC, each at full speed and over emulated links.
#include "worker/transport/transport.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/tensor.h"
#include "worker/transport/grpc_transport.h"
#include "worker/transport/memory_transport.h"

namespace fusion::worker {
namespace {

using wire::v1::BACKWARD;
using wire::v1::FORWARD;

constexpr absl::Duration kPatience = absl::Seconds(60);

/// A transport with what its handlers were told.
class Stage {
 public:
  explicit Stage(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {
    transport_->SetHandlers({.receive =
                                 [this](int from, EncodedTensor tensor) {
                                   absl::MutexLock lock(&mutex_);
                                   received_.emplace_back(from, std::move(tensor));
                                 },
                             .granted =
                                 [this](int, int32_t, wire::v1::Direction) {
                                   absl::MutexLock lock(&mutex_);
                                   ++granted_;
                                 },
                             .error =
                                 [this](int peer, const absl::Status& status) {
                                   absl::MutexLock lock(&mutex_);
                                   errors_.emplace_back(peer, status);
                                 }});
  }

  Transport* operator->() { return transport_.get(); }
  void Destroy() { transport_.reset(); }

  /// Everything received so far, when it is `count` tensors or more.
  std::vector<EncodedTensor> Receive(size_t count) {
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return received_.size() >= count || !errors_.empty();
    };
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
    EXPECT_EQ(received_.size(), count) << (errors_.empty() ? "" : errors_.front().second.ToString());
    std::vector<EncodedTensor> tensors;
    for (const auto& [from, tensor] : received_) tensors.push_back(tensor);
    return tensors;
  }

  int AwaitGrants(int count) {
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return granted_ >= count; };
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
    return granted_;
  }

  std::pair<int, absl::Status> AwaitError() {
    const auto any = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !errors_.empty(); };
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&any), kPatience)) return {-1, absl::OkStatus()};
    return errors_.front();
  }

  size_t errors() {
    absl::MutexLock lock(&mutex_);
    return errors_.size();
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::pair<int, EncodedTensor>> received_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<int, absl::Status>> errors_ ABSL_GUARDED_BY(mutex_);
  int granted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Transport> transport_;  ///< destroyed first
};

struct Kind {
  std::string name;
  bool grpc = false;
  bool emulated = false;
};

class TransportTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    link_state_ = absl::StrCat(testing::TempDir(), "/links-", getpid());
    std::filesystem::remove(link_state_);
  }
  void TearDown() override { std::filesystem::remove(link_state_); }

  TransportOptions Options(int stage) {
    TransportOptions options;
    options.job = "job";
    options.incarnation = 4;
    options.stage = stage;
    if (GetParam().emulated) {
      options.link_state_file = link_state_;
      for (int peer = 0; peer < 3; ++peer) {
        wire::v1::EmulatedLink link;
        link.set_to_stage(peer);
        link.set_latency_seconds(0.002);
        auto& resource = *link.add_resources();
        resource.set_name(absl::StrCat(stage, ">", peer));
        resource.set_bits_per_second(4e9);
        options.links.push_back(link);
      }
    }
    return options;
  }

  std::unique_ptr<Transport> Make(const TransportOptions& options) {
    auto transport = GetParam().grpc ? MakeGrpcTransport(options) : MakeMemoryTransport(hub_, options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }

  /// Stages 0 and 1, connected both ways.
  void ConnectTwo() {
    first_ = std::make_unique<Stage>(Make(Options(0)));
    second_ = std::make_unique<Stage>(Make(Options(1)));
    ASSERT_TRUE((*first_)->Connect({{1, (*second_)->address()}}).ok());
    ASSERT_TRUE((*second_)->Connect({{0, (*first_)->address()}}).ok());
  }

  absl::Status ConnectWith(const TransportOptions& dialler, const TransportOptions& acceptor) {
    Stage from(Make(dialler));
    Stage to(Make(acceptor));
    return from->Connect({{1, to->address()}});
  }

  const std::shared_ptr<MemoryHub> hub_ = std::make_shared<MemoryHub>();
  std::string link_state_;
  std::unique_ptr<Stage> first_;
  std::unique_ptr<Stage> second_;
};

EncodedTensor RandomTensor(TensorKey key, int64_t bytes) {
  Tensor storage = AllocateTensor(graph::v1::UINT8, {bytes});
  std::mt19937_64 random(static_cast<uint64_t>(key.micro_batch) * 1000 + key.edge);
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t value = random();
    std::memcpy(storage.data.get() + i, &value, 8);
  }
  std::fill(storage.data.get() + bytes / 8 * 8, storage.data.get() + bytes, std::byte{7});
  return {.key = key,
          .codec = "int8",
          .dtype = graph::v1::FLOAT32,
          .shape = {bytes},
          .absent = false,
          .data = storage.data,
          .bytes = bytes};
}

void ExpectEqual(const EncodedTensor& a, const EncodedTensor& b) {
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.codec, b.codec);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.absent, b.absent);
  ASSERT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.bytes == 0 || std::memcmp(a.data.get(), b.data.get(), a.bytes) == 0, true);
}

TEST_P(TransportTest, DeliversWhatWasSentBothWays) {
  ConnectTwo();
  const EncodedTensor there = RandomTensor({.step = 1, .micro_batch = 2, .edge = 3}, 12345);
  const EncodedTensor back =
      RandomTensor({.step = 5, .micro_batch = 6, .edge = 7, .direction = BACKWARD, .consumer = 2}, 1);
  (*first_)->Send(1, there);
  (*second_)->Send(0, back);
  ExpectEqual(second_->Receive(1).front(), there);
  ExpectEqual(first_->Receive(1).front(), back);
}

TEST_P(TransportTest, AbsentGradientAndEmptyTensor) {
  ConnectTwo();
  EncodedTensor absent = RandomTensor({.step = 1, .edge = 1, .direction = BACKWARD}, 64);
  absent.absent = true;
  (*first_)->Send(1, absent);
  (*first_)->Send(1, RandomTensor({.step = 2, .edge = 1}, 0));
  const auto received = second_->Receive(2);
  EXPECT_TRUE(received[0].absent);
  EXPECT_EQ(received[0].bytes, 0);
  EXPECT_FALSE(received[1].absent);
  EXPECT_EQ((*first_)->Counters(1).dense_bytes, 0);
}

TEST_P(TransportTest, CreditsBoundWhatIsUnderWay) {
  ConnectTwo();
  (*first_)->SetWindow(1, 1, FORWARD, 3);
  for (int micro_batch = 0; micro_batch < 6; ++micro_batch) {
    (*first_)->Send(1, RandomTensor({.step = 1, .micro_batch = micro_batch, .edge = 1}, 100));
  }
  // Another edge is not held up, and its arrival shows that nothing more of the first one is on the way.
  (*first_)->Send(1, RandomTensor({.step = 2, .micro_batch = 0, .edge = 2}, 100));
  EXPECT_EQ(second_->Receive(4).back().key.edge, 2);
  (*second_)->Grant(0, 1, FORWARD);
  (*second_)->Grant(0, 1, FORWARD);
  EXPECT_EQ(second_->Receive(6).back().key.micro_batch, 4);
  EXPECT_EQ(first_->AwaitGrants(2), 2);
}

TEST_P(TransportTest, LowerStepsAndMicroBatchesGoFirst) {
  ConnectTwo();
  // Sent before anything is granted: what waits is sorted when the credit comes.
  (*first_)->SetWindow(1, 1, FORWARD, 0);
  (*first_)->Send(1, RandomTensor({.step = 2, .micro_batch = 0, .edge = 1}, 10));
  (*first_)->Send(1, RandomTensor({.step = 1, .micro_batch = 3, .edge = 1}, 10));
  (*first_)->Send(1, RandomTensor({.step = 1, .micro_batch = 1, .edge = 1}, 10));
  (*first_)->SetWindow(1, 1, FORWARD, 3);
  const auto received = second_->Receive(3);
  EXPECT_EQ(received[0].key.micro_batch, 1);
  EXPECT_EQ(received[1].key.micro_batch, 3);
  EXPECT_EQ(received[2].key.step, 2);
}

TEST_P(TransportTest, LargeTensor) {
  ConnectTwo();
  const EncodedTensor large = RandomTensor({.step = 1, .edge = 1}, int64_t{64} << 20);
  (*first_)->Send(1, large);
  ExpectEqual(second_->Receive(1).front(), large);
  EXPECT_TRUE((*first_)->Close(30).ok());
}

TEST_P(TransportTest, ManySmallTensorsInOrder) {
  ConnectTwo();
  constexpr int kTensors = 2000;
  (*first_)->SetWindow(1, 1, FORWARD, kTensors);
  for (int i = 0; i < kTensors; ++i)
    (*first_)->Send(1, RandomTensor({.step = 1, .micro_batch = i, .edge = 1}, 40));
  const auto received = second_->Receive(kTensors);
  for (int i = 0; i < kTensors; ++i) ASSERT_EQ(received[i].key.micro_batch, i);
}

TEST_P(TransportTest, CloseSendsWhatIsQueued) {
  ConnectTwo();
  (*first_)->SetWindow(1, 1, FORWARD, 50);
  for (int i = 0; i < 50; ++i)
    (*first_)->Send(1, RandomTensor({.step = 1, .micro_batch = i, .edge = 1}, 10'000));
  EXPECT_TRUE((*first_)->Close(30).ok());
  second_->Receive(50);
  EXPECT_TRUE((*second_)->Close(30).ok());
  EXPECT_EQ(second_->errors(), 0U);
}

TEST_P(TransportTest, CloseSaysWhatItCouldNotSend) {
  ConnectTwo();
  for (int i = 0; i < 5; ++i) (*first_)->Send(1, RandomTensor({.step = 1, .micro_batch = i, .edge = 1}, 10));
  second_->Receive(2);
  const absl::Status status = (*first_)->Close(0.05);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("3 tensors with 30 bytes to stage 1 were not sent"),
            absl::string_view::npos)
      << status;
}

TEST_P(TransportTest, CountsBytesAndTime) {
  ConnectTwo();
  EncodedTensor tensor = RandomTensor({.step = 1, .edge = 1}, 100'000);
  tensor.shape = {400'000};
  (*first_)->Send(1, tensor);
  EXPECT_TRUE((*first_)->Close(30).ok());
  const LinkCounters counters = (*first_)->Counters(1);
  EXPECT_EQ(counters.dense_bytes, 1'600'000);
  EXPECT_GT(counters.bytes, 100'000);
  EXPECT_LT(counters.bytes, 101'000);
  EXPECT_GT(counters.busy_seconds, 0);
  EXPECT_LT(counters.busy_seconds, 10);
  EXPECT_EQ((*first_)->Counters(2).bytes, 0);
}

TEST_P(TransportTest, WaitsForThePeersHandlers) {
  first_ = std::make_unique<Stage>(Make(Options(0)));
  std::unique_ptr<Transport> late = Make(Options(1));
  const std::string address = late->address();
  absl::Status status;
  std::thread connecting([&] {
    status = (*first_)->Connect({{1, address}});
    (*first_)->Send(1, RandomTensor({.step = 1, .edge = 1}, 10));
  });
  Stage second(std::move(late));
  second.Receive(1);
  connecting.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(TransportTest, ThreeStagesDoNotMixTheirStreams) {
  ConnectTwo();
  Stage third(Make(Options(2)));
  ASSERT_TRUE(third->Connect({{1, (*second_)->address()}}).ok());
  (*first_)->SetWindow(1, 1, FORWARD, 100);
  third->SetWindow(1, 1, FORWARD, 100);
  for (int i = 0; i < 100; ++i) {
    (*first_)->Send(1, RandomTensor({.step = 1, .micro_batch = i, .edge = 1}, 1000));
    third->Send(1, RandomTensor({.step = 2, .micro_batch = i, .edge = 1}, 1000));
  }
  std::map<int64_t, int> next;
  for (const EncodedTensor& tensor : second_->Receive(200)) {
    EXPECT_EQ(tensor.key.micro_batch, next[tensor.key.step]++);
  }
}

TEST_P(TransportTest, RefusesAnotherJobIncarnationOrStage) {
  using absl::StatusCode;
  TransportOptions other = Options(0);
  other.job = "other";
  absl::Status status = ConnectWith(other, Options(1));
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << status;
  EXPECT_NE(status.message().find("'other'"), absl::string_view::npos) << status;

  other = Options(0);
  other.incarnation = 3;
  status = ConnectWith(other, Options(1));
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status;
  EXPECT_NE(status.message().find("incarnation 3"), absl::string_view::npos) << status;

  status = ConnectWith(Options(0), Options(2));
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status;
}

TEST_P(TransportTest, RefusesASecondStreamOfOneStage) {
  ConnectTwo();
  Stage twin(Make(Options(0)));
  EXPECT_EQ(twin->Connect({{1, (*second_)->address()}}).code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(TransportTest, NobodyThereIsAnErrorAtTheDeadline) {
  TransportOptions options = Options(0);
  options.connect_timeout_seconds = 0.1;
  Stage stage(Make(options));
  const absl::Status status = stage->Connect({{1, GetParam().grpc ? "127.0.0.1:1" : "memory:999"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST_P(TransportTest, SenderGoneIsAnErrorOfItsStage) {
  ConnectTwo();
  (*first_)->Send(1, RandomTensor({.step = 1, .edge = 1}, 10));
  second_->Receive(1);
  first_->Destroy();
  const auto [stage, status] = second_->AwaitError();
  EXPECT_EQ(stage, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_P(TransportTest, SendingToAClosedPeerIsAnError) {
  ConnectTwo();
  EXPECT_TRUE((*second_)->Close(30).ok());
  (*first_)->Send(1, RandomTensor({.step = 1, .edge = 1}, 10));
  const auto [stage, status] = first_->AwaitError();
  EXPECT_EQ(stage, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_P(TransportTest, BothCloseAtOnce) {
  ConnectTwo();
  (*first_)->Send(1, RandomTensor({.step = 1, .edge = 1}, 100'000));
  (*second_)->Send(0, RandomTensor({.step = 1, .edge = 1, .direction = BACKWARD}, 100'000));
  first_->Receive(1);
  second_->Receive(1);
  absl::Status status;
  std::thread closing([&] { status = (*first_)->Close(30); });
  EXPECT_TRUE((*second_)->Close(30).ok());
  closing.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(first_->errors() + second_->errors(), 0U);
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         testing::Values(Kind{.name = "Memory"},
                                         Kind{.name = "MemoryEmulated", .emulated = true},
                                         Kind{.name = "Grpc", .grpc = true},
                                         Kind{.name = "GrpcEmulated", .grpc = true, .emulated = true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fusion::worker
