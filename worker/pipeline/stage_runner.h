// Runs the tasks of one stage: takes the next task by the rule of schedule.h, feeds the engine, and moves
// tensors.
//
// Threads: the caller of RunStep and RunValidation is the compute thread and waits for nothing but a missing
// tensor. One thread encodes and one decodes; dense tensors need neither and go as they are. Transport
// threads call the handlers. Results of a task go out when it ends, on an emulated machine at the emulated
// end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "fusion/wire/v1/broker.pb.h"
#include "worker/engine/engine.h"
#include "worker/pipeline/edge_codec.h"
#include "worker/pipeline/message_table.h"
#include "worker/pipeline/schedule.h"
#include "worker/pipeline/serial_queue.h"
#include "worker/pipeline/task_board.h"
#include "worker/pipeline/task_timer.h"
#include "worker/pipeline/trace.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

/// Samples [first, first + count) of a global batch for a placeholder; `batch` is the step, or the validation
/// batch from 0.
using FeedFunction = std::function<absl::StatusOr<Tensor>(const std::string& placeholder, bool training,
                                                          int64_t batch, int64_t first, int64_t count)>;

/// Counted targets of the same samples, which weigh a micro-batch's loss.
using TargetFunction = std::function<int64_t(bool training, int64_t batch, int64_t first, int64_t count)>;

struct StageRunnerOptions {
  graph::v1::StageProgram program;
  PipelineOrder order = PipelineOrder::kOneForwardOneBackward;
  int64_t global_batch = 1;
  int64_t micro_batch = 1;           ///< divides global_batch
  v1alpha1::Training training = {};  ///< its learning rates and clipping
  TargetFunction targets = {};       ///< absent: the samples themselves
  double slowdown = 0;               ///< machine / emulated FLOP/s; 0: full speed
  std::string trace_file = {};
  int64_t trace_step = 0;
};

/// RunStep and RunValidation on one thread; Cancel from any.
class StageRunner {
 public:
  /// Sets the transport's handlers and windows. Engine (loaded) and transport must outlive the runner's
  /// calls; the transport must be closed before the runner is destroyed.
  static absl::StatusOr<std::unique_ptr<StageRunner>> Create(StageRunnerOptions options, Engine& engine,
                                                             Transport& transport, FeedFunction feed);
  ~StageRunner();

  /// Stages that the transport must be connected to.
  std::set<int> Receivers() const { return table_.Receivers(); }

  /// One optimizer step; steps count up from any number. The report is complete.
  /// Errors: what a peer sent or the engine said, with stage, step and micro-batch; OUT_OF_RANGE
  /// "NonFiniteLoss: …" before a non-finite loss or gradient reaches a parameter, of whatever stage. After an
  /// error the runner is of no use.
  absl::StatusOr<wire::v1::StepReport> RunStep(int64_t step);

  /// `batches` global batches, forward only, after step `step`. The weighted mean of the loss, of the stage
  /// that computes it.
  absl::StatusOr<std::optional<double>> RunValidation(int64_t step, int64_t batches);

  /// What this stage's lossy messages left out so far, one tensor for each edge and direction that keeps it,
  /// named VALUE:OUTPUT/FROM-TO/DIRECTION, for checkpoints. Between steps, on the thread that runs them.
  std::vector<NamedTensor> ReadErrorFeedback();
  /// Takes the tensors of that name; those of other stages or another cut are left. INVALID_ARGUMENT for one
  /// that is not FLOAT32. Before the first step.
  absl::Status RestoreErrorFeedback(const std::vector<NamedTensor>& feedback);

  /// Of the last RunValidation, where this stage computes the loss of a classification: the share of samples
  /// whose class had the highest score.
  std::optional<double> Accuracy() const;

  /// The call that runs, and later ones, return `why`, at the latest when the current task ends.
  void Cancel(const absl::Status& why);

  /// What waits or is remembered, for tests: 0 after a step.
  size_t TensorsHeld() const;

 private:
  StageRunner(StageRunnerOptions options, StageSchedule schedule, Engine& engine, Transport& transport,
              FeedFunction feed);

  void SetWindows();

  // Transport and decoding threads.
  void OnReceive(int from_stage, EncodedTensor message);

  // Compute thread.
  void Begin(StepState state, int64_t step, int first_micro_batch, int micro_batches);
  /// Runs tasks until the phase is finished; adds times to `report`.
  absl::Status RunTasks(wire::v1::StepReport& report);
  absl::Status Execute(const Task& task, bool waited, wire::v1::StepReport& report);
  absl::Status Forward(const Task& task, bool waited, wire::v1::StepReport& report);
  absl::Status Backward(const Task& task, bool waited, wire::v1::StepReport& report);
  absl::Status ReturnGradients();
  absl::Status Decide(bool waited, wire::v1::StepReport& report);
  absl::StatusOr<std::vector<GradientNorm>> GatherNorms();
  absl::Status TakeLentGradients();
  absl::Status Update(bool waited, wire::v1::StepReport& report);
  absl::Status TakeVariables();
  absl::Status FeedPlaceholders(const Pass& pass, int sub_dag);
  absl::Status ReceiveValues(const Pass& pass, int sub_dag);
  TaskSpan EndTask(const Task& task, wire::v1::StepReport& report);
  void GrantValues(const Task& task);
  void ReleaseIfDone(const Pass& pass);
  void SendEdge(int to_stage, const TensorKey& key, Arrival tensor);
  void SendDense(int to_stage, const TensorKey& key, Arrival tensor);
  /// Samples of the phase's micro-batch, for FeedFunction and TargetFunction.
  struct Slice {
    bool training = true;
    int64_t batch = 0;
    int64_t first = 0;
  };
  Slice SliceOf(int micro_batch) const;
  Pass PassOf(int micro_batch) const;
  double MeanLoss() const;
  void ReportLinks(wire::v1::StepReport& report);

  // Constant after construction.
  const StageRunnerOptions options_;
  const StageSchedule schedule_;
  Engine& engine_;
  Transport& transport_;
  const FeedFunction feed_;
  MessageTable table_;
  std::unique_ptr<EdgeCoder> coder_;
  TaskBoard board_;
  Trace trace_;

  // Of the compute thread.
  TaskTimer timer_;
  int64_t step_ = 0;
  int first_micro_batch_ = 0;                       ///< number, on the wire, of the first pass
  std::set<std::pair<int32_t, int32_t>> received_;  ///< (edge, micro-batch) that the engine has
  std::map<int, double> losses_;                    ///< by micro-batch
  double squared_norm_ = 0;                         ///< of the whole job, once this stage has decided
  std::vector<double> targets_;                     ///< by micro-batch of the phase
  double all_targets_ = 0;
  std::map<int, int64_t> correct_;        ///< samples ranked right, by micro-batch that says so
  std::map<int, LinkCounters> reported_;  ///< by peer, at the last report

  // Last: their threads use what is above.
  SerialQueue encoder_;
  SerialQueue decoder_;
};

}  // namespace fusion::worker
