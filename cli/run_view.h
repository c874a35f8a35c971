// A run's state as progress and as the summary at its end.
#pragma once

#include <optional>
#include <string>

#include "cli/progress.h"
#include "cli/run_monitor.h"
#include "fusion/v1alpha1/api.pb.h"
#include "operator/embedded.h"

namespace fusion::cli {

/// The job's step, loss and speed for the progress line; `steps` is of the job's spec.
Progress ProgressOf(const std::string& job, int64_t steps, const JobState& state);

/// The middle of the steps' seconds after `warm_up` of them; 0 when there are none.
double MedianStepSeconds(const JobState& state, size_t warm_up = 2);

/// What the job's author expects of the last validation loss: the annotation
/// `fusion.dev/validation-loss-bound`, a number. Nothing where it is absent or no number.
std::optional<double> ValidationLossBound(const v1alpha1::FusionJob& job);

/// Several lines: how it ended, losses (the validation loss against its bound, where there is one), predicted
/// against measured step time, bytes of each link, the checkpoint.
std::string RunSummary(const op::JobResult& result, const JobState& state, std::optional<double> bound = {});

}  // namespace fusion::cli
