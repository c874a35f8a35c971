// A run's state as progress and as the summary at its end.
#pragma once

#include <string>

#include "cli/progress.h"
#include "cli/run_monitor.h"
#include "operator/embedded.h"

namespace fusion::cli {

/// The job's step, loss and speed for the progress line; `steps` is of the job's spec.
Progress ProgressOf(const std::string& job, int64_t steps, const JobState& state);

/// The middle of the steps' seconds after `warm_up` of them; 0 when there are none.
double MedianStepSeconds(const JobState& state, size_t warm_up = 2);

/// Several lines: how it ended, losses, predicted against measured step time, bytes of each link, the
/// checkpoint.
std::string RunSummary(const op::JobResult& result, const JobState& state);

}  // namespace fusion::cli
