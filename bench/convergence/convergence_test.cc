// The bench measures what workers do: with codecs as operators, in one engine, every loss has the bits of the
// pipeline that sends the codecs' messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "bench/convergence/record.h"
#include "bench/convergence/training_run.h"
#include "bench/convergence/variant.h"
#include "graph/families.h"
#include "graph/slicing.h"
#include "tests/support/process.h"

namespace fusion::bench {
namespace {

constexpr int kSteps = 6;

JobSetup SmallJob(const testing::ScratchFolder& folder) {
  std::mt19937 random(7);
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    text += static_cast<char>('a' + random() % 26);
  }
  testing::WriteFile(folder / "text.txt", text);
  JobSetup setup{.spec = {}, .base_directory = folder.path()};
  v1alpha1::FusionJobSpec& spec = setup.spec;
  spec.mutable_model()->set_family(v1alpha1::Model::gpt2);
  v1alpha1::ModelConfig& config = *spec.mutable_model()->mutable_config();
  config.set_layers(3);
  config.set_heads(2);
  config.set_width(32);
  config.set_context(16);
  config.set_vocabulary(256);
  config.set_dropout(0.1);
  spec.mutable_data()->set_kind(v1alpha1::Data::text);
  spec.mutable_data()->set_uri("text.txt");
  v1alpha1::Training& training = *spec.mutable_training();
  training.set_seed(3);
  training.mutable_batch()->set_global(8);
  training.mutable_batch()->set_micro(2);
  training.mutable_optimizer()->set_type(v1alpha1::Optimizer::AdamW);
  training.mutable_optimizer()->set_learning_rate(1e-2);
  training.set_steps(kSteps);
  training.mutable_learning_rate_schedule()->set_type(v1alpha1::LearningRateSchedule::Linear);
  training.mutable_learning_rate_schedule()->set_final_fraction(0.1);
  training.mutable_validation()->set_batches(2);
  return setup;
}

struct Losses {
  std::vector<double> steps;
  double validation = 0;
  std::map<std::string, worker::Tensor> parameters;
};

Losses Train(absl::StatusOr<std::unique_ptr<TrainingRun>> run) {
  Losses losses;
  EXPECT_TRUE(run.ok()) << run.status();
  if (!run.ok()) {
    return losses;
  }
  for (int64_t step = 1; step <= kSteps; ++step) {
    const auto loss = (*run)->Step(step);
    EXPECT_TRUE(loss.ok()) << loss.status();
    losses.steps.push_back(loss.value_or(0));
  }
  const auto validation = (*run)->Validate(kSteps);
  EXPECT_TRUE(validation.ok()) << validation.status();
  losses.validation = validation.value_or(0);
  auto parameters = (*run)->Parameters();
  EXPECT_TRUE(parameters.ok()) << parameters.status();
  if (parameters.ok()) {
    losses.parameters = *std::move(parameters);
  }
  return losses;
}

/// Shortest texts that read back equal, one a line: equal texts are equal bits.
std::string Text(const Losses& losses) {
  std::string text;
  for (const double loss : losses.steps) {
    text += nlohmann::json(loss).dump() + "\n";
  }
  return text + "validation " + nlohmann::json(losses.validation).dump();
}

void ExpectSameParameters(const Losses& a, const Losses& b) {
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, value] : a.parameters) {
    const auto other = b.parameters.find(name);
    ASSERT_NE(other, b.parameters.end()) << name;
    ASSERT_EQ(value.shape, other->second.shape) << name;
    EXPECT_EQ(std::memcmp(value.data.get(), other->second.data.get(), static_cast<size_t>(value.bytes())), 0)
        << name;
  }
}

class CodecAsOperator : public ::testing::TestWithParam<std::string> {};

TEST_P(CodecAsOperator, HasTheBitsOfThePipeline) {
  const testing::ScratchFolder folder;
  const JobSetup setup = SmallJob(folder);
  const auto graph = graph::BuildModel(setup.spec.model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  // The first cut lies inside a block, where the residual crosses beside the attention's output.
  const auto variant = CutVariant(*graph, {"transformer.h.0.attn.c_proj", "transformer.h.1"}, GetParam());
  ASSERT_TRUE(variant.ok()) << variant.status();
  EXPECT_EQ(variant->programs.size(), 3U);
  const auto with_codecs = graph::InsertCodecs(*graph, variant->programs);
  ASSERT_TRUE(with_codecs.ok()) << with_codecs.status();
  EXPECT_EQ(with_codecs->operators_size(), graph->operators_size() + (GetParam() == kDense ? 0 : 3));

  const Losses one_process = Train(MakeOneProcessRun(setup, *with_codecs));
  const Losses pipeline = Train(MakePipelineRun(setup, variant->programs));
  EXPECT_EQ(Text(one_process), Text(pipeline));
  ExpectSameParameters(one_process, pipeline);

  const Losses plain = Train(MakeOneProcessRun(setup, *graph));
  EXPECT_EQ(Text(plain) == Text(one_process), GetParam() == kDense) << "a codec changes the numbers";
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecAsOperator,
                         ::testing::Values(kDense, "int8", "int4", "topk-0.1-int4", "topk-0.1-fp32",
                                           "topk-0.1-int4-independent"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

TEST(Schedule, IsTheJobs) {
  const testing::ScratchFolder folder;
  const JobSetup falling = SmallJob(folder);
  JobSetup constant = falling;
  constant.spec.mutable_training()->clear_learning_rate_schedule();
  const auto graph = graph::BuildModel(falling.spec.model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Losses a = Train(MakeOneProcessRun(falling, *graph));
  const Losses b = Train(MakeOneProcessRun(constant, *graph));
  ASSERT_GE(a.steps.size(), 3U);
  EXPECT_EQ(a.steps[0], b.steps[0]);
  EXPECT_EQ(a.steps[1], b.steps[1]) << "the first update has the whole rate";
  EXPECT_NE(a.steps[2], b.steps[2]);
}

TEST(ErrorFeedback, ChangesTheNumbersAfterTheFirstMessage) {
  const testing::ScratchFolder folder;
  JobSetup setup = SmallJob(folder);
  setup.spec.mutable_training()->mutable_batch()->set_micro(8);
  const auto graph = graph::BuildModel(setup.spec.model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto without = CutVariant(*graph, {"transformer.h.1"}, "topk-0.1-int4");
  const auto with = CutVariant(*graph, {"transformer.h.1"}, "topk-0.1-int4+feedback");
  ASSERT_TRUE(without.ok() && with.ok());
  EXPECT_FALSE(HasErrorFeedback(*without));
  EXPECT_TRUE(HasErrorFeedback(*with));
  const Losses a = Train(MakePipelineRun(setup, without->programs));
  const Losses b = Train(MakePipelineRun(setup, with->programs));
  ASSERT_EQ(a.steps.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(a.steps[0], b.steps[0]) << "nothing is left out before the first message";
  EXPECT_NE(a.steps[1], b.steps[1]);
}

TEST(Exported, ParametersMoveToTheGraphWithoutCodecs) {
  const testing::ScratchFolder folder;
  const JobSetup setup = SmallJob(folder);
  const auto graph = graph::BuildModel(setup.spec.model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Losses trained = Train(MakeOneProcessRun(setup, *graph));
  const auto fresh = MakeOneProcessRun(setup, *graph);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_NE(*(*fresh)->Validate(kSteps), trained.validation);
  ASSERT_TRUE((*fresh)->SetParameters(trained.parameters).ok());
  EXPECT_EQ(*(*fresh)->Validate(kSteps), trained.validation);
}

TEST(CutVariant, SaysWhatIsWrong) {
  const testing::ScratchFolder folder;
  const auto graph = graph::BuildModel(SmallJob(folder).spec.model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto message = [&](const std::vector<std::string>& cuts, const std::string& codec) {
    return std::string(CutVariant(*graph, cuts, codec).status().message());
  };
  EXPECT_EQ(message({"transformer.h.9"}, "int8"),
            "cut 'transformer.h.9': the model has no such operator or module");
  EXPECT_EQ(message({"loss"}, "int8"), "cut 'loss' leaves a stage without operators");
  EXPECT_EQ(message({"transformer.h.1", "transformer.h.1.mlp"}, "int8"),
            "cut 'transformer.h.1.mlp' leaves a stage without operators");
  EXPECT_NE(message({"transformer.h.1"}, "int5").find("int5"), std::string::npos);
}

TEST(CutVariant, SizesAreTheCodecs) {
  const testing::ScratchFolder folder;
  const auto graph = graph::BuildModel(SmallJob(folder).spec.model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto sizes = [&](const std::string& codec) {
    return SizesOf(CutVariant(*graph, {"transformer.h.1"}, codec).value(), 2).value();
  };
  EXPECT_EQ(sizes(kDense).forward, 2 * 16 * 32 * 4);
  EXPECT_EQ(sizes(kDense).backward, sizes(kDense).dense);
  EXPECT_EQ(sizes("topk-0.25-fp32").backward, 2 * 16 * 8 * 4) << "values only: the mask is known";
  EXPECT_GT(sizes("topk-0.25-fp32").forward, sizes("topk-0.25-fp32").backward);
  EXPECT_EQ(sizes("int8").dense, sizes(kDense).dense);
}

RunRecord Record(const std::string& variant, int64_t seed, double with_codec, double exported) {
  return {.variant = variant,
          .seed = seed,
          .job = {{"seed", seed}},
          .edges = {"x " + variant},
          .bytes = {.forward = 50, .backward = 25, .dense = 400},
          .losses = {3, 2.5},
          .validations = {{.step = 5, .with_codec = 9, .exported = 9},
                          {.step = 10, .with_codec = with_codec, .exported = exported}},
          .seconds = 1.5};
}

TEST(Record, IsFoundAgainUnlessTheJobIsAnother) {
  const testing::ScratchFolder folder;
  const RunRecord record = Record("int8", 1, 2, 2.25);
  EXPECT_EQ(ReadRecord(folder.path(), record, 10).value(), std::nullopt);
  ASSERT_TRUE(WriteRecord(folder.path(), record).ok());
  const auto read = ReadRecord(folder.path(), record, 10);
  ASSERT_TRUE(read.ok() && read->has_value()) << read.status();
  EXPECT_EQ(ToJson(**read), ToJson(record));
  EXPECT_TRUE(ReadRecord(folder.path(), record, 5)->has_value()) << "a longer run has the shorter one";
  EXPECT_EQ(ReadRecord(folder.path(), record, 20).value(), std::nullopt) << "it was not so long";
  RunRecord other = record;
  other.job["seed"] = 2;
  EXPECT_EQ(ReadRecord(folder.path(), other, 10).status().code(), absl::StatusCode::kFailedPrecondition);
  testing::WriteFile(RecordPath(folder.path(), "int8", 1), "{\"variant\": 3");
  EXPECT_EQ(ReadRecord(folder.path(), record, 10).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Table, ComparesWithDenseOfTheSameSeed) {
  const Estimate estimate = EstimateOf({1, 2, 3});
  EXPECT_DOUBLE_EQ(estimate.mean, 2);
  EXPECT_DOUBLE_EQ(estimate.error, 1 / std::sqrt(3.0));
  EXPECT_EQ(EstimateOf({4}).error, 0);

  const std::vector<RunRecord> records = {Record(kDense, 1, 2, 2), Record(kDense, 2, 2.02, 2.02),
                                          Record("int8", 1, 2.2, 2.4), Record("int4", 3, 2.5, 2.5)};
  EXPECT_EQ(
      Table(records, {kDense, "int8", "int4", "topk-0.1-int4"}, 10),
      "After 10 steps:\n\n"
      "| codec | bytes forward | bytes backward | loss, with the codec | above dense | loss, exported | "
      "above "
      "dense | seeds |\n|---|---|---|---|---|---|---|---|\n"
      "| dense | 50 (8.0x) | 25 (16.0x) | 2.0100 ± 0.0100 | +0.00 ± 0.00 % | 2.0100 ± 0.0100 | +0.00 ± 0.00 "
      "% | 2 |\n"
      "| int8 | 50 (8.0x) | 25 (16.0x) | 2.2000 | +10.00 % | 2.4000 | +20.00 % | 1 |\n"
      "| int4 | 50 (8.0x) | 25 (16.0x) | 2.5000 |  | 2.5000 |  | 1 |\n"
      "\nDense over 2 seeds: 2.0000 to 2.0200, 1.00 % apart.\n");
}

}  // namespace
}  // namespace fusion::bench
