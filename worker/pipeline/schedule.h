// Which task a stage runs next: a pure decision on what is done and what has arrived. The executor
// (stage_runner.h) keeps the state and does the work; the simulator of the scheduler follows the same rule.
//
// The tasks of a step are forward(sub-DAG, m) and backward(sub-DAG, m), each in micro-batch order per
// sub-DAG.
// - A forward may start when all values that the sub-DAG reads for m are there and fewer than `depth`
// micro-batches of it are
//   in flight: forwards done minus backwards done, or, where it has no backward, tensors that its readers
//   have not granted yet.
// - A backward may start when its forward is done and all gradients of what the sub-DAG provides for m are
// there. GPipe: when
//   all forwards of the stage are done, too.
// - Of the ready tasks: a backward first (the lowest micro-batch, then the later sub-DAG), else a forward
// (the lowest
//   micro-batch, then the earlier sub-DAG).
// - After the last backward: return the gradients of borrowed variables; when all gradients of lent variables
// and the norms of the children in the decision's tree are there, add one's own norms and pass them on, or
// decide; when the decision is there, pass it on and update; take the new values of borrowed variables. A
// validation is forwards only; nothing has a backward there.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"

namespace fusion::worker {

enum class PipelineOrder { kOneForwardOneBackward, kGPipe };

/// What a sub-DAG waits for. Indexes are places in the stage's run order.
struct SubDagRule {
  int depth = 1;
  bool has_backward = false;        ///< computes the loss, or touches a value that needs a gradient
  std::vector<int> forward_after;   ///< sub-DAGs of this stage whose values it reads
  std::vector<int> backward_after;  ///< sub-DAGs of this stage whose backward for m must be done before
  std::vector<int> readers;         ///< sub-DAGs of this stage that read its values
  int values = 0;                   ///< tensors that arrive for each forward: incoming edges that it reads
  int gradients = 0;                ///< tensors that arrive for each backward
};

struct StageSchedule {
  PipelineOrder order = PipelineOrder::kOneForwardOneBackward;
  int micro_batches = 1;  ///< of a step
  std::vector<SubDagRule> sub_dags;
  int lent_gradients = 0;   ///< tensors that arrive before the update
  int borrowed_values = 0;  ///< tensors that arrive after it
  int norms = 0;            ///< messages of children that arrive before the decision
  int decisions = 0;        ///< 1: the decision arrives, 0: it is made here
};

/// INVALID_ARGUMENT where the program contradicts itself.
absl::StatusOr<StageSchedule> MakeSchedule(const graph::v1::StageProgram& program, PipelineOrder order,
                                           int micro_batches);

struct SubDagState {
  int forwards = 0;   ///< done, in micro-batch order
  int backwards = 0;  ///< done
  int not_granted =
      0;  ///< the most tensors sent over one outgoing edge and not granted, earlier steps included
  std::vector<int> missing_values;     ///< by micro-batch: tensors that its forward still waits for
  std::vector<int> missing_gradients;  ///< by micro-batch: tensors that its backward still waits for
};

enum class StepPhase {
  kPasses,           ///< forwards and backwards
  kReturnGradients,  ///< of borrowed variables
  kDecide,           ///< or send the norms to where it is decided
  kUpdate,
  kTakeVariables,  ///< new values of borrowed variables
  kFinished,
};

struct StepState {
  bool training = true;
  StepPhase phase = StepPhase::kPasses;
  int micro_batches = 0;
  std::vector<SubDagState> sub_dags;
  int missing_lent_gradients = 0;
  int missing_borrowed_values = 0;
  int missing_norms = 0;
  int missing_decisions = 0;
};

/// A step or a validation of `passes` micro-batches before anything happened.
StepState StartStep(const StageSchedule& schedule);
StepState StartValidation(const StageSchedule& schedule, int passes);

enum class TaskKind {
  kWait,
  kForward,
  kBackward,
  kReturnGradients,
  kDecide,
  kUpdate,
  kTakeVariables,
  kFinished
};

const char* TaskName(TaskKind kind);  ///< in words

struct Task {
  TaskKind kind = TaskKind::kWait;
  int sub_dag = -1;      ///< of a forward or backward
  int micro_batch = -1;  ///< counted inside the step or the validation
  bool operator==(const Task&) const = default;
};

/// kWait: something has to arrive first. kFinished: the step is done.
Task NextTask(const StageSchedule& schedule, const StepState& state);

/// Notes that `task` is done. REQUIRES: NextTask gave it for this state, arrivals since then aside.
void CompleteTask(const Task& task, StepState& state);

}  // namespace fusion::worker
