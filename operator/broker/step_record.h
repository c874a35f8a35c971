// What a whole job did in a step, made of what its stages report.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fusion/wire/v1/broker.pb.h"
#include "operator/broker/run_shape.h"

namespace fusion::op {

struct LinkRecord {
  int from = 0;  ///< stages in the direction of travel
  int to = 0;
  int64_t bytes = 0;  ///< on the wire in this step, headers included
  int64_t dense_bytes = 0;
  double seconds = 0;  ///< with something under way
};

struct StageRecord {
  int index = 0;
  double forward_seconds = 0;
  double backward_seconds = 0;
  double wait_seconds = 0;
  int64_t peak_memory_bytes = 0;  ///< of the counting allocator, since the worker started
  int64_t tasks = 0;              ///< emulated
  int64_t overrun_tasks = 0;      ///< of them, longer in fact than emulated
};

struct StepRecord {
  int64_t step = 0;
  std::optional<double> loss;
  std::optional<double> validation_loss;      ///< on the steps that have a validation
  std::optional<double> validation_accuracy;  ///< of a classification
  std::optional<double> learning_rate;
  double gradient_norm = 0;
  double step_seconds = 0;
  double samples_per_second = 0;
  double tokens_per_second = 0;  ///< 0: the data is no text
  std::vector<LinkRecord> links;
  std::vector<StageRecord> stages;
  int64_t tasks = 0;              ///< of all stages
  int64_t overrun_tasks = 0;      ///< of all stages
  int64_t peak_memory_bytes = 0;  ///< of the stage that has most
};

/// One line of metrics.jsonl, without a line end. Doubles are the shortest text that reads back as the same
/// bits; what is not finite is left out.
std::string MetricsLine(const StepRecord& record);

/// Joins the stages' reports. A step's record is complete when all stages have reported it and, where one
/// belongs to it, its validation has come. Records come out in order of steps, each once.
///
/// step_seconds is the time from the end of the step before, or from the step's first task where that came
/// later (after a validation), to the end of the step, on CLOCK_MONOTONIC, which all processes of a machine
/// share.
class StepAggregator {
 public:
  explicit StepAggregator(const RunShape& shape) : shape_(shape) {}

  /// The run goes on after this step. Before the first report.
  void StartAfter(int64_t step) { next_ = step + 1; }

  /// REQUIRES: each stage's steps count up from the first.
  std::vector<StepRecord> Add(const wire::v1::StepReport& report);
  std::vector<StepRecord> Add(const wire::v1::ValidationReport& report);

 private:
  std::vector<StepRecord> TakeComplete();
  StepRecord Join(int64_t step, const std::map<int, wire::v1::StepReport>& reports);

  const RunShape shape_;
  std::map<int64_t, std::map<int, wire::v1::StepReport>>
      reports_;                                                ///< by step and stage, of steps not complete
  std::map<int64_t, wire::v1::ValidationReport> validations_;  ///< by step, not yet joined
  int64_t next_ = 1;
  int64_t last_end_ns_ = 0;  ///< of the last complete step
};

}  // namespace fusion::op
