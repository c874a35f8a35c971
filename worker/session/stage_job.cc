#include "worker/session/stage_job.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/initial_values.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/mapped_file.h"

namespace fusion::worker {
namespace {

using v1alpha1::FusionJobSpec;
using wire::v1::Assignment;
using wire::v1::StepReport;
using wire::v1::WorkerMessage;

// Whether something that is due every so many steps, and after the last one, is due now.
bool Due(int64_t step, int64_t last_step, int64_t every_steps) {
  return step == last_step || (every_steps > 0 && step % every_steps == 0);
}

int64_t ShardBytes() {
  const char* text = std::getenv(kShardBytesVariable);
  int64_t bytes = 0;
  return text != nullptr && absl::SimpleAtoi(text, &bytes) && bytes > 0 ? bytes : kShardBytes;
}

CheckpointInfo InfoOf(const Assignment& assignment, int64_t step) {
  const v1alpha1::Training& training = assignment.spec().training();
  return {.state = {.job = assignment.job(),
                    .step = step,
                    .incarnation = assignment.incarnation(),
                    .seed = training.seed(),
                    .samples = step * training.batch().global(),
                    .global_batch = training.batch().global(),
                    .optimizer = v1alpha1::Optimizer::Type_Name(training.optimizer().type())},
          .config_files = {assignment.model_config_json().begin(), assignment.model_config_json().end()},
          .shard_bytes = ShardBytes()};
}

// The whole model's variables; the stage's own where the operator does not say them.
std::vector<WantedTensor> ModelOf(const Assignment& assignment, const Engine& engine) {
  std::vector<WantedTensor> model;
  for (const wire::v1::ModelVariable& variable : assignment.variables()) {
    model.push_back({.name = variable.tensor_name(),
                     .dtype = variable.spec().dtype(),
                     .shape = {variable.spec().shape().begin(), variable.spec().shape().end()},
                     .trainable = variable.trainable()});
  }
  return model.empty() ? WantedBy(engine) : model;
}

}  // namespace

StageJob::StageJob(Assignment assignment, EngineFactory make_engine, Transport& transport, Reporter report)
    : assignment_(std::move(assignment)),
      make_engine_(std::move(make_engine)),
      transport_(transport),
      report_(std::move(report)) {}

StageJob::~StageJob() = default;

void StageJob::OnPeers(const wire::v1::Peers& peers) {
  absl::MutexLock lock(&mutex_);
  peers_ = peers;
}

void StageJob::OnStart(const wire::v1::Start& start) {
  absl::MutexLock lock(&mutex_);
  start_ = start;
}

void StageJob::OnAssemble(const wire::v1::AssembleCheckpoint& request) {
  disk_.Post([this, request] {
    const std::vector<std::string> parts(request.parts().begin(), request.parts().end());
    const auto path =
        AssembleCheckpoint(assignment_.checkpoint_directory(), InfoOf(assignment_, request.step()), parts);
    WorkerMessage message;
    auto* done = message.mutable_checkpoint_done();
    done->set_step(request.step());
    if (path.ok()) {
      done->set_path(*path);
    } else {
      done->set_error(std::string(path.status().message()));
    }
    report_(std::move(message));
  });
}

void StageJob::Cancel(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  cancelled_.Update(why);
  if (runner_ != nullptr) {
    runner_->Cancel(why);
  }
}

template <typename Message>
absl::StatusOr<Message> StageJob::Await(const std::optional<Message>& message) {
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return message.has_value() || !cancelled_.ok();
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&ready));
  if (!cancelled_.ok()) {
    return cancelled_;
  }
  return *message;
}

absl::Status StageJob::Run() {
  if (const absl::Status status = Load(); !status.ok()) {
    return status;
  }
  const auto peers = Await(peers_);
  if (!peers.ok()) {
    return peers.status();
  }
  if (const absl::Status status = Connect(*peers); !status.ok()) {
    return status;
  }
  WorkerMessage ready;
  ready.mutable_ready()->set_memory_bytes(engine_->PeakMemoryBytes());
  if (chosen_.has_value()) {
    ready.mutable_ready()->set_checkpoint(chosen_->path);
    ready.mutable_ready()->set_checkpoint_step(chosen_->state.step);
  }
  ready.mutable_ready()->mutable_notes()->Assign(notes_.begin(), notes_.end());
  report_(std::move(ready));

  const auto start = Await(start_);
  if (!start.ok()) {
    return start.status();
  }
  const absl::Status initial = start->checkpoint().empty() ? absl::OkStatus() : Restore(start->checkpoint());
  if (!initial.ok()) {
    return initial;
  }
  const bool evaluate = assignment_.spec().task() == FusionJobSpec::Evaluate;
  const absl::Status status = evaluate ? Evaluate() : Train(std::max<int64_t>(1, start->first_step()));
  if (!status.ok()) {
    return status;
  }
  disk_.Drain();
  WorkerMessage finished;
  finished.mutable_finished()->set_step(evaluate ? 0 : assignment_.spec().training().steps());
  report_(std::move(finished));
  return absl::OkStatus();
}

absl::Status StageJob::Load() {
  const FusionJobSpec& spec = assignment_.spec();
  if (assignment_.program().stage() == 0 && !assignment_.checkpoint_directory().empty()) {
    // No stage writes before all are ready.
    if (const absl::Status status = RemovePartialCheckpoints(assignment_.checkpoint_directory());
        !status.ok()) {
      return status;
    }
  }
  if (!assignment_.links().empty()) {
    const absl::Status status = transport_.EmulateLinks(
        {assignment_.links().begin(), assignment_.links().end()}, assignment_.link_state_file());
    if (!status.ok()) {
      return status;
    }
  }
  if (const absl::Status status = OpenData(); !status.ok()) {
    return status;
  }
  auto engine = make_engine_();
  if (!engine.ok()) {
    return engine.status();
  }
  engine_ = *std::move(engine);
  const absl::Status loaded =
      engine_->Load(assignment_.program(), {.seed = spec.training().seed(),
                                            .threads = std::max(1, assignment_.threads()),
                                            .memory_limit_bytes = assignment_.memory_limit_bytes(),
                                            .training = spec.training(),
                                            .task_train = spec.task() != FusionJobSpec::Evaluate});
  if (!loaded.ok()) {
    return loaded;
  }
  if (const absl::Status status = ChooseCheckpoint(); !status.ok()) {
    return status;
  }
  if (const absl::Status status = Initialize(); !status.ok()) {
    return status;
  }
  return MakeRunner();
}

absl::Status StageJob::Initialize() {
  const v1alpha1::Model& model = assignment_.spec().model();
  if (!model.has_init_from()) {
    return absl::OkStatus();
  }
  const auto path = ResolvePath("model.initFrom.uri", model.init_from().uri(), assignment_.base_directory());
  if (!path.ok()) {
    return path.status();
  }
  const auto match = InitializeFrom(*path, ModelOf(assignment_, *engine_), *engine_);
  if (!match.ok()) {
    return match.status();
  }
  if (!match->unused.empty()) {
    notes_.push_back(absl::StrCat("model.initFrom: no variable takes ", match->unused.size(), " tensors of ",
                                  *path, ": ", ListText(match->unused)));
  }
  if (!match->unset.empty()) {
    notes_.push_back(absl::StrCat("model.initFrom: ", *path, " does not have ", ListText(match->unset),
                                  ", which begin as in a new model"));
  }
  return absl::OkStatus();
}

absl::Status StageJob::ChooseCheckpoint() {
  if (assignment_.program().stage() != 0 || assignment_.spec().task() == FusionJobSpec::Evaluate) {
    return absl::OkStatus();
  }
  if (assignment_.resume()) {
    if (const absl::Status status = ChooseOwnCheckpoint(); !status.ok()) {
      return status;
    }
  }
  if (!chosen_.has_value() && assignment_.spec().training().has_resume_from()) {
    if (const absl::Status status = ChooseGivenCheckpoint(); !status.ok()) {
      return status;
    }
  }
  if (!chosen_.has_value()) {
    return absl::OkStatus();
  }
  notes_.push_back(absl::StrCat("goes on after step ", chosen_->state.step, " from ", chosen_->path));
  return CheckContinues(*chosen_, assignment_.spec());
}

absl::Status StageJob::ChooseOwnCheckpoint() {
  auto search = FindNewestCheckpoint(assignment_.checkpoint_directory());
  if (!search.ok()) {
    return search.status();
  }
  if (!search->newest.has_value() && !search->damaged.empty()) {
    std::string text = absl::StrCat("no checkpoint in ", assignment_.checkpoint_directory(), " is intact");
    for (const DamagedCheckpoint& damaged : search->damaged) {
      absl::StrAppend(&text, "; ", damaged.reason);
    }
    return absl::DataLossError(absl::StrCat(text, "; to begin again, run the job with --overwrite"));
  }
  for (const DamagedCheckpoint& damaged : search->damaged) {
    const auto aside = SetAside(damaged);
    if (!aside.ok()) {
      return aside.status();
    }
    notes_.push_back(
        absl::StrCat(damaged.path, " is damaged and was renamed to ", *aside, ": ", damaged.reason));
  }
  chosen_ = std::move(search->newest);
  return absl::OkStatus();
}

absl::Status StageJob::ChooseGivenCheckpoint() {
  constexpr char kField[] = "training.resumeFrom";
  const auto path =
      ResolvePath(absl::StrCat(kField, ".uri"), assignment_.spec().training().resume_from().uri(),
                  assignment_.base_directory());
  if (!path.ok()) {
    return path.status();
  }
  const auto in_words = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(kField, ": ", status.message()));
  };
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::path(*path) / kManifestFile, error)) {
    auto state = VerifyCheckpoint(*path);
    if (!state.ok()) {
      return in_words(state.status());
    }
    chosen_ = {*path, *std::move(state)};
    return absl::OkStatus();
  }
  auto search = FindNewestCheckpoint(*path);
  if (!search.ok()) {
    return in_words(search.status());
  }
  for (const DamagedCheckpoint& damaged : search->damaged) {
    notes_.push_back(absl::StrCat(kField, ": ", damaged.path, " is damaged: ", damaged.reason));
  }
  if (!search->newest.has_value()) {
    return absl::NotFoundError(
        absl::StrCat(kField, ": ", *path, " is no checkpoint and has no intact step-N folder in it",
                     search->damaged.empty() ? "" : absl::StrCat("; ", search->damaged.front().reason)));
  }
  chosen_ = std::move(search->newest);
  return absl::OkStatus();
}

absl::Status StageJob::Restore(const std::string& checkpoint) {
  const absl::Status restored = RestoreCheckpoint(checkpoint, ModelOf(assignment_, *engine_), *engine_);
  if (!restored.ok()) {
    return restored;
  }
  const auto feedback = ReadFeedbackFile(checkpoint);
  return feedback.ok() ? runner_->RestoreErrorFeedback(*feedback) : feedback.status();
}

absl::Status StageJob::OpenData() {
  for (const graph::v1::SubDag& sub_dag : assignment_.program().sub_dags()) {
    for (const graph::v1::Operator& op : sub_dag.operators()) {
      if (op.kind() == graph::v1::Operator::PLACEHOLDER) {
        placeholders_[op.name()] = op.outputs(0);
      }
    }
  }
  if (placeholders_.empty()) {
    return absl::OkStatus();
  }
  auto data = OpenDataset(assignment_.spec(), assignment_.base_directory());
  if (!data.ok()) {
    return data.status();
  }
  data_ = *std::move(data);
  return absl::OkStatus();
}

absl::Status StageJob::MakeRunner() {
  const FusionJobSpec& spec = assignment_.spec();
  if (assignment_.emulated_flops() > 0 && assignment_.machine_flops() <= 0) {
    return absl::InvalidArgumentError("the assignment emulates a speed but does not say the machine's");
  }
  auto runner = StageRunner::Create(
      {.program = assignment_.program(),
       .order = spec.training().pipeline().schedule() == v1alpha1::Pipeline::GPipe
                    ? PipelineOrder::kGPipe
                    : PipelineOrder::kOneForwardOneBackward,
       .global_batch = spec.training().batch().global(),
       .micro_batch = spec.training().batch().micro(),
       .training = spec.training(),
       .targets =
           [targets = TargetsOf(spec)](bool training, int64_t batch, int64_t first, int64_t count) {
             return targets({.training = training, .batch = batch, .first = first, .count = count});
           },
       .slowdown =
           assignment_.emulated_flops() > 0 ? assignment_.machine_flops() / assignment_.emulated_flops() : 0,
       .trace_file = assignment_.trace_file(),
       .trace_step = assignment_.trace_step()},
      *engine_, transport_,
      [this](const std::string& placeholder, bool training, int64_t batch, int64_t first, int64_t count) {
        return Feed(placeholder, training, batch, first, count);
      });
  if (!runner.ok()) {
    return runner.status();
  }
  absl::MutexLock lock(&mutex_);
  runner_ = *std::move(runner);
  return cancelled_;
}

absl::StatusOr<Tensor> StageJob::Feed(const std::string& placeholder, bool training, int64_t batch,
                                      int64_t first, int64_t count) const {
  const bool input = placeholder == "input";
  if (!input && placeholder != "label") {
    return absl::InvalidArgumentError(
        absl::StrCat("no data for the placeholder '", placeholder, "'; there are input and label"));
  }
  Tensor tensor = data_->Read(input ? Placeholder::kInput : Placeholder::kLabel,
                              {.training = training, .batch = batch, .first = first, .count = count});
  const graph::v1::TensorSpec& spec = placeholders_.at(placeholder);
  const std::vector<int64_t> shape = ShapeFor(spec, count);
  if (tensor.dtype != spec.dtype() || tensor.shape != shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.kind ", v1alpha1::Data::Kind_Name(assignment_.spec().data().kind()), " gives ",
                     graph::v1::DataType_Name(tensor.dtype), ShapeText(tensor.shape), " for '", placeholder,
                     "', the model reads ", graph::v1::DataType_Name(spec.dtype()), ShapeText(shape)));
  }
  return tensor;
}

absl::Status StageJob::Connect(const wire::v1::Peers& peers) {
  std::vector<std::pair<int, std::string>> addresses;
  for (const int stage : runner_->Receivers()) {
    const auto address = peers.addresses().find(stage);
    if (address == peers.addresses().end()) {
      return absl::InvalidArgumentError(absl::StrCat("the broker did not say where stage ", stage, " is"));
    }
    addresses.emplace_back(stage, address->second);
  }
  return transport_.Connect(addresses);
}

absl::Status StageJob::Train(int64_t first_step) {
  const v1alpha1::Training& training = assignment_.spec().training();
  const int64_t last_step = training.steps();
  for (int64_t step = first_step; step <= last_step; ++step) {
    auto report = runner_->RunStep(step);
    if (!report.ok()) {
      return report.status();
    }
    WorkerMessage message;
    *message.mutable_step() = *std::move(report);
    report_(std::move(message));

    absl::Status status;
    if (training.has_validation() && Due(step, last_step, training.validation().every_steps())) {
      status = Validate(step);
    }
    if (status.ok() && Due(step, last_step, assignment_.spec().checkpoint().every_steps())) {
      status = SaveCheckpoint(step);
    }
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status StageJob::Evaluate() { return Validate(0); }

absl::Status StageJob::Validate(int64_t step) {
  const auto loss = runner_->RunValidation(step, ValidationBatches(assignment_.spec()));
  if (!loss.ok()) {
    return loss.status();
  }
  if (loss->has_value()) {
    WorkerMessage message;
    message.mutable_validation()->set_step(step);
    message.mutable_validation()->set_loss(**loss);
    if (const std::optional<double> accuracy = runner_->Accuracy(); accuracy.has_value()) {
      message.mutable_validation()->set_accuracy(*accuracy);
    }
    report_(std::move(message));
  }
  return absl::OkStatus();
}

absl::Status StageJob::SaveCheckpoint(int64_t step) {
  disk_.Drain();  // one copy of the parameters at a time
  auto snapshot = TakeSnapshot(*engine_, step);
  if (!snapshot.ok()) {
    return snapshot.status();
  }
  snapshot->feedback = runner_->ReadErrorFeedback();
  disk_.Post([this, step, snapshot = *std::move(snapshot)] {
    const auto path = WritePart(assignment_.checkpoint_directory(), assignment_.program().stage(), snapshot);
    WorkerMessage message;
    auto* part = message.mutable_checkpoint_part();
    part->set_step(step);
    if (path.ok()) {
      part->set_path(*path);
    } else {
      part->set_error(std::string(path.status().message()));
    }
    report_(std::move(message));
  });
  return absl::OkStatus();
}

}  // namespace fusion::worker
