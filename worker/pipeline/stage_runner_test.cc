#include "worker/pipeline/stage_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <rapidcheck/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/slicing.h"
#include "nlohmann/json.hpp"
#include "worker/pipeline/learning_rate.h"
#include "worker/pipeline/step_decision.h"
#include "worker/testing/fake_engine.h"
#include "worker/testing/fake_model.h"
#include "worker/transport/memory_transport.h"

namespace fusion::worker {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using wire::v1::StepReport;

constexpr int64_t kMicroBatch = 2;

absl::StatusOr<Tensor> Feed(const std::string& placeholder, bool training, int64_t batch, int64_t first,
                            int64_t count) {
  return FakeData(placeholder == "label", training, batch, first, count);
}

/// Any number from 1 to 5: as many masked tokens as a micro-batch happens to have.
int64_t SomeTargets(bool training, int64_t batch, int64_t first, int64_t /*count*/) {
  return 1 + (batch * 3 + first * first + (training ? 0 : 2)) % 5;
}

std::unique_ptr<Transport> MakeStageTransport(std::shared_ptr<MemoryHub> hub, int stage) {
  TransportOptions options;
  options.job = "job";
  options.incarnation = 1;
  options.stage = stage;
  return MakeMemoryTransport(std::move(hub), options).value();
}

struct RunOptions {
  int64_t micro_batches = 3;
  int64_t steps = 2;
  int64_t validation_batches = 0;  ///< after each step
  PipelineOrder order = PipelineOrder::kOneForwardOneBackward;
  TargetFunction targets = {};
  double slowdown = 0;
  std::string trace_file = {};
  v1alpha1::Training training = {};
  int poisoned_stage = -1;  ///< has a gradient that is not finite at step 2
};

/// What a run leaves behind.
struct Outcome {
  std::vector<double> losses;
  std::vector<double> validation_losses;
  std::map<std::string, std::vector<float>> variables;  ///< by tensor name, of the owners
  std::vector<absl::Status> statuses;                   ///< by stage
  std::vector<StepReport> last_reports;                 ///< by stage
  size_t held = 0;                                      ///< tensors and passes not released
  double squared_norm = -1;                             ///< of the last step
};

/// Finds an infinite gradient from its n-th step on.
class PoisonedEngine : public FakeEngine {
 public:
  PoisonedEngine(TaskHook hook, int64_t step) : FakeEngine(std::move(hook)), healthy_(step - 1) {}
  absl::StatusOr<std::vector<GradientNorm>> GradientNorms() override {
    auto norms = FakeEngine::GradientNorms();
    if (norms.ok() && !norms->empty() && healthy_-- <= 0) {
      norms->back().squared = std::numeric_limits<double>::infinity();
    }
    return norms;
  }

 private:
  int64_t healthy_;
};

/// One stage on a thread of its own, over in-memory links.
class Stage {
 public:
  Stage(const graph::v1::StageProgram& program, const RunOptions& options, std::shared_ptr<MemoryHub> hub,
        FakeEngine::TaskHook hook)
      : options_(options),
        engine_(std::move(hook), program.stage() == options.poisoned_stage ? 2 : options.steps + 1) {
    EXPECT_TRUE(engine_.Load(program, {}).ok());
    transport_ = MakeStageTransport(std::move(hub), program.stage());
    runner_ = StageRunner::Create(
                  {.program = program,
                   .order = options.order,
                   .global_batch = kMicroBatch * options.micro_batches,
                   .micro_batch = kMicroBatch,
                   .training = options.training,
                   .targets = options.targets,
                   .slowdown = options.slowdown,
                   .trace_file =
                       options.trace_file.empty() ? "" : absl::StrCat(options.trace_file, program.stage()),
                   .trace_step = 1},
                  engine_, *transport_, Feed)
                  .value();
  }

  std::string address() const { return transport_->address(); }
  void Connect(const std::vector<std::string>& addresses) {
    std::vector<std::pair<int, std::string>> peers;
    for (const int peer : runner_->Receivers()) {
      peers.emplace_back(peer, addresses[peer]);
    }
    connected_ = transport_->Connect(peers);
  }
  void Run() {
    status_ = connected_;
    for (int64_t step = 1; status_.ok() && step <= options_.steps; ++step) {
      auto report = runner_->RunStep(step);
      status_ = report.status();
      if (status_.ok()) {
        report_ = *report;
        if (report->has_loss()) {
          losses_.push_back(report->loss());
        }
      }
      if (status_.ok() && options_.validation_batches > 0) {
        const auto loss = runner_->RunValidation(step, options_.validation_batches);
        status_ = loss.status();
        if (loss.ok() && loss->has_value()) {
          validation_losses_.push_back(**loss);
        }
      }
    }
  }
  void Cancel(const absl::Status& why) { runner_->Cancel(why); }
  const absl::Status& status() const { return status_; }

  void Finish(Outcome& outcome) {
    const absl::Status closed = transport_->Close(5);
    if (status_.ok()) {
      EXPECT_TRUE(closed.ok()) << closed;
    }
    outcome.statuses.push_back(status_);
    outcome.losses.insert(outcome.losses.end(), losses_.begin(), losses_.end());
    outcome.validation_losses.insert(outcome.validation_losses.end(), validation_losses_.begin(),
                                     validation_losses_.end());
    outcome.last_reports.push_back(report_);
    if (report_.has_job_squared_gradient_norm()) {
      EXPECT_EQ(outcome.squared_norm, -1) << "one stage decides";
      outcome.squared_norm = report_.job_squared_gradient_norm();
    }
    outcome.held += runner_->TensorsHeld() + engine_.passes_held();
    for (const VariableInfo& info : engine_.Variables()) {
      if (!info.borrowed) {
        const auto values = engine_.ReadVariable(info.name)->floats();
        outcome.variables[info.tensor_name] = {values.begin(), values.end()};
      }
    }
  }

 private:
  const RunOptions options_;
  PoisonedEngine engine_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<StageRunner> runner_;
  absl::Status connected_;
  absl::Status status_;
  StepReport report_;
  std::vector<double> losses_;
  std::vector<double> validation_losses_;
};

/// Runs all stages to the end. `hooks`, where given, are by stage. The first stage to fail cancels the
/// others.
Outcome RunPipeline(const std::vector<graph::v1::StageProgram>& programs, const RunOptions& options,
                    const std::vector<FakeEngine::TaskHook>& hooks = {}) {
  const auto hub = std::make_shared<MemoryHub>();
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<std::string> addresses;
  for (size_t i = 0; i < programs.size(); ++i) {
    stages.push_back(
        std::make_unique<Stage>(programs[i], options, hub, i < hooks.size() ? hooks[i] : nullptr));
    addresses.push_back(stages.back()->address());
  }
  const auto on_all = [&stages](auto work) {
    std::vector<std::thread> threads;
    for (auto& stage : stages) {
      threads.emplace_back([&work, &stage] { work(*stage); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  };
  on_all([&](Stage& stage) { stage.Connect(addresses); });
  on_all([&](Stage& stage) {
    stage.Run();
    if (!stage.status().ok()) {
      for (auto& other : stages) {
        other->Cancel(absl::CancelledError("another stage failed"));
      }
    }
  });
  Outcome outcome;
  for (auto& stage : stages) {
    stage->Finish(outcome);
  }
  return outcome;
}

/// The same training on one engine, one task after the other: no pipeline, no transport.
Outcome RunSequentially(const graph::v1::StageProgram& whole, const RunOptions& options) {
  Outcome outcome;
  FakeEngine engine;
  EXPECT_TRUE(engine.Load(whole, {}).ok());
  const auto run = [&](int64_t step, bool training, int64_t batches) {
    double sum = 0;
    double all = 0;
    std::vector<double> weights;
    for (int64_t i = 0; i < batches * options.micro_batches; ++i) {
      const int64_t batch = training ? step : i / options.micro_batches;
      const int64_t first = i % options.micro_batches * kMicroBatch;
      weights.push_back(static_cast<double>(
          options.targets ? options.targets(training, batch, first, kMicroBatch) : kMicroBatch));
      all += weights.back();
    }
    for (int64_t pass_index = 0; pass_index < batches * options.micro_batches; ++pass_index) {
      const double weight = weights[static_cast<size_t>(pass_index)];
      const Pass pass{.step = step,
                      .micro_batch = static_cast<int32_t>(pass_index),
                      .training = training,
                      .samples = kMicroBatch,
                      .weight = weight / all};
      for (const std::string placeholder : {"input", "label"}) {
        const int64_t first = pass_index % options.micro_batches * kMicroBatch;
        const int64_t batch = training ? step : pass_index / options.micro_batches;
        EXPECT_TRUE(
            engine.Feed(pass, placeholder, *Feed(placeholder, training, batch, first, kMicroBatch)).ok());
      }
      sum += weight * *engine.Forward(pass, 0)->loss;
      if (training) {
        EXPECT_TRUE(engine.Backward(pass, 0).ok());
      }
      engine.Release(pass);
    }
    return sum / all;
  };
  for (int64_t step = 1; step <= options.steps; ++step) {
    outcome.losses.push_back(run(step, true, 1));
    outcome.squared_norm = SumOfSquares(*engine.GradientNorms());
    EXPECT_TRUE(engine.Update(step, DecideUpdate(options.training, step, outcome.squared_norm)).ok());
    if (options.validation_batches > 0) {
      outcome.validation_losses.push_back(run(step, false, options.validation_batches));
    }
  }
  for (const VariableInfo& info : engine.Variables()) {
    const auto values = engine.ReadVariable(info.name)->floats();
    outcome.variables[info.tensor_name] = {values.begin(), values.end()};
  }
  return outcome;
}

RC_GTEST_PROP(StageRunner, EqualsTheSequentialRunBitForBit, ()) {
  FakeModelOptions model_options;
  model_options.seed = *rc::gen::arbitrary<uint64_t>();
  model_options.layers = *rc::gen::inRange(1, 6);
  model_options.stages = *rc::gen::inRange(1, 5);
  model_options.sub_dags = *rc::gen::inRange(1, 8);
  model_options.max_depth = *rc::gen::inRange(1, 4);
  RunOptions options;
  options.micro_batches = *rc::gen::inRange(1, 5);
  options.validation_batches = *rc::gen::inRange(0, 3);
  options.order = *rc::gen::element(PipelineOrder::kOneForwardOneBackward, PipelineOrder::kGPipe);
  options.training.set_steps(options.steps);
  options.training.mutable_learning_rate_schedule()->set_type(v1alpha1::LearningRateSchedule::Linear);
  options.training.mutable_learning_rate_schedule()->set_final_fraction(0.3);
  options.training.mutable_gradient_clipping()->set_max_norm(1e-3);
  if (*rc::gen::arbitrary<bool>()) {
    options.targets = SomeTargets;
  }
  const FakeModel model = MakeFakeModel(model_options);

  const Outcome pipelined = RunPipeline(model.programs, options);
  const Outcome sequential = RunSequentially(model.whole, options);
  for (const absl::Status& status : pipelined.statuses) {
    RC_ASSERT(status.ok());
  }
  RC_ASSERT(pipelined.losses == sequential.losses);
  RC_ASSERT(pipelined.validation_losses == sequential.validation_losses);
  RC_ASSERT(pipelined.variables == sequential.variables);
  RC_ASSERT(pipelined.squared_norm == sequential.squared_norm);
  RC_ASSERT(ClippingFactor(options.training, pipelined.squared_norm) < 1);
  for (const StepReport& report : pipelined.last_reports) {
    RC_ASSERT(report.learning_rate() == LearningRate(options.training, options.steps));
  }
  RC_ASSERT(pipelined.held == 0U);
}

/// input, embedding and half of the layers | the other half and the loss.
FakeModel TwoStages(int depth = 2) {
  FakeModel model = MakeFakeModel({.seed = 3, .layers = 2, .stages = 1, .sub_dags = 1, .max_depth = 1});
  graph::Placement placement(2);
  placement[0].sub_dags = {
      {.operators = {"input", "shifted", "embedding of input", "embedding of shifted", "layer0"},
       .depth = depth}};
  placement[1].sub_dags = {{.operators = {"label", "layer1", "loss"}, .depth = 1}};
  model.programs = graph::Slice(model.graph, placement).value();
  return model;
}

TEST(StageRunner, ReportsTimesLossAndLinks) {
  const Outcome outcome = RunPipeline(TwoStages().programs, {});
  for (int stage = 0; stage < 2; ++stage) {
    ASSERT_TRUE(outcome.statuses[stage].ok()) << outcome.statuses[stage];
    const StepReport& report = outcome.last_reports[stage];
    EXPECT_EQ(report.step(), 2);
    EXPECT_EQ(report.stage(), stage);
    EXPECT_EQ(report.has_loss(), stage == 1);
    EXPECT_GT(report.forward_seconds(), 0);
    EXPECT_GT(report.backward_seconds(), 0);
    EXPECT_GT(report.end_ns(), report.start_ns());
    EXPECT_EQ(report.tasks(), 0) << "nothing is emulated";
    ASSERT_EQ(report.links_size(), 1);
    EXPECT_EQ(report.links(0).to_stage(), 1 - stage);
    EXPECT_GE(report.links(0).bytes(), report.links(0).dense_bytes());
    EXPECT_GT(report.links(0).dense_bytes(), 0);
  }
}

TEST(StageRunner, ALossIsWeightedByItsTargets) {
  const Outcome plain = RunPipeline(TwoStages().programs, {.steps = 1, .validation_batches = 2});
  const Outcome weighted =
      RunPipeline(TwoStages().programs, {.steps = 1, .validation_batches = 2, .targets = SomeTargets});
  const auto only_the_first = [](bool /*training*/, int64_t /*batch*/, int64_t first, int64_t /*count*/) {
    return int64_t{first == 0 ? 1 : 0};
  };
  const Outcome first = RunPipeline(TwoStages().programs, {.steps = 1, .targets = only_the_first});
  ASSERT_EQ(weighted.losses.size(), 1U);
  EXPECT_NE(weighted.losses, plain.losses);
  EXPECT_NE(weighted.validation_losses, plain.validation_losses);
  EXPECT_NE(weighted.variables, plain.variables) << "gradients are weighted too";
  EXPECT_EQ(first.losses, RunPipeline(TwoStages().programs, {.micro_batches = 1, .steps = 1}).losses);
}

TEST(StageRunner, LossyCodecsReachTheSameLossRoughlyAndLeaveNoMasks) {
  FakeModel model = TwoStages();
  for (auto& program : model.programs) {
    for (auto* edges : {program.mutable_incoming(), program.mutable_outgoing()}) {
      for (auto& edge : *edges) {
        if (edge.differentiable()) {
          edge.set_forward_codec("topk-0.5-fp32+feedback");
          edge.set_backward_codec("topk-0.5-fp32+feedback");
          edge.set_cotangent_per_consumer(false);
        }
      }
    }
  }
  const RunOptions options{.validation_batches = 2};
  const Outcome lossy = RunPipeline(model.programs, options);
  const Outcome exact = RunSequentially(model.whole, options);
  for (const absl::Status& status : lossy.statuses) {
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(lossy.held, 0) << "a mask outlived its gradient";
  EXPECT_NE(lossy.losses, exact.losses);
  EXPECT_NEAR(lossy.losses[0], exact.losses[0], 5);
  EXPECT_LT(lossy.last_reports[0].links(0).bytes(), 4000);
}

/// Sets codecs of all differentiable edges, by first step.
void SetPhases(FakeModel& model, const std::vector<std::pair<int64_t, std::string>>& phases) {
  for (auto& program : model.programs) {
    for (auto* edges : {program.mutable_incoming(), program.mutable_outgoing()}) {
      for (auto& edge : *edges) {
        if (!edge.differentiable()) {
          continue;
        }
        edge.set_cotangent_per_consumer(false);
        edge.set_forward_codec(phases.back().second);
        edge.set_backward_codec(phases.back().second);
        for (size_t i = 0; phases.size() > 1 && i < phases.size(); ++i) {
          auto* phase = edge.add_phases();
          phase->set_from_step(phases[i].first);
          phase->set_forward_codec(phases[i].second);
          phase->set_backward_codec(phases[i].second);
        }
      }
    }
  }
}

// A run is that of each codec as long as it lasts; validations lie between the steps that change.
TEST(StageRunner, CodecsChangeAtTheirSteps) {
  const RunOptions options{.steps = 4, .validation_batches = 2};
  const std::string sparse = "topk-0.5-fp32";
  const auto losses = [&](const std::vector<std::pair<int64_t, std::string>>& phases) {
    FakeModel model = TwoStages();
    SetPhases(model, phases);
    const Outcome outcome = RunPipeline(model.programs, options);
    for (const absl::Status& status : outcome.statuses) {
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_EQ(outcome.held, 0U);
    return outcome.losses;
  };
  const std::vector<double> dense = losses({{1, "fp32"}});
  const std::vector<double> coded = losses({{1, sparse}});
  const std::vector<double> later = losses({{1, "fp32"}, {3, sparse}});
  const std::vector<double> sooner = losses({{1, sparse}, {3, "fp32"}});
  EXPECT_EQ(std::vector(later.begin(), later.begin() + 2), std::vector(dense.begin(), dense.begin() + 2));
  EXPECT_NE(later[2], dense[2]);
  EXPECT_EQ(std::vector(sooner.begin(), sooner.begin() + 2), std::vector(coded.begin(), coded.begin() + 2));
  EXPECT_NE(sooner[2], coded[2]);
  EXPECT_EQ(losses({{1, "fp32"}, {3, sparse}}), later) << "the same again";
}

TEST(StageRunner, AnEngineErrorNamesStageStepAndTask) {
  const auto fail = [](const Pass& pass, int, bool forward) {
    return pass.step == 2 && pass.micro_batch == 1 && !forward ? absl::ResourceExhaustedError("no memory")
                                                               : absl::OkStatus();
  };
  const Outcome outcome = RunPipeline(TwoStages().programs, {}, {nullptr, fail});
  EXPECT_EQ(outcome.statuses[1].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(outcome.statuses[1].message()),
            "no memory (stage 1, step 2, micro-batch 1, backward)");
  EXPECT_EQ(outcome.statuses[0].code(), absl::StatusCode::kCancelled)
      << "it waits for gradients that do not come";
}

class NonFiniteGradient : public ::testing::TestWithParam<int> {};

TEST_P(NonFiniteGradient, OfOneStageUpdatesNone) {
  const FakeModel model = TwoStages();
  const Outcome before = RunPipeline(model.programs, {.steps = 1});
  const Outcome outcome = RunPipeline(model.programs, {.steps = 3, .poisoned_stage = GetParam()});
  EXPECT_EQ(outcome.losses.size(), GetParam() < 0 ? 3U : 1U);
  EXPECT_EQ(outcome.variables == before.variables, GetParam() >= 0);
  for (const absl::Status& status : outcome.statuses) {
    if (GetParam() >= 0 && !absl::IsCancelled(status)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("NonFiniteLoss: a gradient is not finite (sum of squares over the job inf); no "
                            "parameter was changed"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, NonFiniteGradient, ::testing::Values(-1, 0, 1), [](const auto& info) {
  return info.param < 0 ? std::string("None") : absl::StrCat("Stage", info.param);
});

/// Poisons what the engine reads, so that a number stops being finite.
TEST(StageRunner, ANonFiniteLossStopsBeforeAnyUpdate) {
  FakeModel model = TwoStages();
  FakeEngine engine;
  ASSERT_TRUE(engine.Load(model.whole, {}).ok());
  const std::string variable = engine.Variables()[0].name;
  Tensor poison = AllocateTensor(graph::v1::FLOAT32, {kFakeColumns});
  for (float& x : poison.mutable_floats()) {
    x = std::numeric_limits<float>::infinity();
  }
  ASSERT_TRUE(engine.WriteVariable(variable, poison).ok());
  const auto transport = MakeStageTransport(std::make_shared<MemoryHub>(), 0);
  const auto runner = StageRunner::Create({.program = model.whole, .global_batch = 4, .micro_batch = 2},
                                          engine, *transport, Feed)
                          .value();
  const auto report = runner->RunStep(7);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("NonFiniteLoss: the loss is"));
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("(stage 0, step 7, micro-batch 0, forward)"));
  EXPECT_TRUE(transport->Close(1).ok());
}

TEST(StageRunner, CancelEndsAWaitingStage) {
  const FakeModel model = TwoStages();
  FakeEngine engine;
  ASSERT_TRUE(engine.Load(model.programs[1], {}).ok());
  const auto transport = MakeStageTransport(std::make_shared<MemoryHub>(), 1);
  const auto runner = StageRunner::Create({.program = model.programs[1], .global_batch = 4, .micro_batch = 2},
                                          engine, *transport, Feed)
                          .value();
  std::thread canceller([&] { runner->Cancel(absl::UnavailableError("the broker is gone")); });
  EXPECT_EQ(runner->RunStep(1).status(), absl::UnavailableError("the broker is gone"));
  canceller.join();
  EXPECT_TRUE(transport->Close(1).ok());
}

TEST(StageRunner, AnEmulatedTaskLastsAsLongAsTheSlowMachineNeeds) {
  const RunOptions options{.steps = 1, .slowdown = 200};
  const Outcome outcome = RunPipeline(TwoStages().programs, options);
  const StepReport& report = outcome.last_reports[0];
  ASSERT_TRUE(outcome.statuses[0].ok()) << outcome.statuses[0];
  EXPECT_EQ(report.tasks(), 2 * options.micro_batches + 2) << "passes, the decision, the update";
  const double busy = report.forward_seconds() + report.backward_seconds() + report.update_seconds();
  EXPECT_GE(static_cast<double>(report.end_ns() - report.start_ns()) * 1e-9 + 1e-6, busy);
}

TEST(StageRunner, RefusesABatchThatTheMicroBatchDoesNotDivide) {
  FakeEngine engine;
  const auto transport = MakeStageTransport(std::make_shared<MemoryHub>(), 0);
  EXPECT_EQ(StageRunner::Create({.program = TwoStages().whole, .global_batch = 5, .micro_batch = 2}, engine,
                                *transport, Feed)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(StageRunner, WritesAChromeTraceOfOneStep) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/trace-", getpid(), "-");
  FakeModel model = TwoStages();
  for (auto& program : model.programs) {
    for (auto* edges : {program.mutable_incoming(), program.mutable_outgoing()}) {
      for (auto& edge : *edges) {
        if (edge.differentiable()) {
          edge.set_forward_codec("int8");
          edge.set_backward_codec("int8");
          edge.set_cotangent_per_consumer(false);
        }
      }
    }
  }
  const Outcome outcome = RunPipeline(model.programs, {.trace_file = path});
  ASSERT_TRUE(outcome.statuses[1].ok()) << outcome.statuses[1];
  std::ifstream file(path + "1");
  const auto trace = nlohmann::json::parse(file);
  std::map<std::string, int> names;
  std::map<int, int> rows;
  for (const auto& event : trace["traceEvents"]) {
    ++names[event["name"]];
    if (event["ph"] == "X") {
      EXPECT_GE(event["dur"], 0);
      ++rows[event["tid"]];
    }
  }
  EXPECT_EQ(names["forward 2 of sub-DAG 0"], 1);
  EXPECT_EQ(names["update"], 1);
  EXPECT_EQ(names["decision"], 1);
  EXPECT_EQ(rows[0], 8) << "three forwards, three backwards, a decision, an update";
  EXPECT_GE(rows[1], 3) << "gradients encoded";
  EXPECT_GE(rows[2], 3) << "values decoded";
  EXPECT_EQ(names["to stage 0"], 1);
}

}  // namespace
}  // namespace fusion::worker
