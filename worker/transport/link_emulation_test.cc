// Emulated links: arithmetic of reservations, sharing between processes, and what a transport makes of a
// link's rate and latency. Times are measured: these tests run alone.
#include "worker/transport/link_emulation.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/tensor.h"
#include "worker/transport/grpc_transport.h"
#include "worker/transport/link.h"
#include "worker/transport/memory_transport.h"

extern char** environ;

namespace fusion::worker {
namespace {

wire::v1::EmulatedLink LinkTo(int stage, double bits_per_second, double latency_seconds,
                              const std::string& resource) {
  wire::v1::EmulatedLink link;
  link.set_to_stage(stage);
  link.set_latency_seconds(latency_seconds);
  link.add_resources()->set_name(resource);
  link.mutable_resources(0)->set_bits_per_second(bits_per_second);
  return link;
}

class LinkEmulationTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = absl::StrCat(testing::TempDir(), "/link-state-", getpid());
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::shared_ptr<LinkState> Open() {
    auto state = LinkState::Open(path_);
    EXPECT_TRUE(state.ok()) << state.status();
    return *std::move(state);
  }

  std::string path_;
};

TEST_F(LinkEmulationTest, ReservationsFollowEachOther) {
  const auto state = Open();
  const int slot = state->Slot("a>b").value();
  const int64_t before = MonotonicNanoseconds();
  const auto first = state->Reserve({{.slot = slot, .nanoseconds = 1'000'000'000}});
  const auto second = state->Reserve({{.slot = slot, .nanoseconds = 5}});
  EXPECT_GE(first.start, before);
  EXPECT_EQ(first.end, first.start + 1'000'000'000);
  EXPECT_EQ(second.start, first.end);
  EXPECT_EQ(second.end, first.end + 5);
}

TEST_F(LinkEmulationTest, SlowestResourceDecidesTheEndAndTheBusiestTheStart) {
  const auto state = Open();
  const int slow = state->Slot("slow").value();
  const int fast = state->Slot("fast").value();
  const auto both = state->Reserve(
      {{.slot = slow, .nanoseconds = 4'000'000'000}, {.slot = fast, .nanoseconds = 1'000'000'000}});
  EXPECT_EQ(both.end, both.start + 4'000'000'000);
  // The fast one is free again when its own share is through.
  EXPECT_EQ(state->Reserve({{.slot = fast, .nanoseconds = 1}}).start, both.start + 1'000'000'000);
  EXPECT_EQ(state->Reserve({{.slot = fast, .nanoseconds = 1}, {.slot = slow, .nanoseconds = 1}}).start,
            both.end);
}

TEST_F(LinkEmulationTest, OneFileIsOneState) {
  const auto first = Open();
  const auto second = Open();
  const int slot = first->Slot("a>b").value();
  EXPECT_EQ(first->Slot("b>a").value(), slot + 1);
  EXPECT_EQ(second->Slot("a>b").value(), slot);
  const auto reserved = first->Reserve({{.slot = slot, .nanoseconds = 7'000'000'000}});
  EXPECT_EQ(second->Reserve({{.slot = slot, .nanoseconds = 1}}).start, reserved.end);
}

TEST_F(LinkEmulationTest, ManyMayCreateTheFileAtOnce) {
  std::vector<std::shared_ptr<LinkState>> states(8);
  std::vector<std::thread> threads;
  for (auto& state : states) threads.emplace_back([&] { state = Open(); });
  for (auto& thread : threads) thread.join();
  int64_t end = 0;
  for (const auto& state : states) {
    const auto reserved =
        state->Reserve({{.slot = state->Slot("a>b").value(), .nanoseconds = 1'000'000'000}});
    EXPECT_GE(reserved.start, end);
    end = reserved.end;
  }
  // No draft is left beside it.
  const std::filesystem::path path(path_);
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path())) {
    EXPECT_FALSE(entry.path() != path && entry.path().string().find(path_) == 0) << entry.path();
  }
}

TEST_F(LinkEmulationTest, RefusesWhatIsNoStateFile) {
  std::ofstream(path_) << "text";
  EXPECT_EQ(LinkState::Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(LinkState::Open(path_ + "/nowhere").ok());
  EXPECT_FALSE(LinkState::Open(testing::TempDir() + "/no/such/folder").ok());
}

TEST_F(LinkEmulationTest, RefusesWhatIsNoLink) {
  const auto state = Open();
  EXPECT_EQ(EmulatedWay::Create(LinkTo(1, 0, 0, "a"), state).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EmulatedWay::Create(LinkTo(1, NAN, 0, "a"), state).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EmulatedWay::Create(LinkTo(1, 1e6, -1, "a"), state).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EmulatedWay::Create(LinkTo(1, 1e6, 0, ""), state).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EmulatedWay::Create(LinkTo(1, 1e6, 0, std::string(500, 'x')), state).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LinkLimitsTest, FramesOfTwentyMilliseconds) {
  EXPECT_EQ(LinkLimits::For(1e6, 0).frame_bytes, 20'000);
  EXPECT_EQ(LinkLimits::For(1e4, 0).frame_bytes, 4096);
  EXPECT_EQ(LinkLimits::For(1e9, 0).frame_bytes, 1 << 20);
  EXPECT_EQ(LinkLimits::For(1e6, 0.04).unacknowledged_bytes, 80'000 + 5'000 + 2 * 20'000);
  EXPECT_EQ(LinkLimits::For(0, 0.04).frame_bytes, 1 << 20);
}

/// Stage 0 sends to stage 1 over a link; arrivals with their times.
class EmulatedStream {
 public:
  struct Arrival {
    EncodedTensor tensor;
    int64_t time;
  };

  EmulatedStream(const std::string& state_file, const wire::v1::EmulatedLink& link, bool grpc) {
    TransportOptions options;
    options.job = "job";
    TransportOptions receiver = options;
    receiver.stage = 1;
    options.links = {link};
    options.link_state_file = state_file;
    to_ = grpc ? *MakeGrpcTransport(receiver) : *MakeMemoryTransport(hub_, receiver);
    from_ = grpc ? *MakeGrpcTransport(options) : *MakeMemoryTransport(hub_, options);
    to_->SetHandlers({.receive =
                          [this](int, EncodedTensor tensor) {
                            absl::MutexLock lock(&mutex_);
                            arrivals_.push_back({std::move(tensor), MonotonicNanoseconds()});
                          },
                      .granted = nullptr,
                      .error = nullptr});
    from_->SetHandlers({});
    const absl::Status connected = from_->Connect({{1, to_->address()}});
    EXPECT_TRUE(connected.ok()) << connected;
    from_->SetWindow(1, 1, wire::v1::FORWARD, 1'000'000);
  }

  void Send(int64_t step, int32_t micro_batch, int64_t bytes) {
    EncodedTensor tensor{.key = {.step = step, .micro_batch = micro_batch, .edge = 1},
                         .codec = "int8",
                         .shape = {bytes},
                         .data = AllocateTensor(graph::v1::UINT8, {bytes}).data,
                         .bytes = bytes};
    std::fill_n(tensor.data.get(), bytes, std::byte{1});
    from_->Send(1, tensor);
  }

  std::vector<Arrival> Await(size_t count) {
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return arrivals_.size() >= count; };
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(60)));
    return arrivals_;
  }

  Transport& from() { return *from_; }

 private:
  const std::shared_ptr<MemoryHub> hub_ = std::make_shared<MemoryHub>();
  absl::Mutex mutex_;
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Transport> to_;
  std::unique_ptr<Transport> from_;
};

class EmulatedStreamTest : public LinkEmulationTest, public testing::WithParamInterface<bool> {};

TEST_P(EmulatedStreamTest, RateWithinThreePercent) {
  for (const double rate : {8e6, 100e6}) {
    EmulatedStream stream(path_, LinkTo(1, rate, 0.04, absl::StrCat("rate ", rate)), GetParam());
    const auto bytes = static_cast<int64_t>(rate / 8);
    const int64_t start = MonotonicNanoseconds();
    stream.Send(1, 0, bytes);
    const double seconds = static_cast<double>(stream.Await(1)[0].time - start) * 1e-9 - 0.04;
    const double sent = static_cast<double>(stream.from().Counters(1).bytes);
    EXPECT_NEAR(sent / static_cast<double>(bytes), 1, 0.01);  // headers are counted, and are few
    EXPECT_NEAR(sent / seconds / (rate / 8), 1, 0.03) << rate << " bit/s";
  }
}

TEST_P(EmulatedStreamTest, LatencyOnceOnTheWayAndOnceOnTheWayBack) {
  EmulatedStream stream(path_, LinkTo(1, 1e9, 0.05, "latency"), GetParam());
  for (int i = 0; i < 3; ++i) {
    const int64_t start = MonotonicNanoseconds();
    stream.Send(i, 0, 1000);
    const double seconds = static_cast<double>(stream.Await(i + 1)[i].time - start) * 1e-9;
    EXPECT_GE(seconds, 0.05);
    EXPECT_LT(seconds, 0.06);
  }
  // Close returns when all is acknowledged.
  const int64_t start = MonotonicNanoseconds();
  stream.Send(3, 0, 1000);
  EXPECT_TRUE(stream.from().Close(10).ok());
  const double seconds = static_cast<double>(MonotonicNanoseconds() - start) * 1e-9;
  EXPECT_GE(seconds, 0.1);
  EXPECT_LT(seconds, 0.12);
  // Three times there, and there and back: each was sent before the acknowledgement of the one before had
  // come.
  EXPECT_NEAR(stream.from().Counters(1).busy_seconds, 0.25, 0.03);
}

TEST_P(EmulatedStreamTest, UrgentTensorWaitsForAFrameOrTwoOnly) {
  EmulatedStream stream(path_, LinkTo(1, 8e6, 0.01, "urgent"), GetParam());
  stream.Send(5, 0, 500'000);  // half a second
  while (stream.from().Counters(1).bytes < 100'000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const int64_t start = MonotonicNanoseconds();
  stream.Send(4, 0, 1000);
  const auto arrivals = stream.Await(1);
  EXPECT_EQ(arrivals[0].tensor.key.step, 4);
  EXPECT_LT(static_cast<double>(arrivals[0].time - start) * 1e-9, 0.01 + 3 * 0.02);
}

TEST_P(EmulatedStreamTest, SlowLinkDoesNotHoldUpAnother) {
  EmulatedStream slow(path_, LinkTo(1, 1e6, 0.2, "slow"), GetParam());
  EmulatedStream fast(path_, LinkTo(1, 1e9, 0.001, "fast"), GetParam());
  slow.Send(1, 0, 1'000'000);
  const int64_t start = MonotonicNanoseconds();
  fast.Send(1, 0, 10'000);
  EXPECT_LT(static_cast<double>(fast.Await(1)[0].time - start) * 1e-9, 0.05);
}

INSTANTIATE_TEST_SUITE_P(All, EmulatedStreamTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Grpc" : "Memory"; });

/// This program again, with an argument that makes it a user of the state file.
pid_t Spawn(const std::string& mode, const std::string& path) {
  const std::string argument = absl::StrCat("--", mode, "=", path);
  char program[] = "/proc/self/exe";
  std::vector<char*> arguments = {program, const_cast<char*>(argument.c_str()), nullptr};
  pid_t child = -1;
  EXPECT_EQ(posix_spawn(&child, program, nullptr, nullptr, arguments.data(), environ), 0);
  return child;
}

TEST_F(LinkEmulationTest, TwoProcessesShareAResource) {
  const auto state = Open();
  const pid_t child = Spawn("share", path_);
  // The other process sends a megabyte over the same 8 Mbit/s, from when its first frame is on the link.
  const int slot = state->Slot("shared").value();
  while (state->Reserve({{.slot = slot, .nanoseconds = 0}}).start <= MonotonicNanoseconds()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EmulatedStream stream(path_, LinkTo(1, 8e6, 0, "shared"), false);
  const int64_t start = MonotonicNanoseconds();
  stream.Send(1, 0, 500'000);
  // Frame by frame in turn: half of the rate, for as long as the other one sends.
  const double seconds = static_cast<double>(stream.Await(1)[0].time - start) * 1e-9;
  EXPECT_NEAR(seconds, 1.0, 0.06);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(LinkEmulationTest, SurvivesAProcessKilledWhileItReserves) {
  const auto state = Open();
  for (int i = 0; i < 20; ++i) {
    const pid_t child = Spawn("hammer", path_);
    const int slot = state->Slot("hammered").value();
    const int64_t before = state->Reserve({{.slot = slot, .nanoseconds = 0}}).start;
    // It is at work once the resource has moved on by more than time alone does.
    while (state->Reserve({{.slot = slot, .nanoseconds = 0}}).start < before + 1'000'000'000)
      std::this_thread::yield();
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    const auto reserved = state->Reserve({{.slot = slot, .nanoseconds = 1}});
    EXPECT_EQ(state->Reserve({{.slot = slot, .nanoseconds = 1}}).start, reserved.end);
  }
}

/// The other process of TwoProcessesShareAResource.
int Share(const std::string& path) {
  EmulatedStream stream(path, LinkTo(1, 8e6, 0, "shared"), false);
  stream.Send(1, 0, 1'000'000);
  stream.Await(1);
  return testing::Test::HasFailure() ? 1 : 0;
}

/// Reserves for ever, a millisecond each.
int Hammer(const std::string& path) {
  const auto state = LinkState::Open(path).value();
  const int slot = state->Slot("hammered").value();
  for (;;) state->Reserve({{.slot = slot, .nanoseconds = 1'000'000}});
}

}  // namespace

int RunAsChild(const std::string& argument) {
  if (argument.rfind("--share=", 0) == 0) return Share(argument.substr(8));
  if (argument.rfind("--hammer=", 0) == 0) return Hammer(argument.substr(9));
  return -1;
}

}  // namespace fusion::worker

int main(int argc, char** argv) {
  if (argc == 2) {
    const int code = fusion::worker::RunAsChild(argv[1]);
    if (code >= 0) return code;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
