#include "worker/pipeline/learning_rate.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fusion::worker {
namespace {

using v1alpha1::LearningRateSchedule;

v1alpha1::Training Scheduled(LearningRateSchedule::Type type, int64_t steps, int64_t warmup,
                             double fraction) {
  v1alpha1::Training training;
  training.set_steps(steps);
  training.mutable_optimizer()->set_learning_rate(0.5);
  training.mutable_learning_rate_schedule()->set_type(type);
  training.mutable_learning_rate_schedule()->set_warmup_steps(warmup);
  training.mutable_learning_rate_schedule()->set_final_fraction(fraction);
  return training;
}

struct Case {
  std::string name;
  LearningRateSchedule::Type type;
  int64_t warmup;
  double final_fraction;
  std::vector<double> factors;  ///< of steps 1 to 10
};

class LearningRateFormula : public ::testing::TestWithParam<Case> {};

// The values are those of transformers' LambdaLR schedules (get_last_lr before each step), worked out by
// hand.
TEST_P(LearningRateFormula, HasTheFactorsOfHuggingFace) {
  const Case& expected = GetParam();
  const v1alpha1::Training training =
      Scheduled(expected.type, /*steps=*/10, expected.warmup, expected.final_fraction);
  for (size_t i = 0; i < expected.factors.size(); ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    EXPECT_NEAR(LearningRateFactor(training, step), expected.factors[i], 1e-15) << "step " << step;
    EXPECT_EQ(LearningRate(training, step), 0.5 * LearningRateFactor(training, step)) << "step " << step;
  }
}

// cos(pi p) for p = 1/8 and 1/4.
constexpr double kCos8 = 0.92387953251128674;
constexpr double kCos4 = 0.70710678118654752;
constexpr double kSin8 = 0.38268343236508977;

INSTANTIATE_TEST_SUITE_P(
    Schedules, LearningRateFormula,
    ::testing::Values(
        Case{"Constant", LearningRateSchedule::Constant, 0, 0, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
        Case{"ConstantWarmup", LearningRateSchedule::Constant, 4, 0, {0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1}},
        Case{"Linear", LearningRateSchedule::Linear, 0, 0, {1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1}},
        Case{"LinearWarmup",
             LearningRateSchedule::Linear,
             2,
             0,
             {0, 0.5, 1, 7.0 / 8, 6.0 / 8, 5.0 / 8, 4.0 / 8, 3.0 / 8, 2.0 / 8, 1.0 / 8}},
        Case{"LinearToATenth",
             LearningRateSchedule::Linear,
             0,
             0.1,
             {1, 0.91, 0.82, 0.73, 0.64, 0.55, 0.46, 0.37, 0.28, 0.19}},
        Case{"CosineWarmup",
             LearningRateSchedule::Cosine,
             2,
             0,
             {0, 0.5, 1, (1 + kCos8) / 2, (1 + kCos4) / 2, (1 + kSin8) / 2, 0.5, (1 - kSin8) / 2,
              (1 - kCos4) / 2, (1 - kCos8) / 2}},
        Case{"CosineToAHalf",
             LearningRateSchedule::Cosine,
             2,
             0.5,
             {0, 0.5, 1, (3 + kCos8) / 4, (3 + kCos4) / 4, (3 + kSin8) / 4, 0.75, (3 - kSin8) / 4,
              (3 - kCos4) / 4, (3 - kCos8) / 4}}),
    [](const auto& info) { return info.param.name; });

TEST(LearningRateFactor, StaysAtTheFinalFractionAfterTheEnd) {
  const v1alpha1::Training training = Scheduled(LearningRateSchedule::Cosine, 10, 0, 0.25);
  EXPECT_EQ(LearningRateFactor(training, 11), 0.25);
  EXPECT_EQ(LearningRateFactor(training, 1000), 0.25);
}

TEST(LearningRateFactor, WarmUpMayFillTheJob) {
  const v1alpha1::Training training = Scheduled(LearningRateSchedule::Linear, 4, 4, 0);
  EXPECT_EQ(LearningRateFactor(training, 1), 0);
  EXPECT_EQ(LearningRateFactor(training, 4), 0.75);
}

TEST(LearningRate, WithoutAScheduleIsTheOptimizers) {
  v1alpha1::Training training;
  EXPECT_EQ(LearningRate(training, 7), 1e-3) << "PyTorch's default";
  training.mutable_optimizer()->set_learning_rate(0.2);
  EXPECT_EQ(LearningRate(training, 7), 0.2);
}

}  // namespace
}  // namespace fusion::worker
