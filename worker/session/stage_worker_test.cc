// The worker's program as a process, against a broker that the test drives: two stages with the engine that
// computes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/families.h"
#include "graph/slicing.h"
#include "tests/support/process.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/session/fake_broker_for_test.h"
#include "worker/testing/fake_model.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using wire::v1::BrokerMessage;
using wire::v1::WorkerMessage;

constexpr std::chrono::seconds kDeadline(20);

class StageWorkerTest : public ::testing::Test {
 protected:
  StageWorkerTest() {
    testing::WriteFile(scratch_ / "text", std::string(2000, 'a'));
    spec_.mutable_data()->set_kind(v1alpha1::Data::text);
    spec_.mutable_data()->set_uri("text");
    spec_.mutable_model()->mutable_config()->set_context(kFakeColumns);
    spec_.mutable_model()->mutable_config()->set_vocabulary(256);
    spec_.mutable_training()->set_steps(3);
    spec_.mutable_training()->mutable_batch()->set_global(6);
    spec_.mutable_training()->mutable_batch()->set_micro(2);
    spec_.mutable_training()->mutable_validation()->set_every_steps(2);
    spec_.mutable_training()->mutable_validation()->set_batches(1);
    spec_.mutable_checkpoint()->set_every_steps(2);
  }

  void StartWorkers() {
    for (size_t stage = 0; stage < programs_.size(); ++stage) {
      workers_.push_back(std::make_unique<testing::Process>(
          std::vector<std::string>{FUSION_BINARY_DIR "/bin/fusion-worker", "stage", "--broker",
                                   broker_.address(), "--job", "default/job", "--stage",
                                   std::to_string(stage), "--compnode", "a1", "--incarnation", "1",
                                   "--engine", engine_},
          MakeFolder(absl::StrCat("worker-", stage))));
    }
  }

  std::string MakeFolder(const std::string& name) {
    fs::create_directories(scratch_ / name);
    return scratch_ / name;
  }

  wire::v1::Assignment AssignmentOf(int stage) {
    wire::v1::Assignment assignment;
    assignment.set_version(1);
    assignment.set_job("default/job");
    assignment.set_incarnation(1);
    *assignment.mutable_spec() = spec_;
    *assignment.mutable_program() = programs_[stage];
    assignment.set_base_directory(scratch_.path());
    assignment.set_checkpoint_directory(scratch_ / "checkpoints");
    (*assignment.mutable_model_config_json())["config.json"] = "{}";
    assignment.set_resume(resume_);
    std::set<std::string> names;
    for (const graph::v1::StageProgram& program : programs_) {
      for (const graph::v1::SubDag& sub_dag : program.sub_dags()) {
        for (const graph::v1::Operator& op : sub_dag.operators()) {
          if (op.kind() != graph::v1::Operator::VARIABLE || !names.insert(op.name()).second) continue;
          auto* variable = assignment.add_variables();
          variable->set_tensor_name(op.variable().tensor_name());
          *variable->mutable_spec() = op.outputs(0);
          variable->set_trainable(op.variable().trainable());
        }
      }
    }
    return assignment;
  }

  int stages() const { return static_cast<int>(programs_.size()); }

  /// Up to Start.
  void BeginRun() {
    BrokerMessage peers;
    for (int stage = 0; stage < stages(); ++stage) {
      const auto registered = broker_.Await(stage, WorkerMessage::kRegister);
      ASSERT_TRUE(registered.has_value()) << workers_[stage]->Err();
      EXPECT_EQ(registered->register_().job(), "default/job");
      EXPECT_EQ(registered->register_().pid(), workers_[stage]->pid());
      (*peers.mutable_peers()->mutable_addresses())[stage] = registered->register_().data_address();
      BrokerMessage message;
      *message.mutable_assignment() = AssignmentOf(stage);
      broker_.Send(stage, message);
    }
    SendAll(peers);
    for (int stage = 0; stage < stages(); ++stage) {
      const auto ready = broker_.Await(stage, WorkerMessage::kReady);
      ASSERT_TRUE(ready.has_value()) << workers_[stage]->Err();
      if (stage == 0) {
        ready_ = ready->ready();
      }
    }
    BrokerMessage start;
    start.mutable_start()->set_first_step(ready_.checkpoint_step() + 1);
    start.mutable_start()->set_checkpoint(ready_.checkpoint());
    SendAll(start);
  }

  void SendAll(const BrokerMessage& message) {
    for (int stage = 0; stage < stages(); ++stage) {
      broker_.Send(stage, message);
    }
  }

  const testing::ScratchFolder scratch_;
  FakeBroker broker_;
  /// Two stages; the engine that computes nothing does not mind what they are.
  std::vector<graph::v1::StageProgram> programs_ =
      MakeFakeModel({.seed = 5, .layers = 4, .stages = 2, .sub_dags = 3, .max_depth = 2}).programs;
  std::string engine_ = "none";
  bool resume_ = false;
  wire::v1::Ready ready_;  ///< of stage 0
  v1alpha1::FusionJobSpec spec_;
  std::vector<std::unique_ptr<testing::Process>> workers_;
};

TEST_F(StageWorkerTest, TrainsSavesAndEndsWhenItIsStopped) {
  StartWorkers();
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  int losses = 0;
  std::vector<std::string> parts;
  for (int stage = 0; stage < stages(); ++stage) {
    for (int64_t step = 1; step <= 3; ++step) {
      const auto report = broker_.Await(stage, WorkerMessage::kStep);
      ASSERT_TRUE(report.has_value()) << workers_[stage]->Err();
      EXPECT_EQ(report->step().step(), step);
      losses += report->step().has_loss() ? 1 : 0;
    }
    for (const int64_t step : {2, 3}) {
      const auto part = broker_.Await(stage, WorkerMessage::kCheckpointPart);
      ASSERT_TRUE(part.has_value());
      EXPECT_EQ(part->checkpoint_part().error(), "");
      EXPECT_EQ(part->checkpoint_part().step(), step);
      if (step == 3) {
        parts.push_back(part->checkpoint_part().path());
      }
    }
    ASSERT_TRUE(broker_.Await(stage, WorkerMessage::kFinished).has_value());
  }
  EXPECT_EQ(losses, 3) << "one stage computes the loss";

  BrokerMessage assemble;
  assemble.mutable_assemble()->set_step(3);
  assemble.mutable_assemble()->mutable_parts()->Add(parts.begin(), parts.end());
  broker_.Send(0, assemble);
  const auto done = broker_.Await(0, WorkerMessage::kCheckpointDone);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->checkpoint_done().error(), "");
  const auto file = SafetensorsFile::Open(done->checkpoint_done().path() + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_GT(file->tensors().size(), 0);

  BrokerMessage stop;
  stop.mutable_stop();
  SendAll(stop);
  for (const auto& worker : workers_) {
    const testing::ProcessResult result = worker->Wait(kDeadline);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST_F(StageWorkerTest, EvaluatesOnceAtStepZero) {
  spec_.set_task(v1alpha1::FusionJobSpec::Evaluate);
  StartWorkers();
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  int reports = 0;
  for (int stage = 0; stage < stages(); ++stage) {
    ASSERT_TRUE(broker_.Await(stage, WorkerMessage::kFinished).has_value());
    if (programs_[stage].computes_loss()) {
      const auto report = broker_.Await(stage, WorkerMessage::kValidation);
      ASSERT_TRUE(report.has_value());
      EXPECT_EQ(report->validation().step(), 0);
      ++reports;
    }
  }
  EXPECT_EQ(reports, 1);
}

TEST_F(StageWorkerTest, SaysWhyItCannotGoOn) {
  fs::remove(scratch_ / "text");
  StartWorkers();
  std::vector<std::string> failures;
  for (int stage = 0; stage < stages(); ++stage) {
    ASSERT_TRUE(broker_.Await(stage, WorkerMessage::kRegister).has_value());
    bool reads = false;
    for (const auto& sub_dag : programs_[stage].sub_dags()) {
      for (const auto& op : sub_dag.operators()) {
        reads |= op.kind() == graph::v1::Operator::PLACEHOLDER;
      }
    }
    if (!reads) {
      continue;
    }
    BrokerMessage message;
    *message.mutable_assignment() = AssignmentOf(stage);
    broker_.Send(stage, message);
    const auto failure = broker_.Await(stage, WorkerMessage::kFailure);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->failure().code(), static_cast<int>(absl::StatusCode::kNotFound));
    EXPECT_THAT(failure->failure().message(), HasSubstr("data.uri: cannot open"));
    EXPECT_EQ(workers_[stage]->Wait(kDeadline).exit_code, 1);
  }
}

TEST_F(StageWorkerTest, EndsWithinSecondsWhenTheBrokerIsLost) {
  StartWorkers();
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  broker_.Stop();
  // The first to end takes its streams along; a neighbour that sees those break before its own session says
  // so instead.
  int lost = 0;
  for (const auto& worker : workers_) {
    const testing::ProcessResult result = worker->Wait(kDeadline);
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, AnyOf(HasSubstr("is lost"), HasSubstr("broke without Close"),
                                  HasSubstr("closed by the peer")));
    if (result.err.find("is lost") != std::string::npos) ++lost;
  }
  EXPECT_GE(lost, 1);
}

TEST_F(StageWorkerTest, EndsOnSigterm) {
  StartWorkers();
  ASSERT_TRUE(broker_.Await(0, WorkerMessage::kRegister).has_value());
  for (const auto& worker : workers_) {
    worker->Signal(SIGTERM);
    EXPECT_EQ(worker->Wait(kDeadline).exit_code, 143);
  }
  EXPECT_TRUE(broker_.AwaitEnd(0));
}

/// gpt2 with LibTorch, over real links.
class TorchStageTest : public StageWorkerTest {
 protected:
  TorchStageTest() {
    std::string text;
    for (int i = 0; text.size() < 20'000; ++i) {
      absl::StrAppend(&text, "the ", i % 7, " quick foxes ");
    }
    testing::WriteFile(scratch_ / "text", text);
    spec_.mutable_data()->set_uri("text");
    v1alpha1::Model* model = spec_.mutable_model();
    model->set_family(v1alpha1::Model::gpt2);
    model->mutable_config()->set_layers(2);
    model->mutable_config()->set_heads(2);
    model->mutable_config()->set_width(16);
    model->mutable_config()->set_context(16);
    model->mutable_config()->set_dropout(0.1);
    spec_.mutable_training()->set_steps(30);
    spec_.mutable_training()->mutable_optimizer()->set_type(v1alpha1::Optimizer::AdamW);
    spec_.mutable_training()->mutable_optimizer()->set_learning_rate(1e-2);
    v1alpha1::LearningRateSchedule* schedule = spec_.mutable_training()->mutable_learning_rate_schedule();
    schedule->set_type(v1alpha1::LearningRateSchedule::Linear);
    schedule->set_final_fraction(0.4);
    spec_.mutable_training()->mutable_gradient_clipping()->set_max_norm(1);
    engine_ = "torch";
  }

  void SetUp() override {
#ifndef FUSION_BUILDS_TORCH
    GTEST_SKIP() << "this build has no LibTorch engine (FUSION_TORCH=OFF)";
#endif
  }

  /// Cuts the model where an operator's name starts with one of `starts`; stages repeat as given.
  void Cut(const std::vector<std::string>& starts, const std::vector<int>& stages) {
    const auto graph = graph::BuildModel(spec_.model());
    ASSERT_TRUE(graph.ok()) << graph.status();
    graph::Placement placement(1 + *std::max_element(stages.begin(), stages.end()));
    size_t segment = 0;
    placement[stages[0]].sub_dags.push_back({.operators = {}, .depth = 2});
    for (const graph::v1::Operator& op : graph->operators()) {
      if (op.kind() == graph::v1::Operator::VARIABLE) {
        continue;
      }
      if (segment < starts.size() && absl::StartsWith(op.name(), starts[segment])) {
        placement[stages[++segment]].sub_dags.push_back({.operators = {}, .depth = 2});
      }
      placement[stages[segment]].sub_dags.back().operators.push_back(op.name());
    }
    ASSERT_EQ(segment, starts.size()) << "no operator starts with " << starts[segment];
    auto programs = graph::Slice(*graph, placement);
    ASSERT_TRUE(programs.ok()) << programs.status();
    programs_ = *std::move(programs);
  }

  /// Of the parts that all stages have written after this step.
  void MakeCheckpoint(int64_t step) {
    BrokerMessage assemble;
    assemble.mutable_assemble()->set_step(step);
    for (int stage = 0; stage < this->stages(); ++stage) {
      while (true) {
        const auto part = broker_.Await(stage, WorkerMessage::kCheckpointPart);
        ASSERT_TRUE(part.has_value()) << workers_[stage]->Err();
        ASSERT_EQ(part->checkpoint_part().error(), "");
        if (part->checkpoint_part().step() < step) continue;
        assemble.mutable_assemble()->add_parts(part->checkpoint_part().path());
        break;
      }
    }
    broker_.Send(0, assemble);
    const auto done = broker_.Await(0, WorkerMessage::kCheckpointDone);
    ASSERT_TRUE(done.has_value());
    EXPECT_EQ(done->checkpoint_done().error(), "");
  }

  /// The model and the optimizer's state after this step, as the manifest's sums.
  std::string Sums(int64_t step) {
    const std::string manifest =
        testing::ReadFile(absl::StrCat(scratch_ / "checkpoints", "/step-", step, "/manifest.json"));
    EXPECT_FALSE(manifest.empty()) << step;
    return manifest;
  }

  /// Of all steps run.
  struct Curve {
    std::vector<double> losses;
    std::vector<double> validations;    ///< after each second step
    std::vector<double> squared_norms;  ///< of the whole job's gradients
    bool operator==(const Curve&) const = default;

    Curve From(size_t step) const {  ///< counted from 0, even
      return {{losses.begin() + step, losses.end()},
              {validations.begin() + step / 2, validations.end()},
              {squared_norms.begin() + step, squared_norms.end()}};
    }
  };

  /// Makes the checkpoint of the last step as well.
  Curve Train() {
    StartWorkers();
    BeginRun();
    const int64_t first = ready_.checkpoint_step() + 1;
    Curve curve;
    for (int stage = 0; stage < this->stages(); ++stage) {
      EXPECT_TRUE(broker_.Await(stage, WorkerMessage::kFinished).has_value()) << workers_[stage]->Err();
      const bool decides = programs_[stage].has_decision() && !programs_[stage].decision().has_parent();
      const bool computes_loss = programs_[stage].computes_loss();
      for (int64_t step = first; (decides || computes_loss) && step <= spec_.training().steps(); ++step) {
        const wire::v1::StepReport report = broker_.Await(stage, WorkerMessage::kStep)->step();
        const bool scheduled = spec_.training().has_learning_rate_schedule();
        const double share = scheduled ? 1 - 0.6 * static_cast<double>(step - 1) / 30 : 1;
        EXPECT_NEAR(report.learning_rate(), 1e-2 * share, 1e-15);
        EXPECT_EQ(report.has_job_squared_gradient_norm(), decides);
        if (decides) {
          curve.squared_norms.push_back(report.job_squared_gradient_norm());
        }
        if (!computes_loss) {
          continue;
        }
        curve.losses.push_back(report.loss());
        if (step % 2 == 0) {
          curve.validations.push_back(broker_.Await(stage, WorkerMessage::kValidation)->validation().loss());
        }
      }
    }
    MakeCheckpoint(spec_.training().steps());
    workers_.clear();
    for (int stage = 0; stage < this->stages(); ++stage) {
      EXPECT_TRUE(broker_.AwaitEnd(stage));
    }
    return curve;
  }
};

TEST_F(TorchStageTest, AnyCutGivesTheBitsOfTheUncutRun) {
  ASSERT_NO_FATAL_FAILURE(Cut({}, {0}));
  const Curve uncut = Train();
  ASSERT_EQ(uncut.losses.size(), 30);
  ASSERT_EQ(uncut.validations.size(), 15);
  ASSERT_EQ(uncut.squared_norms.size(), 30);
  EXPECT_GT(*std::max_element(uncut.squared_norms.begin(), uncut.squared_norms.end()), 1)
      << "a gradient was clipped";
  EXPECT_LT(uncut.losses[29], 0.7 * uncut.losses[0]) << "it learns";
  // The tied embedding is lent: its two readers are apart.
  ASSERT_NO_FATAL_FAILURE(Cut({"transformer.h.1", "transformer.ln_f"}, {0, 1, 2}));
  EXPECT_EQ(Train(), uncut);
  // The first stage also has the end.
  ASSERT_NO_FATAL_FAILURE(Cut({"transformer.h.0.mlp", "transformer.h.1.mlp"}, {0, 1, 0}));
  EXPECT_EQ(Train(), uncut);
}

TEST_F(TorchStageTest, ResumingGivesTheBitsOfTheRunThatWentThrough) {
  spec_.mutable_training()->set_steps(12);
  spec_.mutable_training()->clear_learning_rate_schedule();
  spec_.mutable_checkpoint()->set_every_steps(100);
  ASSERT_NO_FATAL_FAILURE(Cut({"transformer.h.1"}, {0, 1}));
  for (auto& program : programs_) {
    for (auto* edges : {program.mutable_outgoing(), program.mutable_incoming()}) {
      for (graph::v1::Edge& edge : *edges) {
        if (!edge.differentiable()) continue;
        edge.set_forward_codec("topk-0.25-fp16+feedback");
        edge.set_backward_codec("topk-0.25-fp16+feedback");
      }
    }
  }
  const Curve whole = Train();
  const std::string sums = Sums(12);

  fs::remove_all(scratch_ / "checkpoints");
  spec_.mutable_training()->set_steps(6);
  Train();
  EXPECT_TRUE(fs::exists(scratch_ / "checkpoints/step-6/error-feedback.safetensors"));
  resume_ = true;
  spec_.mutable_training()->set_steps(12);
  const Curve resumed = Train();
  EXPECT_EQ(ready_.checkpoint(), scratch_ / "checkpoints/step-6");
  ASSERT_EQ(resumed.losses.size(), 6);
  EXPECT_EQ(resumed, whole.From(6));
  EXPECT_EQ(Sums(12), sums) << "parameters, moments, error feedback and training state";
}

TEST_F(StageWorkerTest, GoesOnFromTheNewestIntactCheckpointAndSaysWhatItSkipped) {
  spec_.mutable_checkpoint()->set_every_steps(1);
  StartWorkers();
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  EXPECT_EQ(ready_.checkpoint(), "");
  std::map<int64_t, BrokerMessage> assemble;
  for (int stage = 0; stage < stages(); ++stage) {
    for (int64_t step = 1; step <= 3; ++step) {
      const auto part = broker_.Await(stage, WorkerMessage::kCheckpointPart);
      ASSERT_TRUE(part.has_value());
      assemble[step].mutable_assemble()->set_step(step);
      assemble[step].mutable_assemble()->add_parts(part->checkpoint_part().path());
    }
  }
  for (auto& [step, message] : assemble) {
    broker_.Send(0, message);
    ASSERT_TRUE(broker_.Await(0, WorkerMessage::kCheckpointDone).has_value());
  }
  workers_.clear();
  for (int stage = 0; stage < stages(); ++stage) ASSERT_TRUE(broker_.AwaitEnd(stage));

  const std::string newest = scratch_ / "checkpoints/step-3";
  fs::resize_file(newest + "/model.safetensors", 20);
  resume_ = true;
  StartWorkers();
  ASSERT_NO_FATAL_FAILURE(BeginRun());
  EXPECT_EQ(ready_.checkpoint(), scratch_ / "checkpoints/step-2");
  EXPECT_EQ(ready_.checkpoint_step(), 2);
  ASSERT_EQ(ready_.notes_size(), 2);
  EXPECT_THAT(ready_.notes(0),
              AllOf(HasSubstr(newest + " is damaged and was renamed to " + newest + ".damaged"),
                    HasSubstr("model.safetensors has 20 bytes")));
  EXPECT_THAT(ready_.notes(1), HasSubstr("goes on after step 2 from " + scratch_ / "checkpoints/step-2"));
  for (int stage = 0; stage < stages(); ++stage) {
    const auto report = broker_.Await(stage, WorkerMessage::kStep);
    ASSERT_TRUE(report.has_value()) << workers_[stage]->Err();
    EXPECT_EQ(report->step().step(), 3);
    EXPECT_TRUE(broker_.Await(stage, WorkerMessage::kFinished).has_value());
  }
}

TEST_F(StageWorkerTest, ACheckpointThatIsGivenMustBeIntactAndOfTheSameTraining) {
  programs_.resize(1);
  fs::create_directories(scratch_ / "given/step-7");
  spec_.mutable_training()->mutable_resume_from()->set_uri("given");
  const auto failure = [&] {
    workers_.clear();
    StartWorkers();
    EXPECT_TRUE(broker_.Await(0, WorkerMessage::kRegister).has_value());
    BrokerMessage message;
    *message.mutable_assignment() = AssignmentOf(0);
    broker_.Send(0, message);
    const auto failed = broker_.Await(0, WorkerMessage::kFailure);
    EXPECT_TRUE(broker_.AwaitEnd(0));
    return failed.has_value() ? failed->failure().message() : std::string("none");
  };
  EXPECT_THAT(failure(), AllOf(HasSubstr("training.resumeFrom: " + scratch_ / "given is no checkpoint"),
                               HasSubstr("given/step-7/manifest.json")));
  testing::WriteFile(scratch_ / "given/step-7/manifest.json", "{}");
  spec_.mutable_training()->mutable_resume_from()->set_uri("given/step-7");
  EXPECT_THAT(failure(),
              HasSubstr("training.resumeFrom: " + scratch_ / "given/step-7/manifest.json: 'version'"));
  // The job's own come first, and none of them may be lost without a word.
  fs::create_directories(scratch_ / "checkpoints/step-2");
  resume_ = true;
  EXPECT_THAT(failure(), AllOf(HasSubstr("no checkpoint in " + scratch_ / "checkpoints is intact"),
                               HasSubstr("step-2/manifest.json"), HasSubstr("--overwrite")));
}

TEST(FusionWorker, SaysWhatItNeeds) {
  const testing::ScratchFolder scratch;
  const std::string program = FUSION_BINARY_DIR "/bin/fusion-worker";
  const testing::ProcessResult version = testing::Run({program, "version"}, scratch.path());
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, HasSubstr("fusion-worker "));
  const testing::ProcessResult help = testing::Run({program, "--help"}, scratch.path());
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("Examples:"));
  const testing::ProcessResult usage = testing::Run({program, "stage", "--stage", "-1"}, scratch.path());
  EXPECT_EQ(usage.exit_code, 2);
  const testing::ProcessResult nobody =
      testing::Run({program, "stage", "--broker", "127.0.0.1:1", "--job", "j", "--stage", "0", "--compnode",
                    "a1", "--incarnation", "1", "--engine", "none"},
                   scratch.path());
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.err, HasSubstr("the broker at 127.0.0.1:1 is lost"));
}

}  // namespace
}  // namespace fusion::worker
