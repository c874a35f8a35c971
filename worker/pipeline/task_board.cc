#include "worker/pipeline/task_board.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/pipeline/task_timer.h"

namespace fusion::worker {

absl::Status TaskBoard::Admit(const TensorKey& key) {
  absl::MutexLock lock(&mutex_);
  const std::pair<int64_t, int32_t> now{key.step, key.micro_batch};
  auto [last, first_time] = last_admitted_.try_emplace(Lane{key.direction, key.edge, key.consumer}, now);
  if (!first_time && last->second >= now) {
    return absl::InvalidArgumentError(absl::StrCat("it comes after that of step ", last->second.first,
                                                   ", micro-batch ", last->second.second));
  }
  last->second = now;
  if (key.step < step_) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step_, " is running"));
  }
  if (key.direction == wire::v1::BACKWARD) {
    const SubDagState* producer =
        state_.sub_dags.empty() ? nullptr : &state_.sub_dags[table_.outgoing(key.edge).from_sub_dag()];
    if (producer == nullptr || !state_.training || key.step != step_ ||
        key.micro_batch >= producer->forwards) {
      return absl::InvalidArgumentError("its value has not been sent");
    }
  }
  return absl::OkStatus();
}

void TaskBoard::Deliver(const TensorKey& key, Arrival arrival) {
  absl::MutexLock lock(&mutex_);
  arrived_[key] = std::move(arrival);
  Count(key);
}

void TaskBoard::Count(const TensorKey& key) {
  if (key.step != step_ || state_.phase == StepPhase::kFinished) {
    return;
  }
  if (IsOncePerStep(key.direction)) {
    if (state_.training) {
      --MissingOf(key.direction);
    }
    return;
  }
  const int m = key.micro_batch - first_micro_batch_;
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

int& TaskBoard::MissingOf(wire::v1::Direction direction) {
  switch (direction) {
    case wire::v1::VARIABLE_VALUE:
      return state_.missing_borrowed_values;
    case wire::v1::VARIABLE_GRADIENT:
      return state_.missing_lent_gradients;
    case wire::v1::STEP_NORMS:
      return state_.missing_norms;
    default:
      return state_.missing_decisions;
  }
}

void TaskBoard::CountSent(int32_t edge) {
  absl::MutexLock lock(&mutex_);
  ++not_granted_[edge];
  UpdateNotGranted(table_.outgoing(edge).from_sub_dag());
}

void TaskBoard::CountGranted(int32_t edge) {
  absl::MutexLock lock(&mutex_);
  const auto granted = not_granted_.find(edge);
  if (granted == not_granted_.end() || granted->second == 0) {
    failure_.Update(
        absl::InvalidArgumentError(absl::StrCat("more grants of edge ", edge, " than tensors sent")));
    return;
  }
  --granted->second;
  UpdateNotGranted(table_.outgoing(edge).from_sub_dag());
}

void TaskBoard::UpdateNotGranted(int sub_dag) {
  if (state_.sub_dags.empty()) {
    return;
  }
  int most = 0;
  for (const auto& [edge, count] : not_granted_) {
    most = table_.outgoing(edge).from_sub_dag() == sub_dag ? std::max(most, count) : most;
  }
  state_.sub_dags[sub_dag].not_granted = most;
}

void TaskBoard::Fail(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  failure_.Update(why);
}

void TaskBoard::Begin(StepState state, int64_t step, int first_micro_batch) {
  absl::MutexLock lock(&mutex_);
  state_ = std::move(state);
  step_ = step;
  first_micro_batch_ = first_micro_batch;
  for (int i = 0; i < static_cast<int>(state_.sub_dags.size()); ++i) {
    UpdateNotGranted(i);
  }
  for (const auto& [key, arrival] : arrived_) {
    Count(key);
  }
}

absl::StatusOr<Task> TaskBoard::AwaitTask(double& waited_seconds) {
  Task task;
  const auto something = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    task = NextTask(schedule_, state_);
    return task.kind != TaskKind::kWait || !failure_.ok();
  };
  absl::MutexLock lock(&mutex_);
  if (!something()) {
    const int64_t begin = NowNanoseconds();
    mutex_.Await(absl::Condition(&something));
    waited_seconds += static_cast<double>(NowNanoseconds() - begin) * 1e-9;
  }
  if (!failure_.ok()) {
    return failure_;
  }
  return task;
}

void TaskBoard::Complete(const Task& task) {
  absl::MutexLock lock(&mutex_);
  CompleteTask(task, state_);
}

Arrival TaskBoard::Take(const TensorKey& key) {
  absl::MutexLock lock(&mutex_);
  return std::move(arrived_.extract(key).mapped());
}

bool TaskBoard::ReadersDone(const graph::v1::Edge& edge, int m) const {
  absl::MutexLock lock(&mutex_);
  return std::all_of(
      edge.to_sub_dags().begin(), edge.to_sub_dags().end(),
      [&](int reader) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return state_.sub_dags[reader].forwards > m; });
}

bool TaskBoard::PassDone(int m) const {
  absl::MutexLock lock(&mutex_);
  return std::all_of(state_.sub_dags.begin(), state_.sub_dags.end(), [m](const SubDagState& sub_dag) {
    return sub_dag.forwards > m && sub_dag.backwards > m;
  });
}

size_t TaskBoard::tensors_held() const {
  absl::MutexLock lock(&mutex_);
  return arrived_.size();
}

}  // namespace fusion::worker
