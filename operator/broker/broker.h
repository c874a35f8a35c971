// The broker holds the sessions of a job's workers: it hands out assignments, keeps the stages in step at
// start, checkpoints and end, gathers their reports, and knows within seconds when one is lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fusion/wire/v1/broker.pb.h"
#include "operator/broker/step_record.h"
#include "operator/launcher/launcher.h"

namespace fusion::op {

/// One incarnation of a job, to be run.
struct RunSpec {
  std::string job;  ///< NAMESPACE/NAME
  int64_t incarnation = 0;
  std::vector<std::string> compnodes;             ///< by stage
  std::vector<wire::v1::Assignment> assignments;  ///< by stage; all with the same spec
  std::string clusters = {};                      ///< of the stages, for printing: "c0,c1"
};

enum class RunPhase {
  kRegistering,  ///< some stages have no session
  kLoading,      ///< all registered, not all ready
  kRunning,
  kSucceeded,  ///< all finished, the last checkpoint is done
  kFailed,
  kStopped,  ///< on request
};

struct RunStatus {
  int64_t incarnation = 0;
  RunPhase phase = RunPhase::kRegistering;
  int stages = 0;
  int stages_ready = 0;
  int64_t steps = 0;                          ///< to do
  StepRecord last_step;                       ///< step 0: none yet
  std::optional<double> validation_loss;      ///< the newest
  std::optional<double> validation_accuracy;  ///< the newest; of a classification
  std::string clusters;                       ///< as in RunSpec
  std::string checkpoint;                     ///< folder of the newest; empty: none
  int64_t resumed_step = 0;                   ///< the run goes on after this step; 0: from the beginning
  std::vector<std::string> notes;             ///< for people: what was resumed, skipped or left out
  int64_t nonfinite_step = 0;                 ///< first step whose loss was not finite; 0: none
  std::string reason;                         ///< of a failure: one word in CamelCase
  std::string message;                        ///< of a failure: the stage, its compnode, and what happened
};

/// Called from one thread of the broker's, in the order of events; must not block for long, nor call the
/// broker but for Find.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void OnStep(const std::string& job, const StepRecord& record) = 0;
  virtual void OnCheckpoint(const std::string& job, int64_t step, const std::string& path) = 0;
  /// The phase, the number of ready stages or the newest checkpoint changed.
  virtual void OnChange(const std::string& job) = 0;
};

/// Thread-safe.
class Broker {
 public:
  virtual ~Broker() = default;

  /// HOST:PORT that workers dial.
  virtual std::string address() const = 0;

  /// From now on workers of this incarnation may register. OK also for the incarnation that is admitted
  /// already; a higher one replaces a lower one, whose sessions end. ABORTED: a higher one is there.
  virtual absl::Status Admit(RunSpec run) = 0;

  virtual std::optional<RunStatus> Find(const std::string& job) const = 0;

  /// A worker's process or pod is gone: how is known sooner and better than from its broken session.
  virtual void WorkerExited(const WorkerExit& exit) = 0;

  /// Ends the job's run, if one is admitted: its workers are told to stop. Idempotent.
  virtual void Stop(const std::string& job, const std::string& reason) = 0;

  /// Stop, and Find knows nothing of it any more.
  virtual void Forget(const std::string& job) = 0;
};

}  // namespace fusion::op
