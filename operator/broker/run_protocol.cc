#include "operator/broker/run_protocol.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace fusion::op {
namespace {

using wire::v1::BrokerMessage;
using wire::v1::WorkerMessage;

std::string WithLog(std::string message, const std::string& last_lines) {
  if (!last_lines.empty()) absl::StrAppend(&message, "; last lines of its log:\n", last_lines);
  return message;
}

// What a worker reports when it cannot reach another one, rather than for a reason of its own.
bool IsAboutPeer(int code) {
  const auto status_code = static_cast<absl::StatusCode>(code);
  return status_code == absl::StatusCode::kUnavailable || status_code == absl::StatusCode::kCancelled ||
         status_code == absl::StatusCode::kDeadlineExceeded || status_code == absl::StatusCode::kAborted;
}

}  // namespace

RunProtocol::RunProtocol(RunSpec run)
    : run_(std::move(run)),
      shape_(ShapeOf(run_.assignments.front().spec(), static_cast<int>(run_.assignments.size()))),
      stages_(run_.assignments.size()),
      aggregator_(shape_) {
  status_.incarnation = run_.incarnation;
  status_.stages = shape_.stages;
  status_.steps = shape_.steps;
  status_.clusters = run_.clusters;
}

bool RunProtocol::over() const {
  return status_.phase == RunPhase::kSucceeded || status_.phase == RunPhase::kFailed ||
         status_.phase == RunPhase::kStopped;
}

bool RunProtocol::All(StageState state) const {
  return std::all_of(stages_.begin(), stages_.end(),
                     [&](const Stage& stage) { return stage.state == state; });
}

std::string RunProtocol::NameOf(int index) const {
  return absl::StrCat("stage ", index, " (compnode ", run_.compnodes[index], ")");
}

void RunProtocol::SendTo(int index, BrokerMessage message, RunOutputs& outputs) const {
  if (stages_[index].connected) outputs.sends.emplace_back(index, std::move(message));
}

void RunProtocol::SendToAll(const BrokerMessage& message, RunOutputs& outputs) const {
  for (int index = 0; index < shape_.stages; ++index) SendTo(index, message, outputs);
}

absl::StatusOr<RunOutputs> RunProtocol::Register(const wire::v1::Register& message, Instant now) {
  if (message.min_version() > kProtocolVersion || message.max_version() < kProtocolVersion) {
    return absl::UnimplementedError(absl::StrCat("the broker speaks session version ", kProtocolVersion,
                                                 ", the worker ", message.min_version(), " to ",
                                                 message.max_version()));
  }
  if (over()) return absl::NotFoundError(absl::StrCat("the run of job ", run_.job, " is over"));
  if (message.incarnation() != run_.incarnation) {
    return absl::AbortedError(absl::StrCat("job ", run_.job, " is at incarnation ", run_.incarnation,
                                           ", the worker at ", message.incarnation()));
  }
  if (message.stage() < 0 || message.stage() >= shape_.stages) {
    return absl::NotFoundError(
        absl::StrCat("job ", run_.job, " has ", shape_.stages, " stages, no stage ", message.stage()));
  }
  if (message.compnode() != run_.compnodes[message.stage()]) {
    return absl::PermissionDeniedError(absl::StrCat(NameOf(message.stage()), " of job ", run_.job,
                                                    " is not for compnode ", message.compnode()));
  }
  Stage& stage = stages_[message.stage()];
  if (stage.state != StageState::kAwaited) {
    return absl::AlreadyExistsError(
        absl::StrCat(NameOf(message.stage()), " of job ", run_.job, " has a worker"));
  }

  stage.state = StageState::kRegistered;
  stage.connected = true;
  stage.data_address = message.data_address();
  stage.last_heard = now;
  RunOutputs outputs;
  BrokerMessage assignment;
  *assignment.mutable_assignment() = run_.assignments[message.stage()];
  assignment.mutable_assignment()->set_version(kProtocolVersion);
  SendTo(message.stage(), std::move(assignment), outputs);

  if (All(StageState::kRegistered)) {
    BrokerMessage peers;
    for (int index = 0; index < shape_.stages; ++index) {
      (*peers.mutable_peers()->mutable_addresses())[index] = stages_[index].data_address;
    }
    SendToAll(peers, outputs);
    status_.phase = RunPhase::kLoading;
    outputs.changed = true;
  }
  return outputs;
}

RunOutputs RunProtocol::Receive(int index, const WorkerMessage& message, Instant now) {
  RunOutputs outputs;
  Stage& stage = stages_[index];
  stage.last_heard = now;
  if (over()) return outputs;
  switch (message.kind_case()) {
    case WorkerMessage::kReady:
      if (status_.phase != RunPhase::kLoading || stage.state != StageState::kRegistered) {
        Violation(index, "is ready at a wrong time", now, outputs);
        break;
      }
      OnReady(index, message.ready(), now, outputs);
      break;
    case WorkerMessage::kStep:
      OnStep(index, message.step(), now, outputs);
      break;
    case WorkerMessage::kValidation:
      if (status_.phase != RunPhase::kRunning) {
        Violation(index, "reports a validation at a wrong time", now, outputs);
        break;
      }
      OnValidation(message.validation(), outputs);
      break;
    case WorkerMessage::kCheckpointPart:
      OnPart(index, message.checkpoint_part(), now, outputs);
      break;
    case WorkerMessage::kCheckpointDone:
      OnCheckpointDone(index, message.checkpoint_done(), now, outputs);
      break;
    case WorkerMessage::kFailure:
      OnFailure(index, message.failure(), now, outputs);
      break;
    case WorkerMessage::kFinished:
      if (stage.state != StageState::kReady || stage.last_step != shape_.steps ||
          (!shape_.evaluate && stage.last_part != shape_.steps)) {
        Violation(index,
                  absl::StrCat("has finished after step ", stage.last_step, " of ", shape_.steps,
                               " and the checkpoint part of step ", stage.last_part),
                  now, outputs);
        break;
      }
      stage.state = StageState::kFinished;
      FinishIfComplete(outputs);
      break;
    case WorkerMessage::kPong:
      break;
    case WorkerMessage::kRegister:
      Violation(index, "registers twice", now, outputs);
      break;
    case WorkerMessage::KIND_NOT_SET:
      break;  // of a later version
  }
  return outputs;
}

void RunProtocol::OnReady(int index, const wire::v1::Ready& ready, Instant now, RunOutputs& outputs) {
  if (index == 0 && !ready.checkpoint().empty()) {
    const int64_t step = ready.checkpoint_step();
    if (shape_.evaluate || step < 0 || step > shape_.steps) {
      Violation(index, absl::StrCat("goes on after step ", step, " of ", shape_.steps), now, outputs);
      return;
    }
    status_.checkpoint = ready.checkpoint();
    status_.resumed_step = step;
  }
  // Every stage may have something to say, stage 0 says what concerns all.
  if (index == 0) status_.notes.assign(ready.notes().begin(), ready.notes().end());
  stages_[index].state = StageState::kReady;
  ++status_.stages_ready;
  outputs.changed = true;
  if (All(StageState::kReady)) StartAll(outputs);
}

void RunProtocol::StartAll(RunOutputs& outputs) {
  for (Stage& stage : stages_) stage.last_step = stage.last_part = status_.resumed_step;
  status_.last_step.step = status_.resumed_step;
  aggregator_.StartAfter(status_.resumed_step);
  BrokerMessage start;
  start.mutable_start()->set_first_step(status_.resumed_step + 1);
  start.mutable_start()->set_checkpoint(status_.checkpoint);
  SendToAll(start, outputs);
  status_.phase = RunPhase::kRunning;
}

void RunProtocol::OnStep(int index, const wire::v1::StepReport& report, Instant now, RunOutputs& outputs) {
  Stage& stage = stages_[index];
  if (status_.phase != RunPhase::kRunning || report.stage() != index ||
      report.step() != stage.last_step + 1 || report.step() > shape_.steps) {
    Violation(index,
              absl::StrCat("reports step ", report.step(), " of stage ", report.stage(), " after step ",
                           stage.last_step, " of ", shape_.steps),
              now, outputs);
    return;
  }
  stage.last_step = report.step();
  TakeSteps(aggregator_.Add(report), outputs);
}

void RunProtocol::OnValidation(const wire::v1::ValidationReport& report, RunOutputs& outputs) {
  status_.validation_loss = report.loss();
  if (report.has_accuracy()) status_.validation_accuracy = report.accuracy();
  evaluated_ = true;
  TakeSteps(aggregator_.Add(report), outputs);
  FinishIfComplete(outputs);
}

void RunProtocol::TakeSteps(std::vector<StepRecord> steps, RunOutputs& outputs) {
  for (StepRecord& record : steps) {
    if (record.loss && !std::isfinite(*record.loss) && status_.nonfinite_step == 0) {
      status_.nonfinite_step = record.step;
      outputs.changed = true;
    }
    status_.last_step = record;
    outputs.steps.push_back(std::move(record));
  }
}

void RunProtocol::OnPart(int index, const wire::v1::CheckpointPart& part, Instant now, RunOutputs& outputs) {
  if (!part.error().empty()) {
    Suspect({Suspicion::kFailed, "CheckpointFailed",
             absl::StrCat(NameOf(index), " could not write its part of the checkpoint after step ",
                          part.step(), ": ", part.error())},
            absl::ZeroDuration(), now, outputs);
    return;
  }
  if (!shape_.CheckpointsAfter(part.step()) || status_.phase != RunPhase::kRunning) {
    Violation(index, absl::StrCat("sends a checkpoint part of step ", part.step()), now, outputs);
    return;
  }
  std::map<int, std::string>& parts = parts_[part.step()];
  parts[index] = part.path();
  stages_[index].last_part = part.step();
  if (static_cast<int>(parts.size()) < shape_.stages) return;
  BrokerMessage assemble;
  assemble.mutable_assemble()->set_step(part.step());
  for (const auto& [stage, path] : parts) assemble.mutable_assemble()->add_parts(path);
  SendTo(0, std::move(assemble), outputs);
}

void RunProtocol::OnCheckpointDone(int index, const wire::v1::CheckpointDone& done, Instant now,
                                   RunOutputs& outputs) {
  if (!done.error().empty()) {
    Suspect({Suspicion::kFailed, "CheckpointFailed",
             absl::StrCat(NameOf(index), " could not make the checkpoint of step ", done.step(), ": ",
                          done.error())},
            absl::ZeroDuration(), now, outputs);
    return;
  }
  const auto parts = parts_.find(done.step());
  if (index != 0 || parts == parts_.end() || static_cast<int>(parts->second.size()) < shape_.stages) {
    Violation(index,
              absl::StrCat("has made a checkpoint of step ", done.step(), " that it was not asked for"), now,
              outputs);
    return;
  }
  parts_.erase(parts);
  status_.checkpoint = done.path();
  checkpoint_step_ = done.step();
  outputs.checkpoint = {done.step(), done.path()};
  outputs.changed = true;
  FinishIfComplete(outputs);
}

void RunProtocol::FinishIfComplete(RunOutputs& outputs) {
  if (!All(StageState::kFinished) || !parts_.empty()) return;
  if (shape_.evaluate ? !evaluated_ : status_.checkpoint.empty() || status_.last_step.step != shape_.steps)
    return;
  End(RunPhase::kSucceeded, "", outputs);
}

void RunProtocol::OnFailure(int index, const wire::v1::Failure& failure, Instant now, RunOutputs& outputs) {
  stages_[index].reported_failure = true;
  const bool about_peer = IsAboutPeer(failure.code());
  Suspect({about_peer ? Suspicion::kComplainedOfPeer : Suspicion::kFailed, "StageFailed",
           absl::StrCat(NameOf(index), " failed: ", failure.message())},
          about_peer ? kPeerVerdictDelay : kVerdictDelay, now, outputs);
}

RunOutputs RunProtocol::SessionEnded(int index, Instant now) {
  RunOutputs outputs;
  Stage& stage = stages_[index];
  stage.connected = false;
  if (over() || stage.reported_failure) return outputs;
  Suspect({Suspicion::kLost, "WorkerLost", absl::StrCat(NameOf(index), " was lost: its session broke")},
          kVerdictDelay, now, outputs);
  return outputs;
}

RunOutputs RunProtocol::WorkerExited(const WorkerExit& exit, Instant now) {
  RunOutputs outputs;
  if (over() || exit.worker.incarnation != run_.incarnation) return outputs;
  const int index = exit.worker.stage;
  if (index < 0 || index >= shape_.stages) return outputs;
  Stage& stage = stages_[index];
  if (stage.reported_failure) return outputs;
  const char* when = stage.state == StageState::kAwaited ? " before it registered" : "";
  Suspect({Suspicion::kDied, "WorkerLost",
           WithLog(absl::StrCat(NameOf(index), " was lost: its worker ", exit.description, when),
                   exit.last_lines)},
          absl::ZeroDuration(), now, outputs);
  return outputs;
}

RunOutputs RunProtocol::Stop(const std::string& reason, Instant /*now*/) {
  RunOutputs outputs;
  if (over()) return outputs;
  status_.reason = "Stopped";
  status_.message = reason;
  End(RunPhase::kStopped, reason, outputs);
  return outputs;
}

RunOutputs RunProtocol::Tick(Instant now) {
  RunOutputs outputs;
  if (over()) return outputs;
  if (last_tick_ > -absl::InfiniteDuration()) {
    const absl::Duration late = now - last_tick_ - kTickInterval;
    if (late > kPingInterval) {
      for (Stage& stage : stages_) stage.last_heard += late;
    }
  }
  last_tick_ = now;

  for (int index = 0; index < shape_.stages; ++index) {
    if (!stages_[index].connected || now - stages_[index].last_heard < kSilenceLimit) continue;
    Suspect({Suspicion::kDied, "WorkerLost", Silence(index, now)}, absl::ZeroDuration(), now, outputs);
    if (over()) return outputs;
  }
  if (now >= verdict_at_) {
    Condemn(now, outputs);
    return outputs;
  }
  if (now - last_ping_ >= kPingInterval) {
    last_ping_ = now;
    BrokerMessage ping;
    ping.mutable_ping()->set_sequence(++pings_);
    SendToAll(ping, outputs);
  }
  return outputs;
}

void RunProtocol::Suspect(Suspicion suspicion, absl::Duration delay, Instant now, RunOutputs& outputs) {
  suspicions_.push_back(std::move(suspicion));
  verdict_at_ = std::min(verdict_at_, now + delay);
  if (delay == absl::ZeroDuration()) Condemn(now, outputs);
}

std::string RunProtocol::Silence(int index, Instant now) const {
  return absl::StrCat(NameOf(index), " was lost: its worker has not answered for ",
                      absl::FormatDuration(now - stages_[index].last_heard));
}

void RunProtocol::Violation(int index, const std::string& what, Instant now, RunOutputs& outputs) {
  Suspect({Suspicion::kFailed, "ProtocolError", absl::StrCat(NameOf(index), " ", what)}, absl::ZeroDuration(),
          now, outputs);
}

void RunProtocol::Condemn(Instant now, RunOutputs& outputs) {
  for (int index = 0; index < shape_.stages; ++index) {
    if (!stages_[index].connected || now - stages_[index].last_heard < kSuspiciousSilence) continue;
    suspicions_.push_back({Suspicion::kLost, "WorkerLost", Silence(index, now)});
  }
  const auto guilty =
      std::min_element(suspicions_.begin(), suspicions_.end(),
                       [](const Suspicion& a, const Suspicion& b) { return a.rank < b.rank; });
  status_.reason = guilty->reason;
  status_.message = guilty->message;
  End(RunPhase::kFailed, guilty->message, outputs);
}

void RunProtocol::End(RunPhase phase, const std::string& reason_to_workers, RunOutputs& outputs) {
  status_.phase = phase;
  BrokerMessage stop;
  stop.mutable_stop()->set_reason(reason_to_workers);
  SendToAll(stop, outputs);
  outputs.changed = true;
}

}  // namespace fusion::op
