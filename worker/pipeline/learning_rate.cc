#include "worker/pipeline/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fusion::worker {
namespace {

using v1alpha1::LearningRateSchedule;

constexpr double kDefaultLearningRate = 1e-3;  // of each of PyTorch's optimizers

}  // namespace

double LearningRateFactor(const v1alpha1::Training& training, int64_t step) {
  if (!training.has_learning_rate_schedule()) {
    return 1;
  }
  const LearningRateSchedule& schedule = training.learning_rate_schedule();
  const int64_t done = step - 1;
  const int64_t warmup = schedule.warmup_steps();
  if (done < warmup) {
    return static_cast<double>(done) / static_cast<double>(warmup);
  }
  const int64_t rest = std::max<int64_t>(1, training.steps() - warmup);
  const double progress = std::min(1.0, static_cast<double>(done - warmup) / static_cast<double>(rest));
  const double fraction = schedule.final_fraction();
  switch (schedule.type()) {
    case LearningRateSchedule::Linear:
      return fraction + (1 - fraction) * (1 - progress);
    case LearningRateSchedule::Cosine:
      return fraction + (1 - fraction) * (0.5 * (1 + std::cos(std::numbers::pi * progress)));
    default:
      return 1;
  }
}

double LearningRate(const v1alpha1::Training& training, int64_t step) {
  const double rate =
      training.optimizer().has_learning_rate() ? training.optimizer().learning_rate() : kDefaultLearningRate;
  return rate * LearningRateFactor(training, step);
}

}  // namespace fusion::worker
