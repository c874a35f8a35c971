#include "operator/broker/step_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "nlohmann/json.hpp"

namespace fusion::op {
namespace {

using nlohmann::json;

RunShape Shape(int stages, int64_t steps) {
  RunShape shape;
  shape.stages = stages;
  shape.steps = steps;
  shape.samples_per_step = 8;
  return shape;
}

wire::v1::StepReport Report(int stage, int64_t step, int64_t start_ns, int64_t end_ns) {
  wire::v1::StepReport report;
  report.set_stage(stage);
  report.set_step(step);
  report.set_start_ns(start_ns);
  report.set_end_ns(end_ns);
  report.set_squared_gradient_norm(stage == 0 ? 9 : 16);
  return report;
}

wire::v1::ValidationReport Validated(int64_t step, double loss) {
  wire::v1::ValidationReport report;
  report.set_step(step);
  report.set_loss(loss);
  return report;
}

TEST(StepAggregatorTest, TimesAreBetweenTheEndsOfSteps) {
  StepAggregator aggregator(Shape(2, 3));
  constexpr int64_t kSecond = 1'000'000'000;
  aggregator.Add(Report(0, 1, 10 * kSecond, 12 * kSecond));
  auto records = aggregator.Add(Report(1, 1, 11 * kSecond, 14 * kSecond));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_DOUBLE_EQ(records[0].step_seconds, 4);  // from the first task on
  EXPECT_DOUBLE_EQ(records[0].samples_per_second, 2);
  EXPECT_DOUBLE_EQ(records[0].gradient_norm, 5);

  aggregator.Add(Report(0, 2, 12 * kSecond, 15 * kSecond));  // starts before the step before has ended
  records = aggregator.Add(Report(1, 2, 14 * kSecond, 16 * kSecond));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_DOUBLE_EQ(records[0].step_seconds, 2);

  aggregator.Add(Report(0, 3, 20 * kSecond, 22 * kSecond));  // after a pause, which does not count
  records = aggregator.Add(Report(1, 3, 21 * kSecond, 23 * kSecond));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_DOUBLE_EQ(records[0].step_seconds, 3);
}

TEST(StepAggregatorTest, TheGradientNormIsThatOfTheStageThatDecides) {
  StepAggregator aggregator(Shape(2, 1));
  aggregator.Add(Report(1, 1, 0, 1));
  wire::v1::StepReport deciding = Report(0, 1, 0, 1);
  deciding.set_job_squared_gradient_norm(49);
  const auto records = aggregator.Add(deciding);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_DOUBLE_EQ(records[0].gradient_norm, 7);
}

TEST(StepAggregatorTest, AStepWaitsForItsValidationAndKeepsTheOrder) {
  RunShape shape = Shape(1, 3);
  shape.validates = true;
  shape.validate_every = 2;
  StepAggregator aggregator(shape);
  EXPECT_EQ(aggregator.Add(Report(0, 1, 0, 1)).size(), 1u);
  EXPECT_TRUE(aggregator.Add(Report(0, 2, 1, 2)).empty());
  EXPECT_TRUE(aggregator.Add(Report(0, 3, 2, 3)).empty());
  EXPECT_TRUE(aggregator.Add(Validated(3, 0.5)).empty());
  const auto records = aggregator.Add(Validated(2, 0.75));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].step, 2);
  EXPECT_EQ(records[0].validation_loss, 0.75);
  EXPECT_EQ(records[1].step, 3);
  EXPECT_EQ(records[1].validation_loss, 0.5);
}

TEST(StepAggregatorTest, AClassificationHasAnAccuracy) {
  RunShape shape = Shape(1, 2);
  shape.validates = true;
  shape.validate_every = 1;
  StepAggregator aggregator(shape);
  wire::v1::ValidationReport validation = Validated(1, 0.5);
  validation.set_accuracy(0.875);
  EXPECT_TRUE(aggregator.Add(Report(0, 1, 0, 1)).empty());
  const auto first = aggregator.Add(validation);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(json::parse(MetricsLine(first[0]))["validationAccuracy"], 0.875);
  EXPECT_TRUE(aggregator.Add(Report(0, 2, 1, 2)).empty());
  const auto second = aggregator.Add(Validated(2, 0.5));
  ASSERT_EQ(second.size(), 1u);
  EXPECT_FALSE(json::parse(MetricsLine(second[0])).contains("validationAccuracy"));
}

TEST(MetricsLineTest, HasTheFieldsOfTheFormat) {
  StepRecord record;
  record.step = 7;
  record.loss = 0.1;
  record.validation_loss = 0.25;
  record.learning_rate = 1e-3;
  record.gradient_norm = 2;
  record.step_seconds = 0.5;
  record.samples_per_second = 16;
  record.tokens_per_second = 1024;
  record.links = {{0, 1, 100, 400, 0.125}};
  record.stages = {{0, 0.25, 0.5, 0.0625, 4096, 32, 1}, {1, 0.25, 0.5, 0.0625}};
  EXPECT_EQ(MetricsLine(record),
            R"({"step":7,"loss":0.1,"validationLoss":0.25,"learningRate":0.001,"gradientNorm":2.0,)"
            R"("samplesPerSecond":16.0,"tokensPerSecond":1024.0,"stepSeconds":0.5,)"
            R"("links":[{"from":0,"to":1,"bytes":100,"ratio":4.0,"seconds":0.125}],)"
            R"("stages":[{"index":0,"forwardSeconds":0.25,"backwardSeconds":0.5,"waitSeconds":0.0625,)"
            R"("peakMemoryBytes":4096,"tasks":32,"overrunTasks":1},)"
            R"({"index":1,"forwardSeconds":0.25,"backwardSeconds":0.5,"waitSeconds":0.0625}]})");
}

TEST(MetricsLineTest, LossesKeepEveryBit) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    StepRecord record;
    record.loss = static_cast<double>(random()) / static_cast<double>(1 + random() % 1000);
    EXPECT_EQ(json::parse(MetricsLine(record))["loss"].get<double>(), *record.loss);
  }
}

TEST(MetricsLineTest, WhatIsNotFiniteIsLeftOut) {
  StepRecord record;
  record.loss = std::numeric_limits<double>::infinity();
  record.gradient_norm = std::nan("");
  const json line = json::parse(MetricsLine(record));
  EXPECT_FALSE(line.contains("loss"));
  EXPECT_FALSE(line.contains("gradientNorm"));
  EXPECT_FALSE(line.contains("validationLoss"));
  EXPECT_FALSE(line.contains("tokensPerSecond"));
}

}  // namespace
}  // namespace fusion::op
