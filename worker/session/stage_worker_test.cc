// The worker's program as a process, against a broker that the test drives: two stages with the engine that
// computes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
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
      ASSERT_TRUE(broker_.Await(stage, WorkerMessage::kReady).has_value()) << workers_[stage]->Err();
    }
    BrokerMessage start;
    start.mutable_start()->set_first_step(1);
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
    EXPECT_THAT(result.err, AnyOf(HasSubstr("is lost"), HasSubstr("broke without Close")));
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

  /// Losses of all steps, then of the validations.
  std::vector<double> Losses() {
    StartWorkers();
    BeginRun();
    std::vector<double> losses;
    std::vector<double> validations;
    for (int stage = 0; stage < this->stages(); ++stage) {
      EXPECT_TRUE(broker_.Await(stage, WorkerMessage::kFinished).has_value()) << workers_[stage]->Err();
      for (int64_t step = 1; programs_[stage].computes_loss() && step <= spec_.training().steps(); ++step) {
        const wire::v1::StepReport report = broker_.Await(stage, WorkerMessage::kStep)->step();
        EXPECT_NEAR(report.learning_rate(), 1e-2 * (1 - 0.6 * static_cast<double>(step - 1) / 30), 1e-15);
        losses.push_back(report.loss());
        if (step % 2 == 0) {
          validations.push_back(broker_.Await(stage, WorkerMessage::kValidation)->validation().loss());
        }
      }
    }
    workers_.clear();
    for (int stage = 0; stage < this->stages(); ++stage) {
      EXPECT_TRUE(broker_.AwaitEnd(stage));
    }
    losses.insert(losses.end(), validations.begin(), validations.end());
    return losses;
  }
};

TEST_F(TorchStageTest, AnyCutGivesTheBitsOfTheUncutRun) {
  ASSERT_NO_FATAL_FAILURE(Cut({}, {0}));
  const std::vector<double> uncut = Losses();
  ASSERT_EQ(uncut.size(), 45);
  EXPECT_LT(uncut[29], 0.7 * uncut[0]) << "it learns";
  // The tied embedding is lent: its two readers are apart.
  ASSERT_NO_FATAL_FAILURE(Cut({"transformer.h.1", "transformer.ln_f"}, {0, 1, 2}));
  EXPECT_EQ(Losses(), uncut);
  // The first stage also has the end.
  ASSERT_NO_FATAL_FAILURE(Cut({"transformer.h.0.mlp", "transformer.h.1.mlp"}, {0, 1, 0}));
  EXPECT_EQ(Losses(), uncut);
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
