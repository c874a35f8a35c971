#include "worker/session/broker_session.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "worker/session/fake_broker_for_test.h"

namespace fusion::worker {
namespace {

using wire::v1::BrokerMessage;
using wire::v1::WorkerMessage;

wire::v1::Register Registration() {
  wire::v1::Register registration;
  registration.set_job("default/job");
  registration.set_stage(3);
  return registration;
}

/// What the session's handlers were called with.
class Record {
 public:
  BrokerSession::Handlers Handlers() {
    return {.message =
                [this](BrokerMessage message) {
                  absl::MutexLock lock(&mutex_);
                  messages_.push_back(std::move(message));
                },
            .ended =
                [this](absl::Status status) {
                  absl::MutexLock lock(&mutex_);
                  ended_ = std::move(status);
                }};
  }
  std::optional<BrokerMessage> Next() {
    const auto there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !messages_.empty(); };
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20))) {
      return std::nullopt;
    }
    BrokerMessage message = messages_.front();
    messages_.pop_front();
    return message;
  }
  std::optional<absl::Status> Ended() {
    const auto there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_.has_value(); };
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20));
    return ended_;
  }

 private:
  absl::Mutex mutex_;
  std::deque<BrokerMessage> messages_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
};

TEST(BrokerSession, RegistersAnswersPingsAndPassesTheRest) {
  FakeBroker broker;
  Record record;
  BrokerSession session(broker.address(), Registration(), record.Handlers());
  const auto registered = broker.Await(3, WorkerMessage::kRegister);
  ASSERT_TRUE(registered.has_value());
  EXPECT_EQ(registered->register_().job(), "default/job");
  for (int64_t i = 1; i <= 3; ++i) {
    BrokerMessage ping;
    ping.mutable_ping()->set_sequence(i);
    broker.Send(3, ping);
    const auto pong = broker.Await(3, WorkerMessage::kPong);
    ASSERT_TRUE(pong.has_value());
    EXPECT_EQ(pong->pong().sequence(), i);
  }
  BrokerMessage start;
  start.mutable_start()->set_first_step(7);
  broker.Send(3, start);
  const auto message = record.Next();
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->start().first_step(), 7) << "pings are not passed on";
}

TEST(BrokerSession, CloseSendsWhatIsQueued) {
  FakeBroker broker;
  Record record;
  BrokerSession session(broker.address(), Registration(), record.Handlers());
  for (int64_t step = 1; step <= 100; ++step) {
    WorkerMessage message;
    message.mutable_step()->set_step(step);
    session.Send(message);
  }
  EXPECT_TRUE(session.Close(absl::Seconds(20)));
  for (int64_t step = 1; step <= 100; ++step) {
    const auto message = broker.Await(3, WorkerMessage::kStep);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->step().step(), step);
  }
  ASSERT_TRUE(record.Ended().has_value());
  EXPECT_TRUE(record.Ended()->ok());
}

TEST(BrokerSession, ALostBrokerEndsTheSession) {
  FakeBroker broker;
  Record record;
  BrokerSession session(broker.address(), Registration(), record.Handlers());
  ASSERT_TRUE(broker.Await(3, WorkerMessage::kRegister).has_value());
  broker.Stop();
  ASSERT_TRUE(record.Ended().has_value());
  EXPECT_FALSE(record.Ended()->ok());
  session.Send(WorkerMessage());  // has nowhere to go, and does no harm
}

TEST(BrokerSession, NoBrokerEndsTheSession) {
  Record record;
  BrokerSession session("127.0.0.1:1", Registration(), record.Handlers());
  ASSERT_TRUE(record.Ended().has_value());
  EXPECT_EQ(record.Ended()->code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace fusion::worker
