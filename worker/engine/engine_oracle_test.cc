// The uncut engine against an independent whole-model oracle: bit-equal where kernels and order are the same;
// a tied parameter within 1e-5, because autograd adds its uses within a micro-batch and the engine after the
// step.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/autocast.h"
#include "graph/families.h"
#include "worker/engine/engine_test_support.h"
#include "worker/engine/model_fixtures_for_test.h"
#include "worker/engine/oracle.h"

namespace fusion::worker {
namespace {

constexpr int kSteps = 20;

double Norm(const Tensor& tensor) {
  double sum = 0;
  for (const float x : tensor.floats()) {
    sum += static_cast<double>(x) * x;
  }
  return std::sqrt(sum);
}

double Distance(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (size_t i = 0; i < a.floats().size(); ++i) {
    const double difference = static_cast<double>(a.floats()[i]) - b.floats()[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

double NormOfAll(const std::map<std::string, Tensor>& tensors) {
  double sum = 0;
  for (const auto& [name, tensor] : tensors) {
    sum += Norm(tensor) * Norm(tensor);
  }
  return std::sqrt(sum);
}

struct Comparison {
  v1alpha1::Model model;
  v1alpha1::Training training;
  bool decay_biases = true;
  bool bit_equal = true;
  double gradient_tolerance = 1e-5;  ///< where not bit_equal
  bool evaluate = false;             ///< compare the loss in evaluation mode after each step too
  std::optional<double> bias_learning_rate = {};
  std::function<double(int64_t step)> factor = [](int64_t) { return 1.0; };  ///< wanted of the schedule
};

void CompareWithOracle(const Comparison& comparison) {
  absl::StatusOr<graph::v1::Graph> graph = graph::BuildModel(comparison.model);
  ASSERT_TRUE(graph.ok()) << graph.status();
  graph = graph::ApplyPrecision(*std::move(graph), comparison.training);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EngineOptions options;
  options.seed = 7;
  options.training = comparison.training;
  auto run = InProcessRun::Create({WholeProgram(*graph)}, options);
  ASSERT_TRUE(run.ok()) << run.status();
  const auto oracle = MakeOracle({.model = comparison.model,
                                  .optimizer = comparison.training.optimizer(),
                                  .decay_biases = comparison.decay_biases,
                                  .bias_learning_rate = comparison.bias_learning_rate,
                                  .seed = options.seed,
                                  .autocast = comparison.training.precision() == v1alpha1::Training::bf16});
  const std::map<std::string, Tensor> initial = *(*run)->Variables();
  ASSERT_EQ(initial.size(), oracle->Parameters().size());
  for (const auto& [name, value] : initial) {
    oracle->SetParameter(name, value);
  }

  double first_loss = 0;
  double last_loss = 0;
  int clipped = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<MicroBatch> batches = BatchesFor(comparison.model, step);
    std::vector<OracleBatch> oracle_batches;
    for (const MicroBatch& batch : batches) {
      oracle_batches.push_back(
          {.input = batch.feeds.at("input"), .label = batch.feeds.at("label"), .weight = batch.weight});
    }
    if (!comparison.bit_equal) {  // each step is judged from the oracle's parameters
      const std::map<std::string, Tensor> parameters = oracle->Parameters();
      for (const VariableInfo& variable : (*run)->engine(0).Variables()) {
        ASSERT_TRUE((*run)->engine(0).WriteVariable(variable.name, parameters.at(variable.tensor_name)).ok());
      }
    }
    const absl::StatusOr<double> loss = (*run)->ForwardBackward(step, batches);
    ASSERT_TRUE(loss.ok()) << loss.status();
    const double expected = oracle->ForwardBackward(step, oracle_batches);
    first_loss = step == 1 ? *loss : first_loss;
    last_loss = *loss;

    const std::map<std::string, Tensor> gradients = *(*run)->Gradients();
    const std::map<std::string, Tensor> expected_gradients = oracle->Gradients();
    ASSERT_EQ(gradients.size(), expected_gradients.size());
    if (comparison.bit_equal) {
      ASSERT_EQ(*loss, expected) << "step " << step;
      for (const auto& [name, gradient] : gradients) {
        ASSERT_TRUE(BitEqual(gradient, expected_gradients.at(name)))
            << "gradient of " << name << ", step " << step;
      }
    } else {
      ASSERT_NEAR(*loss, expected, 1e-5 * std::abs(expected)) << "step " << step;
      const double all = NormOfAll(expected_gradients);
      for (const auto& [name, gradient] : gradients) {
        const Tensor& wanted = expected_gradients.at(name);
        ASSERT_LE(Distance(gradient, wanted), comparison.gradient_tolerance * (Norm(wanted) + 1e-2 * all))
            << "gradient of " << name << ", step " << step;
      }
    }
    const absl::StatusOr<double> squared_norm = (*run)->Update(step);
    ASSERT_TRUE(squared_norm.ok()) << squared_norm.status();
    if (comparison.training.has_gradient_clipping()) {
      const double max_norm = comparison.training.gradient_clipping().max_norm();
      const double norm = oracle->ClipGradients(max_norm);
      EXPECT_NEAR(std::sqrt(*squared_norm), norm, 1e-5 * norm) << "step " << step;
      clipped += norm > max_norm ? 1 : 0;
    }
    oracle->Update(comparison.factor(step));
    if (comparison.evaluate) {
      const absl::StatusOr<double> evaluated = (*run)->Evaluate(step, 3, batches.front());
      ASSERT_TRUE(evaluated.ok()) << evaluated.status();
      ASSERT_EQ(*evaluated, oracle->Evaluate(oracle_batches.front())) << "step " << step;
    }
    if (comparison.training.has_gradient_clipping()) {
      const std::map<std::string, Tensor> wanted = oracle->Parameters();
      const std::map<std::string, Tensor> values = *(*run)->Variables();
      for (const auto& [name, value] : values) {
        ASSERT_LE(Distance(value, wanted.at(name)), 1e-6 * Norm(wanted.at(name)) + 1e-7) << name;
      }
    }
    if (comparison.bit_equal) {
      const std::map<std::string, Tensor> wanted = oracle->Parameters();
      const std::map<std::string, Tensor> values = *(*run)->Variables();
      for (const auto& [name, value] : values) {
        ASSERT_TRUE(BitEqual(value, wanted.at(name))) << name << " after step " << step;
      }
    }
  }
  EXPECT_LT(last_loss, first_loss) << "nothing was learned";
  if (comparison.training.has_gradient_clipping()) {
    EXPECT_GT(clipped, 0);
    EXPECT_LT(clipped, kSteps) << "short gradients are left alone";
  }
}

TEST(EngineOracleTest, MlpRegressionWithSgdMomentum) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
  training.mutable_optimizer()->set_learning_rate(0.05);
  training.mutable_optimizer()->set_momentum(0.9);
  training.mutable_optimizer()->set_nesterov(true);
  training.mutable_optimizer()->set_weight_decay(1e-3);
  CompareWithOracle({.model = SmallMlp(v1alpha1::Loss::MeanSquaredError), .training = training});
}

TEST(EngineOracleTest, MlpClassificationWithAdam) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::Adam);
  training.mutable_optimizer()->set_learning_rate(0.01);
  training.mutable_optimizer()->set_weight_decay(1e-3);
  CompareWithOracle({.model = SmallMlp(v1alpha1::Loss::CrossEntropy), .training = training});
}

TEST(EngineOracleTest, ParameterGroupsOverrideTheOptimizer) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::AdamW);
  training.mutable_optimizer()->set_learning_rate(0.01);
  training.mutable_optimizer()->set_weight_decay(0.3);
  v1alpha1::ParameterGroup* group = training.add_parameter_groups();
  group->set_match("nothing.*|*.bias");
  group->mutable_optimizer()->set_weight_decay(0);
  v1alpha1::ParameterGroup* shadowed = training.add_parameter_groups();
  shadowed->set_match("*.bias");
  shadowed->mutable_optimizer()->set_weight_decay(0.9);
  CompareWithOracle(
      {.model = SmallMlp(v1alpha1::Loss::MeanSquaredError), .training = training, .decay_biases = false});
}

// BatchNorm's statistics, and evaluation by them, too.
void CompareResnet(bool bottleneck, v1alpha1::ModelConfig::Stem stem) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
  training.mutable_optimizer()->set_learning_rate(0.02);
  training.mutable_optimizer()->set_momentum(0.9);
  training.mutable_optimizer()->set_weight_decay(1e-4);
  CompareWithOracle({.model = SmallResnet(bottleneck, stem), .training = training, .evaluate = true});
}

TEST(EngineOracleTest, ResnetWithBasicBlocks) { CompareResnet(false, v1alpha1::ModelConfig::imagenet); }

TEST(EngineOracleTest, ResnetWithBottlenecks) { CompareResnet(true, v1alpha1::ModelConfig::small); }

// PyTorch's own rule: LambdaLR sets each group's rate to its initial one times the factor, before the step.
TEST(EngineOracleTest, LearningRateScheduleOfTwoGroups) {
  v1alpha1::Training training;
  training.set_steps(kSteps);
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::AdamW);
  training.mutable_optimizer()->set_learning_rate(0.02);
  training.mutable_optimizer()->set_weight_decay(0.3);
  v1alpha1::ParameterGroup* biases = training.add_parameter_groups();
  biases->set_match("*.bias");
  biases->mutable_optimizer()->set_learning_rate(0.05);
  training.mutable_learning_rate_schedule()->set_type(v1alpha1::LearningRateSchedule::Cosine);
  training.mutable_learning_rate_schedule()->set_warmup_steps(4);
  const auto cosine = [](int64_t step) {  // get_cosine_schedule_with_warmup
    const auto current = static_cast<double>(step - 1);
    return current < 4 ? current / 4 : 0.5 * (1 + std::cos(M_PI * ((current - 4) / (kSteps - 4))));
  };
  CompareWithOracle({.model = SmallMlp(v1alpha1::Loss::MeanSquaredError),
                     .training = training,
                     .bias_learning_rate = 0.05,
                     .factor = cosine});
}

// PyTorch's norm is of fp32 sums, ours of fp64 sums: scaled gradients differ by roundings.
TEST(EngineOracleTest, GradientClipping) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
  training.mutable_optimizer()->set_learning_rate(0.3);
  training.mutable_gradient_clipping()->set_max_norm(0.5);
  CompareWithOracle(
      {.model = SmallMlp(v1alpha1::Loss::MeanSquaredError), .training = training, .bit_equal = false});
}

TEST(EngineOracleTest, Gpt2TiedWithDropout) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::AdamW);
  training.mutable_optimizer()->set_learning_rate(3e-3);
  training.mutable_optimizer()->set_weight_decay(0.1);
  CompareWithOracle({.model = SmallGpt2(0.1), .training = training, .bit_equal = false});
}

// Without dropout autocast's lists for CPU and ours cast alike: normalisations read the fp32 residual stream,
// and softmax is inside the fused attention.
TEST(EngineOracleTest, MixedPrecisionIsThatOfAutocast) {
  v1alpha1::Training training;
  training.set_precision(v1alpha1::Training::bf16);
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
  training.mutable_optimizer()->set_learning_rate(0.1);
  CompareWithOracle({.model = SmallMlp(v1alpha1::Loss::MeanSquaredError), .training = training});
  CompareWithOracle({.model = SmallGpt2(0), .training = training, .bit_equal = false});
  // A value that three products read is cast once here and by autocast for each, so their gradients are added
  // in bfloat16 here.
  constexpr double kTolerance = 4e-3;
  CompareWithOracle(
      {.model = SmallBert(1, 0), .training = training, .bit_equal = false, .gradient_tolerance = kTolerance});
  CompareWithOracle(
      {.model = SmallBert(2, 0), .training = training, .bit_equal = false, .gradient_tolerance = kTolerance});
}

// autocast leaves batch_norm alone: lower images, float32 weights and statistics.
TEST(EngineOracleTest, MixedPrecisionOfBatchNormIsThatOfAutocast) {
  v1alpha1::Training training;
  training.set_precision(v1alpha1::Training::bf16);
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
  training.mutable_optimizer()->set_learning_rate(0.02);
  training.mutable_optimizer()->set_momentum(0.9);
  CompareWithOracle({.model = SmallResnet(false, v1alpha1::ModelConfig::imagenet), .training = training});
  CompareWithOracle({.model = SmallResnet(true, v1alpha1::ModelConfig::small), .training = training});
}

TEST(EngineOracleTest, Gpt2TiedWithFusedAttention) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
  training.mutable_optimizer()->set_learning_rate(0.3);
  CompareWithOracle({.model = SmallGpt2(0), .training = training, .bit_equal = false});
}

TEST(EngineOracleTest, BertTiedWithDropout) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::AdamW);
  training.mutable_optimizer()->set_learning_rate(3e-3);
  training.mutable_optimizer()->set_weight_decay(0.1);
  CompareWithOracle({.model = SmallBert(1, 0.1), .training = training, .bit_equal = false});
}

TEST(EngineOracleTest, BertTiedWithFusedAttention) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::Adam);
  training.mutable_optimizer()->set_learning_rate(3e-3);
  CompareWithOracle({.model = SmallBert(1, 0), .training = training, .bit_equal = false});
}

TEST(EngineOracleTest, BertTowersWithDropout) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::AdamW);
  training.mutable_optimizer()->set_learning_rate(3e-3);
  CompareWithOracle({.model = SmallBert(2, 0.1), .training = training, .bit_equal = false});
}

TEST(EngineOracleTest, BertTowersWithFusedAttentionAndATemperature) {
  v1alpha1::Training training;
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::Adam);
  training.mutable_optimizer()->set_learning_rate(3e-3);
  v1alpha1::Model model = SmallBert(2, 0);
  model.mutable_loss()->set_type(v1alpha1::Loss::InfoNCE);
  model.mutable_loss()->set_temperature(0.2);
  model.mutable_config()->set_positions(11);
  CompareWithOracle({.model = model, .training = training, .bit_equal = false});
}

}  // namespace
}  // namespace fusion::worker
