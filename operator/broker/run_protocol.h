// The broker's side of one job's sessions as a state machine: no network, no clock, no thread.
//
// Phases and what ends them are in RunPhase. Each stage goes awaited -> registered -> ready -> finished. A
// run fails by the first stage that is lost or reports a failure; because the neighbours of a dead worker
// often complain before its own end is known, the verdict waits a moment for the stage that is to blame.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fusion/wire/v1/broker.pb.h"
#include "operator/broker/broker.h"

namespace fusion::op {

/// Time since some start, on a clock that does not jump.
using Instant = absl::Duration;

inline constexpr int kProtocolVersion = 1;
inline constexpr absl::Duration kPingInterval = absl::Seconds(1);
inline constexpr absl::Duration kSilenceLimit =
    absl::Seconds(4);  ///< then a stage is lost; with the tick's delay below 5 s
inline constexpr absl::Duration kTickInterval = absl::Milliseconds(250);
/// How long a verdict waits: for a stage's exit status or its neighbours' complaints, and for the loss behind
/// a complaint about a peer.
inline constexpr absl::Duration kVerdictDelay = absl::Seconds(1);
inline constexpr absl::Duration kPeerVerdictDelay = absl::Milliseconds(3500);
/// A stage so long silent is to blame rather than one that complains of a peer.
inline constexpr absl::Duration kSuspiciousSilence = absl::Milliseconds(2500);

/// What is to be done after an input, in this order.
struct RunOutputs {
  std::vector<std::pair<int, wire::v1::BrokerMessage>> sends;  ///< by stage; to stages with a session only
  std::vector<StepRecord> steps;                               ///< now complete
  std::optional<std::pair<int64_t, std::string>> checkpoint;   ///< now done: step and folder
  bool changed = false;                                        ///< see RunObserver::OnChange
};

class RunProtocol {
 public:
  explicit RunProtocol(RunSpec run);

  /// A worker's first message. Refused with the status that ends its stream (see broker.proto); a refusal
  /// changes nothing.
  absl::StatusOr<RunOutputs> Register(const wire::v1::Register& message, Instant now);

  /// A later message of the stage's session. What the protocol does not allow here fails the run.
  RunOutputs Receive(int stage, const wire::v1::WorkerMessage& message, Instant now);

  /// The stage's session has ended, by whichever side.
  RunOutputs SessionEnded(int stage, Instant now);

  /// The worker process of this incarnation has ended.
  RunOutputs WorkerExited(const WorkerExit& exit, Instant now);

  RunOutputs Stop(const std::string& reason, Instant now);

  /// To be called every kTickInterval: pings, silent stages, verdicts. When it comes much later than that,
  /// this process did not run, and nobody is blamed for that time.
  RunOutputs Tick(Instant now);

  const RunStatus& status() const { return status_; }
  const RunSpec& run() const { return run_; }
  bool over() const;

 private:
  enum class StageState { kAwaited, kRegistered, kReady, kFinished };

  struct Stage {
    StageState state = StageState::kAwaited;
    bool connected = false;
    std::string data_address;
    int64_t last_step = 0;
    int64_t last_part = 0;  ///< step of its newest checkpoint part
    Instant last_heard;
    bool reported_failure = false;
  };

  /// Why a run may have failed. The lowest rank is to blame; of equal ones the first.
  struct Suspicion {
    enum Rank { kDied, kLost, kFailed, kComplainedOfPeer } rank;
    std::string reason;
    std::string message;
  };

  void OnReady(int index, const wire::v1::Ready& ready, Instant now, RunOutputs& outputs);
  void StartAll(RunOutputs& outputs);
  void OnStep(int index, const wire::v1::StepReport& report, Instant now, RunOutputs& outputs);
  void OnValidation(const wire::v1::ValidationReport& report, RunOutputs& outputs);
  void OnPart(int index, const wire::v1::CheckpointPart& part, Instant now, RunOutputs& outputs);
  void OnCheckpointDone(int index, const wire::v1::CheckpointDone& done, Instant now, RunOutputs& outputs);
  void OnFailure(int index, const wire::v1::Failure& failure, Instant now, RunOutputs& outputs);
  void TakeSteps(std::vector<StepRecord> steps, RunOutputs& outputs);
  void FinishIfComplete(RunOutputs& outputs);

  void Suspect(Suspicion suspicion, absl::Duration delay, Instant now, RunOutputs& outputs);
  void Violation(int index, const std::string& what, Instant now, RunOutputs& outputs);
  void Condemn(Instant now, RunOutputs& outputs);
  std::string Silence(int index, Instant now) const;
  void End(RunPhase phase, const std::string& reason_to_workers, RunOutputs& outputs);
  void SendTo(int index, wire::v1::BrokerMessage message, RunOutputs& outputs) const;
  void SendToAll(const wire::v1::BrokerMessage& message, RunOutputs& outputs) const;
  bool All(StageState state) const;
  /// stage 1 (compnode b1)
  std::string NameOf(int index) const;

  const RunSpec run_;
  const RunShape shape_;
  RunStatus status_;
  std::vector<Stage> stages_;
  StepAggregator aggregator_;
  std::map<int64_t, std::map<int, std::string>> parts_;  ///< by step and stage, of checkpoints not done
  int64_t checkpoint_step_ = 0;                          ///< of the newest one done
  bool evaluated_ = false;
  std::vector<Suspicion> suspicions_;
  Instant verdict_at_ = absl::InfiniteDuration();
  Instant last_tick_ = -absl::InfiniteDuration();
  Instant last_ping_ = -absl::InfiniteDuration();
  int64_t pings_ = 0;
};

}  // namespace fusion::op
