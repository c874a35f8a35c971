#include "operator/broker/run_protocol.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace fusion::op {
namespace {

using wire::v1::BrokerMessage;
using wire::v1::WorkerMessage;

constexpr char kJob[] = "default/job";

RunSpec TwoStages(int64_t steps) {
  RunSpec run{kJob, 3, {"a1", "b1"}, std::vector<wire::v1::Assignment>(2)};
  for (wire::v1::Assignment& assignment : run.assignments) {
    assignment.set_job(kJob);
    v1alpha1::FusionJobSpec& spec = *assignment.mutable_spec();
    spec.mutable_training()->set_steps(steps);
    spec.mutable_training()->mutable_batch()->set_global(8);
  }
  return run;
}

wire::v1::Register Registration(int stage) {
  wire::v1::Register message;
  message.set_min_version(1);
  message.set_max_version(1);
  message.set_job(kJob);
  message.set_stage(stage);
  message.set_compnode(stage == 0 ? "a1" : "b1");
  message.set_incarnation(3);
  message.set_data_address(absl::StrCat("127.0.0.1:", 7000 + stage));
  return message;
}

WorkerMessage ReadyMessage() {
  WorkerMessage message;
  message.mutable_ready();
  return message;
}
WorkerMessage Step(int stage, int64_t step) {
  WorkerMessage message;
  message.mutable_step()->set_step(step);
  message.mutable_step()->set_stage(stage);
  message.mutable_step()->set_start_ns(step * 1'000'000'000);
  message.mutable_step()->set_end_ns(step * 1'000'000'000 + 900'000'000 + stage);
  if (stage == 1) message.mutable_step()->set_loss(1.0 / static_cast<double>(step));
  return message;
}
WorkerMessage Part(int stage, int64_t step) {
  WorkerMessage message;
  message.mutable_checkpoint_part()->set_step(step);
  message.mutable_checkpoint_part()->set_path(absl::StrCat("part-", step, "-", stage));
  return message;
}
WorkerMessage Done(int64_t step) {
  WorkerMessage message;
  message.mutable_checkpoint_done()->set_step(step);
  message.mutable_checkpoint_done()->set_path(absl::StrCat("step-", step));
  return message;
}
WorkerMessage FinishedMessage(int64_t step) {
  WorkerMessage message;
  message.mutable_finished()->set_step(step);
  return message;
}
WorkerMessage FailureMessage(absl::StatusCode code, const std::string& text) {
  WorkerMessage message;
  message.mutable_failure()->set_code(static_cast<int>(code));
  message.mutable_failure()->set_message(text);
  return message;
}

std::vector<int> Receivers(const RunOutputs& outputs, BrokerMessage::KindCase kind) {
  std::vector<int> stages;
  for (const auto& [stage, message] : outputs.sends) {
    if (message.kind_case() == kind) stages.push_back(stage);
  }
  return stages;
}

using Stages = std::vector<int>;

/// A run of two stages that trains for `steps` steps.
class RunProtocolTest : public ::testing::Test {
 protected:
  void Begin(RunSpec run) { protocol_.emplace(std::move(run)); }
  void BeginRunning(int64_t steps) {
    Begin(TwoStages(steps));
    for (int stage : {0, 1}) ASSERT_TRUE(protocol_->Register(Registration(stage), now_).ok());
    for (int stage : {0, 1}) Receive(stage, ReadyMessage());
    ASSERT_EQ(phase(), RunPhase::kRunning);
  }
  RunOutputs Receive(int stage, const WorkerMessage& message) {
    return protocol_->Receive(stage, message, now_);
  }
  RunPhase phase() const { return protocol_->status().phase; }
  std::string message() const { return protocol_->status().message; }

  /// Lets time pass in ticks while the stages in `alive` answer.
  void Pass(absl::Duration duration, const Stages& alive) {
    for (const Instant end = now_ + duration; now_ < end;) {
      now_ += kTickInterval;
      protocol_->Tick(now_);
      for (int stage : alive) {
        WorkerMessage pong;
        pong.mutable_pong();
        Receive(stage, pong);
      }
    }
  }

  std::optional<RunProtocol> protocol_;
  Instant now_ = absl::Seconds(100);
};

TEST_F(RunProtocolTest, AWholeRun) {
  Begin(TwoStages(2));
  auto first = protocol_->Register(Registration(1), now_);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Receivers(*first, BrokerMessage::kAssignment), Stages{1});
  EXPECT_TRUE(Receivers(*first, BrokerMessage::kPeers).empty());
  auto second = protocol_->Register(Registration(0), now_);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(Receivers(*second, BrokerMessage::kAssignment), Stages{0});
  EXPECT_EQ(Receivers(*second, BrokerMessage::kPeers), (Stages{0, 1}));
  EXPECT_EQ(second->sends.back().second.peers().addresses().at(1), "127.0.0.1:7001");
  EXPECT_EQ(phase(), RunPhase::kLoading);

  EXPECT_TRUE(Receive(0, ReadyMessage()).sends.empty());
  const RunOutputs started = Receive(1, ReadyMessage());
  EXPECT_EQ(Receivers(started, BrokerMessage::kStart), (Stages{0, 1}));
  EXPECT_EQ(started.sends[0].second.start().first_step(), 1);
  EXPECT_EQ(phase(), RunPhase::kRunning);

  EXPECT_TRUE(Receive(0, Step(0, 1)).steps.empty());
  EXPECT_TRUE(Receive(0, Step(0, 2)).steps.empty());
  const RunOutputs one = Receive(1, Step(1, 1));
  ASSERT_EQ(one.steps.size(), 1u);
  EXPECT_EQ(one.steps[0].step, 1);
  EXPECT_EQ(one.steps[0].loss, 1.0);
  EXPECT_EQ(Receive(1, Step(1, 2)).steps.size(), 1u);

  EXPECT_TRUE(Receive(1, Part(1, 2)).sends.empty());
  Receive(1, FinishedMessage(2));
  const RunOutputs parts = Receive(0, Part(0, 2));
  EXPECT_EQ(Receivers(parts, BrokerMessage::kAssemble), Stages{0});
  EXPECT_EQ(parts.sends[0].second.assemble().parts(1), "part-2-1");
  EXPECT_EQ(phase(), RunPhase::kRunning);
  Receive(0, FinishedMessage(2));
  EXPECT_EQ(phase(), RunPhase::kRunning);
  const RunOutputs done = Receive(0, Done(2));
  EXPECT_EQ(phase(), RunPhase::kSucceeded);
  EXPECT_EQ(Receivers(done, BrokerMessage::kStop), (Stages{0, 1}));
  EXPECT_EQ(done.sends[0].second.stop().reason(), "");
  EXPECT_EQ(done.checkpoint->second, "step-2");
  EXPECT_EQ(protocol_->status().checkpoint, "step-2");

  protocol_->SessionEnded(0, now_);
  protocol_->WorkerExited({{kJob, 1, "b1", 3}, "exited with status 0", ""}, now_);
  EXPECT_EQ(phase(), RunPhase::kSucceeded);
}

TEST_F(RunProtocolTest, EvaluationIsOneValidation) {
  RunSpec run = TwoStages(5);
  for (auto& assignment : run.assignments)
    assignment.mutable_spec()->set_task(v1alpha1::FusionJobSpec::Evaluate);
  Begin(std::move(run));
  for (int stage : {0, 1}) ASSERT_TRUE(protocol_->Register(Registration(stage), now_).ok());
  for (int stage : {0, 1}) Receive(stage, ReadyMessage());
  Receive(0, FinishedMessage(0));
  Receive(1, FinishedMessage(0));
  EXPECT_EQ(phase(), RunPhase::kRunning);
  WorkerMessage validation;
  validation.mutable_validation()->set_loss(2.5);
  Receive(1, validation);
  EXPECT_EQ(phase(), RunPhase::kSucceeded);
  EXPECT_EQ(protocol_->status().validation_loss, 2.5);
}

TEST_F(RunProtocolTest, WrongRegistrationsAreRefusedAndChangeNothing) {
  Begin(TwoStages(2));
  const auto refusal = [&](auto change) {
    wire::v1::Register message = Registration(0);
    change(message);
    return protocol_->Register(message, now_).status();
  };
  EXPECT_TRUE(absl::IsUnimplemented(refusal([](auto& m) {
    m.set_min_version(2);
    m.set_max_version(9);
  })));
  EXPECT_TRUE(absl::IsAborted(refusal([](auto& m) { m.set_incarnation(2); })));
  EXPECT_TRUE(absl::IsAborted(refusal([](auto& m) { m.set_incarnation(4); })));
  EXPECT_TRUE(absl::IsNotFound(refusal([](auto& m) { m.set_stage(2); })));
  EXPECT_TRUE(absl::IsNotFound(refusal([](auto& m) { m.set_stage(-1); })));
  EXPECT_TRUE(absl::IsPermissionDenied(refusal([](auto& m) { m.set_compnode("b1"); })));
  EXPECT_TRUE(protocol_->Register(Registration(0), now_).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(refusal([](auto&) {})));
  EXPECT_EQ(phase(), RunPhase::kRegistering);
}

TEST_F(RunProtocolTest, ADeadWorkerFailsTheRunAtOnceWithItsStatus) {
  BeginRunning(10);
  const RunOutputs outputs =
      protocol_->WorkerExited({{kJob, 1, "b1", 3}, "was ended by signal 9 (Killed)", "step 4\nstep 5"}, now_);
  EXPECT_EQ(phase(), RunPhase::kFailed);
  EXPECT_EQ(
      message(),
      "stage 1 (compnode b1) was lost: its worker was ended by signal 9 (Killed); last lines of its log:\n"
      "step 4\nstep 5");
  EXPECT_EQ(Receivers(outputs, BrokerMessage::kStop), (Stages{0, 1}));
  EXPECT_FALSE(outputs.sends[0].second.stop().reason().empty());
}

TEST_F(RunProtocolTest, AWorkerOfAnotherIncarnationMayDie) {
  BeginRunning(10);
  protocol_->WorkerExited({{kJob, 1, "b1", 2}, "exited with status 1", ""}, now_);
  EXPECT_EQ(phase(), RunPhase::kRunning);
}

TEST_F(RunProtocolTest, ABrokenSessionWaitsForTheExitStatus) {
  BeginRunning(10);
  protocol_->SessionEnded(1, now_);
  EXPECT_EQ(phase(), RunPhase::kRunning);
  now_ += absl::Milliseconds(100);
  protocol_->WorkerExited({{kJob, 1, "b1", 3}, "exited with status 3", ""}, now_);
  EXPECT_EQ(message(), "stage 1 (compnode b1) was lost: its worker exited with status 3");
}

TEST_F(RunProtocolTest, ABrokenSessionAloneFailsTheRunSoon) {
  BeginRunning(10);
  protocol_->SessionEnded(1, now_);
  Pass(kVerdictDelay + kTickInterval, {0});
  EXPECT_EQ(phase(), RunPhase::kFailed);
  EXPECT_EQ(message(), "stage 1 (compnode b1) was lost: its session broke");
}

TEST_F(RunProtocolTest, ASilentWorkerIsKnownWithinFiveSeconds) {
  BeginRunning(10);
  Pass(absl::Seconds(30), {0, 1});
  EXPECT_EQ(phase(), RunPhase::kRunning);
  const Instant hung = now_;
  while (phase() == RunPhase::kRunning) Pass(kTickInterval, {1});
  EXPECT_LE(now_ - hung, absl::Seconds(5));
  EXPECT_TRUE(
      absl::StartsWith(message(), "stage 0 (compnode a1) was lost: its worker has not answered for 4"))
      << message();
}

TEST_F(RunProtocolTest, TheNeighbourThatComplainsIsNotBlamed) {
  BeginRunning(10);
  Receive(0, FailureMessage(absl::StatusCode::kUnavailable, "stage 1: connection reset"));
  Pass(absl::Milliseconds(500), {0, 1});
  protocol_->SessionEnded(1, now_);
  Pass(absl::Milliseconds(500), {0});
  EXPECT_EQ(phase(), RunPhase::kRunning);
  protocol_->WorkerExited({{kJob, 1, "b1", 3}, "exited with status 134", ""}, now_);
  EXPECT_EQ(message(), "stage 1 (compnode b1) was lost: its worker exited with status 134");

  BeginRunning(10);  // a hung neighbour, found by its silence
  Pass(absl::Milliseconds(750), {0});
  Receive(0, FailureMessage(absl::StatusCode::kDeadlineExceeded, "stage 1: no answer"));
  const Instant complained = now_;
  while (phase() == RunPhase::kRunning) Pass(kTickInterval, {0});
  EXPECT_LE(now_ - complained, absl::Seconds(4));
  EXPECT_TRUE(absl::StartsWith(message(), "stage 1 (compnode b1) was lost")) << message();

  BeginRunning(10);  // nobody else is at fault
  Receive(0, FailureMessage(absl::StatusCode::kUnavailable, "stage 1: no route"));
  Pass(kPeerVerdictDelay + kTickInterval, {0, 1});
  EXPECT_EQ(message(), "stage 0 (compnode a1) failed: stage 1: no route");
}

TEST_F(RunProtocolTest, AFailureOfItsOwnBeatsTheComplaintsThatFollow) {
  BeginRunning(10);
  Receive(0, FailureMessage(absl::StatusCode::kUnavailable, "stage 1 is gone"));
  Receive(1, FailureMessage(absl::StatusCode::kResourceExhausted, "memory limit of 1 GiB"));
  protocol_->SessionEnded(1, now_);
  protocol_->WorkerExited({{kJob, 1, "b1", 3}, "exited with status 1", ""}, now_);
  Pass(kVerdictDelay + kTickInterval, {0});
  EXPECT_EQ(phase(), RunPhase::kFailed);
  EXPECT_EQ(message(), "stage 1 (compnode b1) failed: memory limit of 1 GiB");
  EXPECT_EQ(protocol_->status().reason, "StageFailed");
}

TEST_F(RunProtocolTest, NobodyIsBlamedForTimeWhenTheBrokerDidNotRun) {
  BeginRunning(10);
  Pass(absl::Seconds(1), {0, 1});
  now_ += absl::Minutes(10);
  protocol_->Tick(now_);
  EXPECT_EQ(phase(), RunPhase::kRunning);
}

TEST_F(RunProtocolTest, PingsComeOnceASecondToAllWithASession) {
  BeginRunning(10);
  int pings = 0;
  for (int i = 0; i < 12; ++i) {
    now_ += kTickInterval;
    pings += static_cast<int>(Receivers(protocol_->Tick(now_), BrokerMessage::kPing).size());
  }
  EXPECT_EQ(pings, 2 * 3);
}

TEST_F(RunProtocolTest, WhatTheProtocolForbidsFailsTheRun) {
  const auto failure = [&](int stage, const WorkerMessage& message) {
    BeginRunning(10);
    Receive(stage, message);
    return protocol_->status().reason;
  };
  EXPECT_EQ(failure(0, Step(0, 2)), "ProtocolError");
  EXPECT_EQ(failure(0, Step(1, 1)), "ProtocolError");
  EXPECT_EQ(failure(0, ReadyMessage()), "ProtocolError");
  EXPECT_EQ(failure(0, FinishedMessage(0)), "ProtocolError");
  EXPECT_EQ(failure(0, Part(0, 3)), "ProtocolError");
  EXPECT_EQ(failure(0, Done(10)), "ProtocolError");
  EXPECT_EQ(failure(0, Step(0, 1)), "");
  EXPECT_EQ(failure(0, WorkerMessage()), "");  // of a later version
}

TEST_F(RunProtocolTest, ACheckpointThatCannotBeWrittenFailsTheRun) {
  BeginRunning(10);
  WorkerMessage part = Part(1, 10);
  part.mutable_checkpoint_part()->set_error("No space left on device");
  Receive(1, part);
  EXPECT_EQ(protocol_->status().reason, "CheckpointFailed");
  EXPECT_TRUE(absl::StrContains(message(), "stage 1 (compnode b1)")) << message();
  EXPECT_TRUE(absl::StrContains(message(), "No space left")) << message();
}

TEST_F(RunProtocolTest, StopTellsAllAndIsFinal) {
  BeginRunning(10);
  const RunOutputs outputs = protocol_->Stop("cancelled", now_);
  EXPECT_EQ(phase(), RunPhase::kStopped);
  EXPECT_EQ(Receivers(outputs, BrokerMessage::kStop), (Stages{0, 1}));
  EXPECT_TRUE(protocol_->Stop("again", now_).sends.empty());
  protocol_->WorkerExited({{kJob, 1, "b1", 3}, "exited with status 1", ""}, now_);
  EXPECT_EQ(phase(), RunPhase::kStopped);
  EXPECT_TRUE(absl::IsNotFound(protocol_->Register(Registration(0), now_).status()));
}

TEST_F(RunProtocolTest, TheFirstNonFiniteLossIsKept) {
  BeginRunning(10);
  for (int64_t step : {1, 2}) {
    Receive(0, Step(0, step));
    WorkerMessage report = Step(1, step);
    report.mutable_step()->set_loss(std::numeric_limits<double>::quiet_NaN());
    Receive(1, report);
  }
  EXPECT_EQ(protocol_->status().nonfinite_step, 1);
}

// Whatever order things happen in, a run ends in one verdict, and only after all of it nothing is said any
// more.
TEST_F(RunProtocolTest, AfterTheEndNothingIsSaid) {
  BeginRunning(10);
  protocol_->Stop("cancelled", now_);
  for (const WorkerMessage& message : {Step(0, 1), Part(0, 10), Done(10), FinishedMessage(10), ReadyMessage(),
                                       FailureMessage(absl::StatusCode::kInternal, "late")}) {
    const RunOutputs outputs = Receive(0, message);
    EXPECT_TRUE(outputs.sends.empty() && outputs.steps.empty() && !outputs.changed && !outputs.checkpoint);
  }
  now_ += absl::Minutes(1);
  EXPECT_TRUE(protocol_->Tick(now_).sends.empty());
}

WorkerMessage ReadyFrom(int64_t step) {
  WorkerMessage message = ReadyMessage();
  message.mutable_ready()->set_checkpoint(absl::StrCat("step-", step));
  message.mutable_ready()->set_checkpoint_step(step);
  message.mutable_ready()->add_notes("goes on");
  return message;
}

TEST_F(RunProtocolTest, AllStagesGoOnFromTheCheckpointThatStageZeroFound) {
  Begin(TwoStages(8));
  for (int stage : {0, 1}) ASSERT_TRUE(protocol_->Register(Registration(stage), now_).ok());
  Receive(1, ReadyMessage());
  const RunOutputs outputs = Receive(0, ReadyFrom(5));
  ASSERT_EQ(Receivers(outputs, BrokerMessage::kStart), (Stages{0, 1}));
  EXPECT_EQ(outputs.sends[0].second.start().first_step(), 6);
  EXPECT_EQ(outputs.sends[1].second.start().checkpoint(), "step-5");
  EXPECT_EQ(protocol_->status().resumed_step, 5);
  EXPECT_EQ(protocol_->status().notes, std::vector<std::string>{"goes on"});
  Receive(0, Step(0, 6));
  const RunOutputs step = Receive(1, Step(1, 6));
  ASSERT_EQ(step.steps.size(), 1u);
  EXPECT_EQ(step.steps[0].step, 6);
  EXPECT_EQ(phase(), RunPhase::kRunning) << message();
  Receive(0, Step(0, 8));
  EXPECT_EQ(phase(), RunPhase::kFailed) << "step 7 is missing";
}

TEST_F(RunProtocolTest, ARunWithNoStepLeftSucceedsAtOnce) {
  Begin(TwoStages(8));
  for (int stage : {0, 1}) ASSERT_TRUE(protocol_->Register(Registration(stage), now_).ok());
  Receive(0, ReadyFrom(8));
  Receive(1, ReadyMessage());
  for (int stage : {0, 1}) Receive(stage, FinishedMessage(8));
  EXPECT_EQ(phase(), RunPhase::kSucceeded) << message();
  EXPECT_EQ(protocol_->status().checkpoint, "step-8");
}

TEST_F(RunProtocolTest, ACheckpointBeyondTheLastStepIsAViolation) {
  Begin(TwoStages(8));
  for (int stage : {0, 1}) ASSERT_TRUE(protocol_->Register(Registration(stage), now_).ok());
  Receive(0, ReadyFrom(9));
  EXPECT_EQ(phase(), RunPhase::kFailed);
  EXPECT_TRUE(absl::StrContains(message(), "goes on after step 9 of 8")) << message();
}

}  // namespace
}  // namespace fusion::op
