#include "worker/pipeline/stage_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fusion::worker {
namespace {

using graph::v1::Edge;
using graph::v1::Operator;
using graph::v1::SharedVariable;
using wire::v1::StepReport;

const char* TaskName(TaskKind kind) {
  switch (kind) {
    case TaskKind::kForward:
      return "forward";
    case TaskKind::kBackward:
      return "backward";
    case TaskKind::kReturnGradients:
      return "return of gradients";
    case TaskKind::kUpdate:
      return "update";
    case TaskKind::kTakeVariables:
      return "taking of variables";
    default:
      return "wait";
  }
}

bool OfVariable(const TensorKey& key) {
  return key.direction == wire::v1::VARIABLE_VALUE || key.direction == wire::v1::VARIABLE_GRADIENT;
}

}  // namespace

StageRunner::StageRunner(StageRunnerOptions options, StageSchedule schedule, Engine& engine,
                         Transport& transport, FeedFunction feed)
    : options_(std::move(options)),
      schedule_(std::move(schedule)),
      engine_(engine),
      transport_(transport),
      feed_(std::move(feed)),
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
       .granted = [self](int, int32_t edge,
                         wire::v1::Direction direction) { self->OnGranted(edge, direction); },
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
                           schedule_.micro_batches * table_.codecs().at(edge.id()).gradients);
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
    absl::MutexLock lock(&mutex_);
    status = CheckOrder(message.key);
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
    if (!OfVariable(message.key)) {
      coder_->SkipGradient(message.key);
    }
    Deliver(message.key, std::nullopt);
    return;
  }
  if (OfVariable(message.key) || IsDense(coder_->codecs(message.key.edge), message.key.direction)) {
    Deliver(message.key,
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
    Deliver(message.key, *std::move(tensor));
  });
}

absl::Status StageRunner::CheckOrder(const TensorKey& key) {
  const std::pair<int64_t, int32_t> now{key.step, key.micro_batch};
  auto [last, first_time] = last_arrived_.try_emplace(Lane{key.direction, key.edge, key.consumer}, now);
  if (!first_time && last->second >= now) {
    return absl::InvalidArgumentError(absl::StrCat("it comes after that of step ", last->second.first,
                                                   ", micro-batch ", last->second.second));
  }
  last->second = now;
  if (key.step < state_step_) {
    return absl::InvalidArgumentError(absl::StrCat("step ", state_step_, " is running"));
  }
  if (key.direction == wire::v1::BACKWARD) {
    const SubDagState* sent =
        state_.sub_dags.empty() ? nullptr : &state_.sub_dags[table_.outgoing(key.edge).from_sub_dag()];
    if (sent == nullptr || !state_.training || key.step != state_step_ || key.micro_batch >= sent->forwards) {
      return absl::InvalidArgumentError("its value has not been sent");
    }
  }
  return absl::OkStatus();
}

void StageRunner::OnGranted(int32_t edge, wire::v1::Direction direction) {
  if (direction != wire::v1::FORWARD) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  const auto granted = not_granted_.find(edge);
  if (granted == not_granted_.end() || granted->second == 0) {
    failure_.Update(absl::InternalError(absl::StrCat("stage ", options_.program.stage(),
                                                     ": more grants of edge ", edge, " than tensors sent")));
    return;
  }
  --granted->second;
  if (!state_.sub_dags.empty()) {
    const int sub_dag = table_.outgoing(edge).from_sub_dag();
    int most = 0;
    for (const auto& [id, count] : not_granted_) {
      most = table_.outgoing(id).from_sub_dag() == sub_dag ? std::max(most, count) : most;
    }
    state_.sub_dags[sub_dag].not_granted = most;
  }
}

void StageRunner::Deliver(const TensorKey& key, Arrival arrival) {
  absl::MutexLock lock(&mutex_);
  inbox_[key] = std::move(arrival);
  Count(key);
}

void StageRunner::Count(const TensorKey& key) {
  if (key.step != state_step_ || state_.phase == StepPhase::kFinished) {
    return;
  }
  if (OfVariable(key)) {
    if (state_.training) {
      --(key.direction == wire::v1::VARIABLE_VALUE ? state_.missing_borrowed_values
                                                   : state_.missing_lent_gradients);
    }
    return;
  }
  const int m = key.micro_batch - state_first_;
  if (m < 0 || m >= state_.micro_batches) {
    return;
  }
  if (key.direction == wire::v1::BACKWARD) {
    --state_.sub_dags[table_.outgoing(key.edge).from_sub_dag()].missing_gradients[m];
    return;
  }
  for (const int reader : table_.incoming(key.edge).to_sub_dags()) {
    --state_.sub_dags[reader].missing_values[m];
  }
}

void StageRunner::Cancel(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  failure_.Update(why);
}

size_t StageRunner::TensorsHeld() const {
  absl::MutexLock lock(&mutex_);
  return inbox_.size() + coder_->masks_held();
}

// ------------------------------------------------------------------ compute thread

absl::StatusOr<StepReport> StageRunner::RunStep(int64_t step) {
  StepReport report;
  report.set_step(step);
  report.set_stage(options_.program.stage());
  Begin(StartStep(schedule_), step, 0);
  if (const absl::Status status = RunTasks(report); !status.ok()) {
    return status;
  }
  if (options_.program.computes_loss()) {
    report.set_loss(MeanLoss());
  }
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
  Begin(StartValidation(schedule_, static_cast<int>(batches) * schedule_.micro_batches), step,
        schedule_.micro_batches);
  if (const absl::Status status = RunTasks(unreported); !status.ok()) {
    return status;
  }
  return options_.program.computes_loss() ? std::optional<double>(MeanLoss()) : std::nullopt;
}

void StageRunner::Begin(StepState state, int64_t step, int first_micro_batch) {
  step_ = step;
  first_micro_batch_ = first_micro_batch;
  received_.clear();
  losses_.clear();
  absl::MutexLock lock(&mutex_);
  state_ = std::move(state);
  state_step_ = step;
  state_first_ = first_micro_batch;
  for (const auto& [edge, count] : not_granted_) {
    int& most = state_.sub_dags[table_.outgoing(edge).from_sub_dag()].not_granted;
    most = std::max(most, count);
  }
  for (const auto& [key, arrival] : inbox_) {
    Count(key);
  }
}

absl::Status StageRunner::RunTasks(StepReport& report) {
  while (true) {
    double waited = 0;
    const auto task = AwaitTask(waited);
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

absl::StatusOr<Task> StageRunner::AwaitTask(double& waited_seconds) {
  Task task;
  const auto something = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    task = NextTask(schedule_, state_);
    return task.kind != TaskKind::kWait || !failure_.ok();
  };
  absl::MutexLock lock(&mutex_);
  if (!something()) {
    const int64_t begin = NowNanoseconds();
    mutex_.Await(absl::Condition(&something));
    waited_seconds = static_cast<double>(NowNanoseconds() - begin) * 1e-9;
  }
  if (!failure_.ok()) {
    return failure_;
  }
  return task;
}

absl::Status StageRunner::Execute(const Task& task, bool waited, StepReport& report) {
  switch (task.kind) {
    case TaskKind::kForward:
      return Forward(task, waited, report);
    case TaskKind::kBackward:
      return Backward(task, waited, report);
    case TaskKind::kReturnGradients:
      return ReturnGradients();
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

Pass StageRunner::PassOf(int micro_batch) const {
  return {.step = step_,
          .micro_batch = first_micro_batch_ + micro_batch,
          .training = first_micro_batch_ == 0,
          .samples = options_.micro_batch,
          .weight = static_cast<double>(options_.micro_batch) / static_cast<double>(options_.global_batch)};
}

absl::Status StageRunner::FeedPlaceholders(const Pass& pass, int sub_dag) {
  const int pass_index = pass.micro_batch - first_micro_batch_;
  for (const Operator& op : options_.program.sub_dags(sub_dag).operators()) {
    if (op.kind() != Operator::PLACEHOLDER) {
      continue;
    }
    const int64_t batch = pass.training ? step_ : pass_index / schedule_.micro_batches;
    const int64_t first = pass_index % schedule_.micro_batches * options_.micro_batch;
    const auto data = feed_(op.name(), pass.training, batch, first, options_.micro_batch);
    absl::Status status = data.status();
    if (status.ok()) {
      status = engine_.Feed(pass, op.name(), *data);
    }
    if (!status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status StageRunner::ReceiveValues(const Pass& pass, int sub_dag) {
  for (const Edge& edge : options_.program.incoming()) {
    const bool reads =
        std::find(edge.to_sub_dags().begin(), edge.to_sub_dags().end(), sub_dag) != edge.to_sub_dags().end();
    if (!reads || !received_.emplace(edge.id(), pass.micro_batch).second) {
      continue;
    }
    const Arrival value = Take({step_, pass.micro_batch, edge.id(), wire::v1::FORWARD, -1});
    if (const absl::Status status = engine_.Receive(pass, edge.id(), *value); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status StageRunner::Forward(const Task& task, bool waited, StepReport& report) {
  const Pass pass = PassOf(task.micro_batch);
  timer_.Begin(waited);
  absl::Status status = FeedPlaceholders(pass, task.sub_dag);
  if (status.ok()) {
    status = ReceiveValues(pass, task.sub_dag);
  }
  if (!status.ok()) {
    return status;
  }
  auto result = engine_.Forward(pass, task.sub_dag);
  if (!result.ok()) {
    return result.status();
  }
  if (result->loss.has_value()) {
    if (!std::isfinite(*result->loss)) {
      return absl::OutOfRangeError(absl::StrCat("NonFiniteLoss: the loss is ", *result->loss,
                                                "; lower training.optimizer.learningRate or check the data"));
    }
    losses_[task.micro_batch] = *result->loss;
  }
  const TaskSpan span = EndTask(task, report);
  report.set_forward_seconds(report.forward_seconds() + span.seconds());
  Complete(task);
  for (EdgeTensor& output : result->outputs) {
    SendEdge(table_.outgoing(output.edge).to_stage(),
             {step_, pass.micro_batch, output.edge, wire::v1::FORWARD, -1}, std::move(output.tensor));
  }
  GrantValues(task);
  ReleaseIfDone(pass);
  return absl::OkStatus();
}

absl::Status StageRunner::Backward(const Task& task, bool waited, StepReport& report) {
  const Pass pass = PassOf(task.micro_batch);
  timer_.Begin(waited);
  std::vector<const Edge*> granted;
  for (const Edge& edge : options_.program.outgoing()) {
    if (edge.from_sub_dag() != task.sub_dag || !edge.differentiable()) {
      continue;
    }
    const int consumers = edge.cotangent_per_consumer() ? edge.consumers_size() : 1;
    for (int i = 0; i < consumers; ++i) {
      const int consumer = edge.cotangent_per_consumer() ? i : -1;
      EdgeTensor gradient{.edge = edge.id(),
                          .consumer = consumer,
                          .tensor = Take({step_, pass.micro_batch, edge.id(), wire::v1::BACKWARD, consumer})};
      if (const absl::Status status = engine_.ReceiveGradient(pass, gradient); !status.ok()) {
        return status;
      }
      granted.push_back(&edge);
    }
  }
  auto gradients = engine_.Backward(pass, task.sub_dag);
  if (!gradients.ok()) {
    return gradients.status();
  }
  const TaskSpan span = EndTask(task, report);
  report.set_backward_seconds(report.backward_seconds() + span.seconds());
  Complete(task);
  for (EdgeTensor& gradient : *gradients) {
    SendEdge(table_.incoming(gradient.edge).from_stage(),
             {step_, pass.micro_batch, gradient.edge, wire::v1::BACKWARD, gradient.consumer},
             std::move(gradient.tensor));
  }
  for (const Edge* edge : granted) {
    transport_.Grant(edge->to_stage(), edge->id(), wire::v1::BACKWARD);
  }
  ReleaseIfDone(pass);
  return absl::OkStatus();
}

absl::Status StageRunner::ReturnGradients() {
  if (!options_.program.borrowed().empty()) {
    auto gradients = engine_.TakeBorrowedGradients();
    if (!gradients.ok()) {
      return gradients.status();
    }
    for (VariableGradient& gradient : *gradients) {
      for (const SharedVariable& shared : options_.program.borrowed()) {
        if (shared.id() == gradient.shared) {
          SendVariable(shared.owner_stage(),
                       {step_, 0, shared.id(), wire::v1::VARIABLE_GRADIENT, gradient.consumer},
                       std::move(gradient.tensor));
        }
      }
    }
  }
  Complete({.kind = TaskKind::kReturnGradients});
  return absl::OkStatus();
}

absl::Status StageRunner::Update(bool waited, StepReport& report) {
  const Task task{.kind = TaskKind::kUpdate};
  timer_.Begin(waited);
  for (const SharedVariable& shared : options_.program.lent()) {
    for (int consumer = 0; consumer < shared.consumers_size(); ++consumer) {
      const VariableGradient gradient{
          .shared = shared.id(),
          .consumer = consumer,
          .tensor = Take({step_, 0, shared.id(), wire::v1::VARIABLE_GRADIENT, consumer})};
      if (const absl::Status status = engine_.ReceiveLentGradient(gradient); !status.ok()) {
        return status;
      }
      transport_.Grant(shared.user_stage(), shared.id(), wire::v1::VARIABLE_GRADIENT);
    }
  }
  const auto result = engine_.Update(step_, /*learning_rate_factor=*/1);
  if (!result.ok()) {
    return result.status();
  }
  if (!result->finite) {
    return absl::OutOfRangeError(absl::StrCat(
        "NonFiniteLoss: a gradient is not finite (sum of squares ", result->squared_gradient_norm,
        "); no parameter of this stage was changed; lower training.optimizer.learningRate"));
  }
  report.set_squared_gradient_norm(result->squared_gradient_norm);
  const TaskSpan span = EndTask(task, report);
  report.set_update_seconds(span.seconds());
  report.set_end_ns(span.end_ns);
  for (const SharedVariable& shared : options_.program.lent()) {
    auto value = engine_.ReadVariable(shared.variable());
    if (!value.ok()) {
      return value.status();
    }
    SendVariable(shared.user_stage(), {step_, 0, shared.id(), wire::v1::VARIABLE_VALUE, -1},
                 *std::move(value));
  }
  Complete(task);
  return absl::OkStatus();
}

absl::Status StageRunner::TakeVariables() {
  for (const SharedVariable& shared : options_.program.borrowed()) {
    const Arrival value = Take({step_, 0, shared.id(), wire::v1::VARIABLE_VALUE, -1});
    if (const absl::Status status = engine_.WriteVariable(shared.variable(), *value); !status.ok()) {
      return status;
    }
    transport_.Grant(shared.owner_stage(), shared.id(), wire::v1::VARIABLE_VALUE);
  }
  Complete({.kind = TaskKind::kTakeVariables});
  return absl::OkStatus();
}

TaskSpan StageRunner::EndTask(const Task& task, StepReport& report) {
  const TaskSpan span = timer_.End();
  if (timer_.emulated()) {
    report.set_tasks(report.tasks() + 1);
    report.set_overrun_tasks(report.overrun_tasks() + (span.overrun ? 1 : 0));
  }
  if (report.start_ns() == 0) {
    report.set_start_ns(span.begin_ns);
  }
  if (trace_.Wants(step_)) {
    trace_.Add(step_, Trace::Row::kCompute,
               task.micro_batch < 0
                   ? TaskName(task.kind)
                   : absl::StrCat(TaskName(task.kind), " ", first_micro_batch_ + task.micro_batch,
                                  " of sub-DAG ", task.sub_dag),
               span.begin_ns, span.end_ns);
  }
  return span;
}

void StageRunner::Complete(const Task& task) {
  absl::MutexLock lock(&mutex_);
  CompleteTask(task, state_);
}

void StageRunner::GrantValues(const Task& task) {
  for (const Edge& edge : options_.program.incoming()) {
    bool reads = false;
    bool done = true;
    {
      absl::MutexLock lock(&mutex_);
      for (const int reader : edge.to_sub_dags()) {
        reads |= reader == task.sub_dag;
        done &= state_.sub_dags[reader].forwards > task.micro_batch;
      }
    }
    if (reads && done) {
      transport_.Grant(edge.from_stage(), edge.id(), wire::v1::FORWARD);
    }
  }
}

void StageRunner::ReleaseIfDone(const Pass& pass) {
  const int m = pass.micro_batch - first_micro_batch_;
  bool done = true;
  {
    absl::MutexLock lock(&mutex_);
    for (const SubDagState& sub_dag : state_.sub_dags) {
      done &= sub_dag.forwards > m && sub_dag.backwards > m;
    }
  }
  if (done) {
    engine_.Release(pass);
  }
}

void StageRunner::SendEdge(int to_stage, const TensorKey& key, Arrival tensor) {
  if (key.direction == wire::v1::FORWARD) {
    absl::MutexLock lock(&mutex_);
    const int count = ++not_granted_[key.edge];
    int& most = state_.sub_dags[table_.outgoing(key.edge).from_sub_dag()].not_granted;
    most = std::max(most, count);
  }
  if (!tensor.has_value()) {
    coder_->SkipGradient(key);
    transport_.Send(to_stage,
                    {.key = key, .codec = kDenseMessage, .shape = {}, .absent = true, .data = nullptr});
    return;
  }
  const bool training = first_micro_batch_ == 0;
  const auto send = [this, to_stage, key, training, tensor = *std::move(tensor)] {
    auto message = coder_->Encode(key, tensor, training);
    if (message.ok()) {
      transport_.Send(to_stage, *std::move(message));
    } else {
      Cancel(absl::Status(message.status().code(), absl::StrCat("cannot encode ", table_.Describe(key), ": ",
                                                                message.status().message())));
    }
  };
  if (IsDense(coder_->codecs(key.edge), key.direction)) {
    send();
    return;
  }
  encoder_.Post([this, key, send] {
    const int64_t begin = NowNanoseconds();
    send();
    trace_.Add(key.step, Trace::Row::kEncode, DescribeKey(key, ""), begin, NowNanoseconds());
  });
}

void StageRunner::SendVariable(int to_stage, const TensorKey& key, Arrival tensor) {
  EncodedTensor message{.key = key, .codec = kDenseMessage, .shape = {}, .absent = true, .data = nullptr};
  if (tensor.has_value()) {
    message.absent = false;
    message.dtype = tensor->dtype;
    message.shape = tensor->shape;
    message.bytes = tensor->bytes();
    message.data = std::move(tensor->data);
  }
  transport_.Send(to_stage, std::move(message));
}

StageRunner::Arrival StageRunner::Take(const TensorKey& key) {
  absl::MutexLock lock(&mutex_);
  auto node = inbox_.extract(key);
  return std::move(node.mapped());
}

double StageRunner::MeanLoss() const {
  double sum = 0;
  double weights = 0;
  for (const auto& [micro_batch, loss] : losses_) {
    const auto weight = static_cast<double>(options_.micro_batch);
    sum += weight * loss;
    weights += weight;
  }
  return sum / weights;
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
