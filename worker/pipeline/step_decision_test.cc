#include "worker/pipeline/step_decision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace fusion::worker {
namespace {

v1alpha1::Training Clipped(double max_norm) {
  v1alpha1::Training training;
  training.mutable_gradient_clipping()->set_max_norm(max_norm);
  return training;
}

TEST(SumOfSquares, HasTheSameBitsInWhateverOrderTheNormsCome) {
  std::mt19937_64 random(5);
  std::vector<GradientNorm> norms;
  for (int i = 0; i < 100; ++i) {
    norms.push_back({.position = i, .squared = std::exp2(static_cast<double>(random() % 80) - 40) / 3});
  }
  const double sum = SumOfSquares(norms);
  double backwards = 0;
  for (int i = 99; i >= 0; --i) {
    backwards += norms[static_cast<size_t>(i)].squared;
  }
  EXPECT_NE(backwards, sum) << "the order shows in these numbers";
  for (int i = 0; i < 20; ++i) {
    std::shuffle(norms.begin(), norms.end(), random);
    EXPECT_EQ(SumOfSquares(norms), sum);
  }
}

TEST(ClippingFactor, ScalesLongGradientsOnly) {
  EXPECT_EQ(ClippingFactor({}, 1e20), 1);
  EXPECT_EQ(ClippingFactor(Clipped(2), 0), 1);
  EXPECT_EQ(ClippingFactor(Clipped(2), 3.9), 1);
  EXPECT_EQ(ClippingFactor(Clipped(2), 100), 2 / (10 + 1e-6));
}

TEST(DecideUpdate, SkipsWhatIsNotFinite) {
  EXPECT_FALSE(DecideUpdate(Clipped(1), 1, 4).skip);
  EXPECT_TRUE(DecideUpdate({}, 1, std::numeric_limits<double>::infinity()).skip);
  EXPECT_TRUE(DecideUpdate(Clipped(1), 1, std::numeric_limits<double>::quiet_NaN()).skip);
}

TEST(DecisionMessages, ComeBackAsTheyWent) {
  const std::vector<GradientNorm> norms = {{.position = 7, .squared = 1.0 / 3},
                                           {.position = 2, .squared = 0}};
  const Tensor message = NormsMessage(norms);
  EXPECT_EQ(message.shape, (std::vector<int64_t>{2, 2}));
  const std::vector<GradientNorm> back = NormsOf(message);
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[0].position, 7);
  EXPECT_EQ(back[0].squared, 1.0 / 3);
  EXPECT_EQ(back[1].position, 2);
  EXPECT_TRUE(std::isnan(SquaredNormOf(DecisionMessage(std::numeric_limits<double>::quiet_NaN()))));
  EXPECT_TRUE(NormsOf(NormsMessage({})).empty());
}

TEST(DecisionMessages, AnyNumberIsSafeAsAPosition) {
  Tensor message = NormsMessage(std::vector<GradientNorm>(4));
  auto* values = reinterpret_cast<double*>(message.data.get());
  values[0] = std::numeric_limits<double>::quiet_NaN();
  values[2] = -1e300;
  values[4] = std::numeric_limits<double>::infinity();
  values[6] = 2.5;
  const std::vector<GradientNorm> norms = NormsOf(message);
  EXPECT_EQ(norms[0].position, 0);
  EXPECT_EQ(norms[1].position, 0);
  EXPECT_EQ(norms[2].position, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(norms[3].position, 2);
}

}  // namespace
}  // namespace fusion::worker
