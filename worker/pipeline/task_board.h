// What of a stage's step is done and has arrived: where transport and decoding threads put tensors, and the
// compute thread takes tasks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "fusion/graph/v1/graph.pb.h"
#include "worker/pipeline/message_table.h"
#include "worker/pipeline/schedule.h"
#include "worker/tensor.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

/// A tensor that came, or the word that no gradient reaches the value.
using Arrival = std::optional<Tensor>;

/// Thread-safe. Begin, AwaitTask, Complete, Take and CountSent are for the compute thread.
class TaskBoard {
 public:
  /// Both must outlive the board.
  TaskBoard(const StageSchedule& schedule, const MessageTable& table) : schedule_(schedule), table_(table) {}

  /// Whether a message may come now. INVALID_ARGUMENT where (step, micro-batch) does not rise along its edge,
  /// where the step is over, or for a gradient whose value has not been sent.
  absl::Status Admit(const TensorKey& key);
  /// REQUIRES: admitted. Tensors of later steps and validations wait.
  void Deliver(const TensorKey& key, Arrival arrival);
  /// A reader has granted one value of this outgoing edge.
  void CountGranted(int32_t edge);
  /// AwaitTask returns the first failure from now on.
  void Fail(const absl::Status& why);

  /// A new step or validation, whose first pass has this micro-batch number on the wire.
  void Begin(StepState state, int64_t step, int first_micro_batch);
  /// Blocks until there is something to do or a failure; adds to `waited_seconds`.
  absl::StatusOr<Task> AwaitTask(double& waited_seconds);
  void Complete(const Task& task);
  /// REQUIRES: NextTask gave a task that needs it.
  Arrival Take(const TensorKey& key);
  /// One value is about to be sent over this outgoing edge.
  void CountSent(int32_t edge);

  /// Whether all sub-DAGs that read the edge have done their forward of pass `m`, counted from 0.
  bool ReadersDone(const graph::v1::Edge& edge, int m) const;
  /// Whether all tasks of pass `m` are done.
  bool PassDone(int m) const;
  size_t tensors_held() const;

 private:
  /// Of one kind of message; (step, micro-batch) only rise along it.
  using Lane = std::tuple<wire::v1::Direction, int32_t, int>;  // edge, consumer

  /// Counts an arrival for the step or validation that runs, if it is for that.
  void Count(const TensorKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Of a direction that is once a step.
  int& MissingOf(wire::v1::Direction direction) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateNotGranted(int sub_dag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const StageSchedule& schedule_;
  const MessageTable& table_;

  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  StepState state_ ABSL_GUARDED_BY(mutex_);
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;           ///< what state_ is of
  int first_micro_batch_ ABSL_GUARDED_BY(mutex_) = 0;  ///< number of its first pass
  std::map<TensorKey, Arrival> arrived_ ABSL_GUARDED_BY(mutex_);
  std::map<Lane, std::pair<int64_t, int32_t>> last_admitted_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, int> not_granted_ ABSL_GUARDED_BY(mutex_);  ///< by outgoing edge
};

}  // namespace fusion::worker
