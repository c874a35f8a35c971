// What a control plane says of a job that it runs, gathered for the thread that shows it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "fusion/graph/v1/plan.pb.h"
#include "operator/broker/step_record.h"
#include "operator/embedded.h"

namespace fusion::cli {

/// A job as far as it has come.
struct JobState {
  std::string phase = "Pending";
  std::optional<graph::v1::Plan> plan;
  std::vector<std::string> notes;                     ///< in the order that they came
  op::StepRecord last_step;                           ///< step 0: none yet
  std::optional<double> validation_loss;              ///< the newest
  std::optional<double> validation_accuracy;          ///< the newest
  std::vector<double> step_seconds;                   ///< by step, from 1
  std::map<std::pair<int, int>, int64_t> link_bytes;  ///< by (from, to) stage, of all steps
};

/// Of one job. Thread-safe; must outlive the run that has its callbacks.
class RunMonitor {
 public:
  RunMonitor();
  ~RunMonitor();
  RunMonitor(const RunMonitor&) = delete;
  RunMonitor& operator=(const RunMonitor&) = delete;

  op::JobCallbacks Callbacks();
  void SetResult(absl::StatusOr<op::JobResult> result);

  /// A file descriptor that is readable when something is new; State clears it.
  int descriptor() const { return descriptor_; }
  JobState State();
  /// Absent while the job runs.
  std::optional<absl::StatusOr<op::JobResult>> Result() const;

 private:
  void OnStep(const op::StepRecord& record);
  void Wake() const;

  const int descriptor_;
  mutable absl::Mutex mutex_;
  JobState state_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::StatusOr<op::JobResult>> result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fusion::cli
