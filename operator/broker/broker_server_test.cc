#include "operator/broker/broker_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace fusion::op {
namespace {

using wire::v1::BrokerMessage;
using wire::v1::WorkerMessage;

constexpr char kJob[] = "default/job";
constexpr absl::Duration kPatience = absl::Seconds(20);

/// A worker's side of a session, driven by a test's own thread.
class TestSession {
 public:
  TestSession(const std::string& address, int stage, int64_t incarnation = 1)
      : stub_(wire::v1::Broker::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        stage_(stage) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = stub_->Session(&context_);
    WorkerMessage message;
    wire::v1::Register& registration = *message.mutable_register_();
    registration.set_min_version(1);
    registration.set_max_version(1);
    registration.set_job(kJob);
    registration.set_stage(stage);
    registration.set_compnode(absl::StrCat("n", stage));
    registration.set_incarnation(incarnation);
    registration.set_data_address(absl::StrCat("127.0.0.1:", 9000 + stage));
    stream_->Write(message);
  }

  /// The next message but pings, which are answered.
  BrokerMessage Next() {
    BrokerMessage message;
    while (stream_->Read(&message)) {
      if (!message.has_ping()) return message;
      WorkerMessage pong;
      pong.mutable_pong()->set_sequence(message.ping().sequence());
      Send(pong);
    }
    return BrokerMessage();
  }
  void Send(const WorkerMessage& message) { stream_->Write(message); }
  void SendReady() {
    WorkerMessage message;
    message.mutable_ready();
    Send(message);
  }
  void SendStep(int64_t step) {
    WorkerMessage message;
    message.mutable_step()->set_step(step);
    message.mutable_step()->set_stage(stage_);
    message.mutable_step()->set_loss(0.5);
    message.mutable_step()->set_end_ns(step * 1'000'000);
    Send(message);
  }
  void Break() { context_.TryCancel(); }
  grpc::Status Finish() {
    BrokerMessage rest;
    while (stream_->Read(&rest)) {
    }
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<wire::v1::Broker::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<WorkerMessage, BrokerMessage>> stream_;
  const int stage_;
};

class BrokerServerTest : public ::testing::Test, public RunObserver {
 protected:
  BrokerServerTest() : broker_(*BrokerServer::Start("127.0.0.1:0", *this)) {}

  void Admit(int stages, int64_t incarnation = 1, int64_t steps = 2) {
    RunSpec run{kJob, incarnation, {}, {}};
    for (int stage = 0; stage < stages; ++stage) {
      run.compnodes.push_back(absl::StrCat("n", stage));
      wire::v1::Assignment assignment;
      assignment.set_stages(stages);
      assignment.mutable_program()->set_stage(stage);
      assignment.mutable_spec()->mutable_training()->set_steps(steps);
      run.assignments.push_back(std::move(assignment));
    }
    ASSERT_TRUE(broker_->Admit(std::move(run)).ok());
  }
  std::unique_ptr<TestSession> Join(int stage, int64_t incarnation = 1) {
    return std::make_unique<TestSession>(broker_->address(), stage, incarnation);
  }
  RunStatus Status() { return broker_->Find(kJob).value_or(RunStatus()); }

  bool Reaches(RunPhase phase) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&] { return broker_->Find(kJob).value_or(RunStatus()).phase == phase; };
    const absl::Time deadline = absl::Now() + kPatience;
    while (!reached()) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) return false;
    }
    return true;
  }

  void OnStep(const std::string&, const StepRecord& record) override {
    absl::MutexLock lock(&mutex_);
    steps_.push_back(record.step);
  }
  void OnCheckpoint(const std::string&, int64_t, const std::string& path) override {
    absl::MutexLock lock(&mutex_);
    checkpoints_.push_back(path);
  }
  void OnChange(const std::string&) override {
    absl::MutexLock lock(&mutex_);
    changed_.SignalAll();
  }

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<int64_t> steps_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> checkpoints_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<BrokerServer> broker_;
};

TEST_F(BrokerServerTest, ARunFromRegistrationToTheLastCheckpoint) {
  Admit(2);
  std::vector<std::thread> workers;
  workers.reserve(2);
  for (int stage = 0; stage < 2; ++stage) {
    workers.emplace_back([this, stage] {
      auto session = Join(stage);
      const BrokerMessage assignment = session->Next();
      EXPECT_EQ(assignment.assignment().program().stage(), stage);
      EXPECT_EQ(assignment.assignment().version(), 1);
      const BrokerMessage peers = session->Next();
      EXPECT_EQ(peers.peers().addresses().at(1 - stage), absl::StrCat("127.0.0.1:", 9000 + 1 - stage));
      session->SendReady();
      EXPECT_EQ(session->Next().start().first_step(), 1);
      for (int64_t step : {1, 2}) session->SendStep(step);
      WorkerMessage part;
      part.mutable_checkpoint_part()->set_step(2);
      part.mutable_checkpoint_part()->set_path(absl::StrCat("part-", stage));
      session->Send(part);
      WorkerMessage finished;
      finished.mutable_finished()->set_step(2);
      session->Send(finished);
      if (stage == 0) {
        const BrokerMessage assemble = session->Next();
        EXPECT_EQ(assemble.assemble().parts_size(), 2);
        WorkerMessage done;
        done.mutable_checkpoint_done()->set_step(2);
        done.mutable_checkpoint_done()->set_path("step-2");
        session->Send(done);
      }
      const BrokerMessage stop = session->Next();
      EXPECT_TRUE(stop.has_stop());
      EXPECT_EQ(stop.stop().reason(), "");
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_TRUE(Reaches(RunPhase::kSucceeded));
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(steps_, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(checkpoints_, std::vector<std::string>{"step-2"});
}

TEST_F(BrokerServerTest, RefusalsEndTheStreamWithTheirStatus) {
  EXPECT_EQ(Join(0)->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  Admit(1);
  EXPECT_EQ(Join(0, 7)->Finish().error_code(), grpc::StatusCode::ABORTED);
  auto first = Join(0);
  EXPECT_TRUE(first->Next().has_assignment());
  const grpc::Status second = Join(0)->Finish();
  EXPECT_EQ(second.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(absl::StrContains(second.error_message(), "stage 0")) << second.error_message();
  EXPECT_TRUE(first->Next().has_peers());  // undisturbed
}

TEST_F(BrokerServerTest, ABrokenStreamFailsTheRunAndStopsTheOthers) {
  Admit(2);
  auto survivor = Join(0);
  auto victim = Join(1);
  EXPECT_TRUE(survivor->Next().has_assignment());
  EXPECT_TRUE(survivor->Next().has_peers());
  const absl::Time broken = absl::Now();
  victim->Break();
  const BrokerMessage stop = survivor->Next();
  EXPECT_LE(absl::Now() - broken, absl::Seconds(5));
  EXPECT_EQ(stop.stop().reason(), "stage 1 (compnode n1) was lost: its session broke");
  EXPECT_TRUE(Reaches(RunPhase::kFailed));
  EXPECT_EQ(Status().reason, "WorkerLost");
}

TEST_F(BrokerServerTest, ASilentWorkerIsFoundWithinFiveSeconds) {
  Admit(1);
  auto silent = Join(0);  // reads nothing, so answers no ping
  const absl::Time joined = absl::Now();
  EXPECT_TRUE(Reaches(RunPhase::kFailed));
  EXPECT_LE(absl::Now() - joined, absl::Seconds(5.5));
  EXPECT_TRUE(absl::StrContains(Status().message, "has not answered")) << Status().message;
}

TEST_F(BrokerServerTest, AnExitFailsTheRun) {
  Admit(1);
  broker_->WorkerExited({{kJob, 0, "n0", 1}, "exited with status 127", "not found"});
  EXPECT_TRUE(Reaches(RunPhase::kFailed));
  EXPECT_EQ(Status().message,
            "stage 0 (compnode n0) was lost: its worker exited with status 127 before it registered; last "
            "lines of its "
            "log:\nnot found");
}

TEST_F(BrokerServerTest, AHigherIncarnationReplacesALowerOne) {
  Admit(1, 1);
  auto old = Join(0, 1);
  EXPECT_TRUE(old->Next().has_assignment());
  EXPECT_TRUE(old->Next().has_peers());
  Admit(1, 2);
  EXPECT_TRUE(old->Next().has_stop());
  EXPECT_EQ(Status().incarnation, 2);
  old->SendStep(1);  // of an old worker: heard by nobody
  auto fresh = Join(0, 2);
  EXPECT_TRUE(fresh->Next().has_assignment());
  EXPECT_NE(Status().phase, RunPhase::kFailed);
  RunSpec stale{kJob, 1, {"n0"}, std::vector<wire::v1::Assignment>(1)};
  EXPECT_TRUE(absl::IsAborted(broker_->Admit(stale)));
  Admit(1, 2);  // again: harmless
  EXPECT_EQ(Status().incarnation, 2);
}

TEST_F(BrokerServerTest, StopAndForget) {
  Admit(1);
  auto session = Join(0);
  EXPECT_TRUE(session->Next().has_assignment());
  EXPECT_TRUE(session->Next().has_peers());
  broker_->Stop(kJob, "cancelled by the user");
  EXPECT_EQ(session->Next().stop().reason(), "cancelled by the user");
  EXPECT_TRUE(Reaches(RunPhase::kStopped));
  broker_->Forget(kJob);
  EXPECT_EQ(Join(0)->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(broker_->Find(kJob), std::nullopt);
}

TEST_F(BrokerServerTest, AFirstMessageThatIsNoRegistrationIsRefused) {
  auto stub =
      wire::v1::Broker::NewStub(grpc::CreateChannel(broker_->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  auto stream = stub->Session(&context);
  WorkerMessage message;
  message.mutable_ready();
  stream->Write(message);
  BrokerMessage rest;
  while (stream->Read(&rest)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(BrokerServerTest, EndsWithSessionsOpen) {
  Admit(2);
  auto session = Join(0);
  EXPECT_TRUE(session->Next().has_assignment());
  broker_.reset();
  EXPECT_FALSE(session->Finish().ok());
}

}  // namespace
}  // namespace fusion::op
