// The learning rate as a pure function of the step: training.learningRateSchedule, by the formulas of Hugging
// Face's get_constant_schedule_with_warmup, get_linear_schedule_with_warmup and
// get_cosine_schedule_with_warmup.
#pragma once

#include <cstdint>

#include "fusion/v1alpha1/api.pb.h"

namespace fusion::worker {

/// Factor of each parameter group's rate at a step (from 1). With k = step - 1 updates done, W = warmupSteps,
/// T = training.steps and f = finalFraction: k / W while k < W, so the first step of a warm-up has rate 0;
/// then with p = (k - W) / max(1, T - W), at most 1,
///   Constant  1
///   Linear    f + (1 - f) (1 - p)
///   Cosine    f + (1 - f) (1 + cos(pi p)) / 2
/// so f is what step T + 1 would have. 1 without a schedule.
double LearningRateFactor(const v1alpha1::Training& training, int64_t step);

/// Rate at a step of parameters that no parameter group overrides.
double LearningRate(const v1alpha1::Training& training, int64_t step);

}  // namespace fusion::worker
