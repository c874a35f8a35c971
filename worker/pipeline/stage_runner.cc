#include "worker/pipeline/stage_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/pipeline/learning_rate.h"

namespace fusion::worker {
namespace {

using graph::v1::Edge;
using graph::v1::SharedVariable;
using wire::v1::StepReport;

std::string FeedbackName(const Edge& edge, wire::v1::Direction direction) {
  return absl::StrCat(edge.value().operator_(), ":", edge.value().index(), "/", edge.from_stage(), "-",
                      edge.to_stage(), "/", wire::v1::Direction_Name(direction));
}

}  // namespace

StageRunner::StageRunner(StageRunnerOptions options, StageSchedule schedule, Engine& engine,
                         Transport& transport, FeedFunction feed)
    : options_(std::move(options)),
      schedule_(std::move(schedule)),
      engine_(engine),
      transport_(transport),
      feed_(std::move(feed)),
      board_(schedule_, table_),
      trace_(options_.trace_file, options_.trace_step, options_.program.stage()),
      timer_(options_.slowdown) {}

StageRunner::~StageRunner() = default;

absl::StatusOr<std::unique_ptr<StageRunner>> StageRunner::Create(StageRunnerOptions options, Engine& engine,
                                                                 Transport& transport, FeedFunction feed) {
  if (options.micro_batch < 1 || options.global_batch < 1 ||
      options.global_batch % options.micro_batch != 0) {
    return absl::InvalidArgumentError(absl::StrCat("training.batch.micro ", options.micro_batch,
                                                   " does not divide training.batch.global ",
                                                   options.global_batch));
  }
  auto schedule = MakeSchedule(options.program, options.order,
                               static_cast<int>(options.global_batch / options.micro_batch));
  if (!schedule.ok()) {
    return schedule.status();
  }
  std::unique_ptr<StageRunner> runner(
      new StageRunner(std::move(options), *std::move(schedule), engine, transport, std::move(feed)));
  auto table = MessageTable::Make(runner->options_.program, runner->options_.micro_batch);
  if (!table.ok()) {
    return table.status();
  }
  runner->table_ = *std::move(table);
  runner->coder_ = std::make_unique<EdgeCoder>(runner->table_.codecs());
  runner->SetWindows();
  StageRunner* self = runner.get();
  transport.SetHandlers(
      {.receive = [self](int from, EncodedTensor message) { self->OnReceive(from, std::move(message)); },
       .granted =
           [self](int, int32_t edge, wire::v1::Direction direction) {
             if (direction == wire::v1::FORWARD) {
               self->board_.CountGranted(edge);
             }
           },
       .error =
           [self](int peer, const absl::Status& status) {
             self->Cancel(absl::Status(
                 status.code(), absl::StrCat("stage ", self->options_.program.stage(), ", link with stage ",
                                             peer, ": ", status.message())));
           }});
  return runner;
}

void StageRunner::SetWindows() {
  for (const Edge& edge : options_.program.outgoing()) {
    transport_.SetWindow(edge.to_stage(), edge.id(), wire::v1::FORWARD,
                         schedule_.sub_dags[edge.from_sub_dag()].depth);
  }
  // Gradients are bounded by the depth of the producer, which has room for what it waits for.
  for (const Edge& edge : options_.program.incoming()) {
    if (edge.differentiable()) {
      transport_.SetWindow(edge.from_stage(), edge.id(), wire::v1::BACKWARD,
                           schedule_.micro_batches * table_.codecs().at(edge.id()).At(1).gradients);
    }
  }
  for (const SharedVariable& shared : options_.program.borrowed()) {
    transport_.SetWindow(shared.owner_stage(), shared.id(), wire::v1::VARIABLE_GRADIENT,
                         shared.consumers_size());
  }
  for (const SharedVariable& shared : options_.program.lent()) {
    transport_.SetWindow(shared.user_stage(), shared.id(), wire::v1::VARIABLE_VALUE, 1);
  }
}

// ------------------------------------------------------------------ transport and decoding threads

void StageRunner::OnReceive(int from_stage, EncodedTensor message) {
  absl::Status status = table_.Check(from_stage, message);
  if (status.ok()) {
    status = board_.Admit(message.key);
    if (!status.ok()) {
      status =
          absl::Status(status.code(), absl::StrCat("stage ", options_.program.stage(),
                                                   " cannot take what stage ", from_stage, " sent, ",
                                                   table_.Describe(message.key), ": ", status.message()));
    }
  }
  if (!status.ok()) {
    Cancel(status);
    return;
  }
  if (message.absent) {
    if (!IsOncePerStep(message.key.direction)) {
      coder_->SkipGradient(message.key);
    }
    board_.Deliver(message.key, std::nullopt);
    return;
  }
  if (IsOncePerStep(message.key.direction) || IsDense(coder_->codecs(message.key), message.key.direction)) {
    board_.Deliver(message.key,
                   Tensor{.dtype = message.dtype, .shape = message.shape, .data = std::move(message.data)});
    return;
  }
  decoder_.Post([this, from_stage, message = std::move(message)] {
    const int64_t begin = NowNanoseconds();
    auto tensor = coder_->Decode(message, message.key.micro_batch < schedule_.micro_batches);
    if (!tensor.ok()) {
      Cancel(absl::Status(
          tensor.status().code(),
          absl::StrCat("stage ", options_.program.stage(), " cannot decode what stage ", from_stage,
                       " sent, ", table_.Describe(message.key), ": ", tensor.status().message())));
      return;
    }
    trace_.Add(message.key.step, Trace::Row::kDecode, table_.Describe(message.key), begin, NowNanoseconds());
    board_.Deliver(message.key, *std::move(tensor));
  });
}

void StageRunner::Cancel(const absl::Status& why) { board_.Fail(why); }

size_t StageRunner::TensorsHeld() const { return board_.tensors_held() + coder_->masks_held(); }

// ------------------------------------------------------------------ compute thread

absl::StatusOr<StepReport> StageRunner::RunStep(int64_t step) {
  StepReport report;
  report.set_step(step);
  report.set_stage(options_.program.stage());
  Begin(StartStep(schedule_), step, 0, schedule_.micro_batches);
  if (const absl::Status status = RunTasks(report); !status.ok()) {
    return status;
  }
  if (options_.program.computes_loss()) {
    report.set_loss(MeanLoss());
  }
  report.set_learning_rate(LearningRate(options_.training, step));
  report.set_peak_memory_bytes(engine_.PeakMemoryBytes());
  ReportLinks(report);
  if (trace_.Wants(step)) {
    encoder_.Drain();
    decoder_.Drain();
    if (const absl::Status status = trace_.Write(); !status.ok()) {
      return status;
    }
  }
  return report;
}

absl::StatusOr<std::optional<double>> StageRunner::RunValidation(int64_t step, int64_t batches) {
  StepReport unreported;
  const int micro_batches = static_cast<int>(batches) * schedule_.micro_batches;
  Begin(StartValidation(schedule_, micro_batches), step, schedule_.micro_batches, micro_batches);
  if (const absl::Status status = RunTasks(unreported); !status.ok()) {
    return status;
  }
  return options_.program.computes_loss() ? std::optional<double>(MeanLoss()) : std::nullopt;
}

std::vector<NamedTensor> StageRunner::ReadErrorFeedback() {
  encoder_.Drain();
  std::vector<NamedTensor> result;
  for (const auto& [key, residual] : coder_->ReadResiduals()) {
    const auto& [edge, direction] = key;
    const bool forward = direction == wire::v1::FORWARD;
    Tensor tensor = AllocateTensor(graph::v1::FLOAT32, {static_cast<int64_t>(residual.size())});
    std::copy(residual.begin(), residual.end(), tensor.mutable_floats().begin());
    result.push_back({FeedbackName(forward ? table_.outgoing(edge) : table_.incoming(edge), direction),
                      std::move(tensor)});
  }
  return result;
}

absl::Status StageRunner::RestoreErrorFeedback(const std::vector<NamedTensor>& feedback) {
  std::map<std::string, const Tensor*> given;
  for (const NamedTensor& named : feedback) {
    if (named.tensor.dtype != graph::v1::FLOAT32) {
      return absl::InvalidArgumentError(absl::StrCat("error feedback '", named.name, "' is ",
                                                     graph::v1::DataType_Name(named.tensor.dtype),
                                                     ", not FLOAT32"));
    }
    given[named.name] = &named.tensor;
  }
  EdgeCoder::Residuals residuals;
  const auto take = [&](const auto& edges, wire::v1::Direction direction) {
    for (const Edge& edge : edges) {
      const auto found = given.find(FeedbackName(edge, direction));
      if (found == given.end()) continue;
      const auto floats = found->second->floats();
      residuals[{edge.id(), direction}] = {floats.begin(), floats.end()};
    }
  };
  take(options_.program.outgoing(), wire::v1::FORWARD);
  take(options_.program.incoming(), wire::v1::BACKWARD);
  coder_->RestoreResiduals(std::move(residuals));
  return absl::OkStatus();
}

void StageRunner::Begin(StepState state, int64_t step, int first_micro_batch, int micro_batches) {
  step_ = step;
  first_micro_batch_ = first_micro_batch;
  received_.clear();
  losses_.clear();
  targets_.clear();
  all_targets_ = 0;
  for (int i = 0; i < micro_batches; ++i) {
    const Slice slice = SliceOf(i);
    // Only the loss is weighted.
    const bool counts = options_.targets != nullptr && options_.program.computes_loss();
    targets_.push_back(static_cast<double>(
        counts ? options_.targets(slice.training, slice.batch, slice.first, options_.micro_batch)
               : options_.micro_batch));
    all_targets_ += targets_.back();
  }
  correct_.clear();
  board_.Begin(std::move(state), step, first_micro_batch);
}

absl::Status StageRunner::RunTasks(StepReport& report) {
  while (true) {
    double waited = 0;
    const auto task = board_.AwaitTask(waited);
    if (!task.ok()) {
      return task.status();
    }
    report.set_wait_seconds(report.wait_seconds() + waited);
    if (task->kind == TaskKind::kFinished) {
      return absl::OkStatus();
    }
    if (const absl::Status status = Execute(*task, waited > 0, report); !status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrFormat("%s (stage %d, step %d%s, %s)", status.message(), options_.program.stage(), step_,
                          task->micro_batch < 0
                              ? ""
                              : absl::StrCat(", micro-batch ", first_micro_batch_ + task->micro_batch),
                          TaskName(task->kind)));
    }
  }
}

absl::Status StageRunner::Execute(const Task& task, bool waited, StepReport& report) {
  switch (task.kind) {
    case TaskKind::kForward:
      return Forward(task, waited, report);
    case TaskKind::kBackward:
      return Backward(task, waited, report);
    case TaskKind::kReturnGradients:
      return ReturnGradients();
    case TaskKind::kDecide:
      return Decide(waited, report);
    case TaskKind::kUpdate:
      return Update(waited, report);
    case TaskKind::kTakeVariables:
      return TakeVariables();
    case TaskKind::kWait:
    case TaskKind::kFinished:
      break;
  }
  return absl::OkStatus();
}

std::optional<double> StageRunner::Accuracy() const {
  if (correct_.empty()) {
    return std::nullopt;
  }
  int64_t correct = 0;
  for (const auto& [micro_batch, count] : correct_) {
    correct += count;
  }
  return static_cast<double>(correct) /
         static_cast<double>(static_cast<int64_t>(correct_.size()) * options_.micro_batch);
}

double StageRunner::MeanLoss() const {
  double sum = 0;
  for (const auto& [micro_batch, loss] : losses_) {
    sum += targets_[static_cast<size_t>(micro_batch)] * loss;
  }
  return sum / all_targets_;
}

void StageRunner::ReportLinks(StepReport& report) {
  for (const int peer : table_.Receivers()) {
    const LinkCounters now = transport_.Counters(peer);
    LinkCounters& before = reported_[peer];
    auto* link = report.add_links();
    link->set_to_stage(peer);
    link->set_bytes(now.bytes - before.bytes);
    link->set_dense_bytes(now.dense_bytes - before.dense_bytes);
    link->set_seconds(now.busy_seconds - before.busy_seconds);
    trace_.AddLink(step_, peer, link->bytes(), link->seconds(), NowNanoseconds());
    before = now;
  }
}

}  // namespace fusion::worker
