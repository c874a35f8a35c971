// The tasks of a StageRunner: what its compute thread does with the engine, and what it sends.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/pipeline/stage_runner.h"
#include "worker/pipeline/step_decision.h"

namespace fusion::worker {

using graph::v1::Edge;
using graph::v1::Operator;
using graph::v1::SharedVariable;
using wire::v1::StepReport;

StageRunner::Slice StageRunner::SliceOf(int micro_batch) const {
  const bool training = first_micro_batch_ == 0;
  return {.training = training,
          .batch = training ? step_ : micro_batch / schedule_.micro_batches,
          .first = micro_batch % schedule_.micro_batches * options_.micro_batch};
}

Pass StageRunner::PassOf(int micro_batch) const {
  return {.step = step_,
          .micro_batch = first_micro_batch_ + micro_batch,
          .training = first_micro_batch_ == 0,
          .samples = options_.micro_batch,
          .weight = targets_[static_cast<size_t>(micro_batch)] / all_targets_};
}

absl::Status StageRunner::FeedPlaceholders(const Pass& pass, int sub_dag) {
  const Slice slice = SliceOf(pass.micro_batch - first_micro_batch_);
  for (const Operator& op : options_.program.sub_dags(sub_dag).operators()) {
    if (op.kind() != Operator::PLACEHOLDER) {
      continue;
    }
    const auto data = feed_(op.name(), slice.training, slice.batch, slice.first, options_.micro_batch);
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
    const Arrival value = board_.Take({step_, pass.micro_batch, edge.id(), wire::v1::FORWARD, -1});
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
  if (result->correct.has_value()) {
    correct_[task.micro_batch] = *result->correct;
  }
  const TaskSpan span = EndTask(task, report);
  report.set_forward_seconds(report.forward_seconds() + span.seconds());
  board_.Complete(task);
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
      EdgeTensor gradient{
          .edge = edge.id(),
          .consumer = consumer,
          .tensor = board_.Take({step_, pass.micro_batch, edge.id(), wire::v1::BACKWARD, consumer})};
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
  board_.Complete(task);
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
          SendDense(shared.owner_stage(),
                    {step_, 0, shared.id(), wire::v1::VARIABLE_GRADIENT, gradient.consumer},
                    std::move(gradient.tensor));
        }
      }
    }
  }
  board_.Complete({.kind = TaskKind::kReturnGradients});
  return absl::OkStatus();
}

absl::Status StageRunner::TakeLentGradients() {
  for (const SharedVariable& shared : options_.program.lent()) {
    for (int consumer = 0; consumer < shared.consumers_size(); ++consumer) {
      const VariableGradient gradient{
          .shared = shared.id(),
          .consumer = consumer,
          .tensor = board_.Take({step_, 0, shared.id(), wire::v1::VARIABLE_GRADIENT, consumer})};
      if (const absl::Status status = engine_.ReceiveLentGradient(gradient); !status.ok()) {
        return status;
      }
      transport_.Grant(shared.user_stage(), shared.id(), wire::v1::VARIABLE_GRADIENT);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GradientNorm>> StageRunner::GatherNorms() {
  if (const absl::Status status = TakeLentGradients(); !status.ok()) {
    return status;
  }
  auto norms = engine_.GradientNorms();
  if (!norms.ok()) {
    return norms.status();
  }
  for (const auto& child : options_.program.decision().children()) {
    const Arrival message = board_.Take({step_, 0, child.stage(), wire::v1::STEP_NORMS, -1});
    const std::vector<GradientNorm> below = NormsOf(*message);
    norms->insert(norms->end(), below.begin(), below.end());
    transport_.Grant(child.stage(), child.stage(), wire::v1::STEP_NORMS);
  }
  return norms;
}

absl::Status StageRunner::Decide(bool waited, StepReport& report) {
  const Task task{.kind = TaskKind::kDecide};
  timer_.Begin(waited);
  auto norms = GatherNorms();
  if (!norms.ok()) {
    return norms.status();
  }
  const TaskSpan span = EndTask(task, report);
  report.set_update_seconds(span.seconds());
  const auto& decision = options_.program.decision();
  if (decision.has_parent()) {
    SendDense(decision.parent(), {step_, 0, options_.program.stage(), wire::v1::STEP_NORMS, -1},
              NormsMessage(*norms));
  } else {
    squared_norm_ = SumOfSquares(*std::move(norms));
    if (options_.program.has_decision()) {
      report.set_job_squared_gradient_norm(squared_norm_);
    }
  }
  board_.Complete(task);
  return absl::OkStatus();
}

absl::Status StageRunner::Update(bool waited, StepReport& report) {
  const Task task{.kind = TaskKind::kUpdate};
  timer_.Begin(waited);
  const auto& decision = options_.program.decision();
  if (decision.has_parent()) {
    const Arrival message = board_.Take({step_, 0, options_.program.stage(), wire::v1::STEP_DECISION, -1});
    squared_norm_ = SquaredNormOf(*message);
    transport_.Grant(decision.parent(), options_.program.stage(), wire::v1::STEP_DECISION);
  }
  for (const auto& child : decision.children()) {  // before the work: they wait for it
    SendDense(child.stage(), {step_, 0, child.stage(), wire::v1::STEP_DECISION, -1},
              DecisionMessage(squared_norm_));
  }
  const UpdateOptions update = DecideUpdate(options_.training, step_, squared_norm_);
  const auto result = engine_.Update(step_, update);
  if (!result.ok()) {
    return result.status();
  }
  if (update.skip || !result->finite) {
    return absl::OutOfRangeError(
        absl::StrCat("NonFiniteLoss: a gradient is not finite (sum of squares over the job ", squared_norm_,
                     "); no parameter was changed; lower training.optimizer.learningRate"));
  }
  report.set_squared_gradient_norm(result->squared_gradient_norm);
  const TaskSpan span = EndTask(task, report);
  report.set_update_seconds(report.update_seconds() + span.seconds());
  report.set_end_ns(span.end_ns);
  for (const SharedVariable& shared : options_.program.lent()) {
    auto value = engine_.ReadVariable(shared.variable());
    if (!value.ok()) {
      return value.status();
    }
    SendDense(shared.user_stage(), {step_, 0, shared.id(), wire::v1::VARIABLE_VALUE, -1}, *std::move(value));
  }
  board_.Complete(task);
  return absl::OkStatus();
}

absl::Status StageRunner::TakeVariables() {
  for (const SharedVariable& shared : options_.program.borrowed()) {
    const Arrival value = board_.Take({step_, 0, shared.id(), wire::v1::VARIABLE_VALUE, -1});
    if (const absl::Status status = engine_.WriteVariable(shared.variable(), *value); !status.ok()) {
      return status;
    }
    transport_.Grant(shared.owner_stage(), shared.id(), wire::v1::VARIABLE_VALUE);
  }
  board_.Complete({.kind = TaskKind::kTakeVariables});
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

void StageRunner::GrantValues(const Task& task) {
  for (const Edge& edge : options_.program.incoming()) {
    const bool reads = std::find(edge.to_sub_dags().begin(), edge.to_sub_dags().end(), task.sub_dag) !=
                       edge.to_sub_dags().end();
    if (reads && board_.ReadersDone(edge, task.micro_batch)) {
      transport_.Grant(edge.from_stage(), edge.id(), wire::v1::FORWARD);
    }
  }
}

void StageRunner::ReleaseIfDone(const Pass& pass) {
  if (board_.PassDone(pass.micro_batch - first_micro_batch_)) {
    engine_.Release(pass);
  }
}

void StageRunner::SendEdge(int to_stage, const TensorKey& key, Arrival tensor) {
  if (key.direction == wire::v1::FORWARD) {
    board_.CountSent(key.edge);
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
  if (IsDense(coder_->codecs(key), key.direction) && !coder_->Changes(key.edge)) {
    send();
    return;
  }
  encoder_.Post([this, key, send] {
    const int64_t begin = NowNanoseconds();
    send();
    trace_.Add(key.step, Trace::Row::kEncode, DescribeKey(key, ""), begin, NowNanoseconds());
  });
}

void StageRunner::SendDense(int to_stage, const TensorKey& key, Arrival tensor) {
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

}  // namespace fusion::worker
