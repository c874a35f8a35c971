#include "cli/run_monitor.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace fusion::cli {

RunMonitor::RunMonitor() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

RunMonitor::~RunMonitor() {
  if (descriptor_ >= 0) close(descriptor_);
}

op::JobCallbacks RunMonitor::Callbacks() {
  op::JobCallbacks callbacks;
  callbacks.on_phase = [this](const std::string& phase, const std::string&) {
    const absl::MutexLock lock(&mutex_);
    state_.phase = phase;
    Wake();
  };
  callbacks.on_plan = [this](const graph::v1::Plan& plan) {
    const absl::MutexLock lock(&mutex_);
    state_.plan = plan;
    Wake();
  };
  callbacks.on_note = [this](const std::string& note) {
    const absl::MutexLock lock(&mutex_);
    state_.notes.push_back(note);
    Wake();
  };
  callbacks.on_step = [this](const op::StepRecord& record) { OnStep(record); };
  return callbacks;
}

void RunMonitor::OnStep(const op::StepRecord& record) {
  const absl::MutexLock lock(&mutex_);
  state_.last_step = record;
  if (record.validation_loss.has_value()) state_.validation_loss = record.validation_loss;
  if (record.validation_accuracy.has_value()) state_.validation_accuracy = record.validation_accuracy;
  state_.step_seconds.push_back(record.step_seconds);
  for (const op::LinkRecord& link : record.links) state_.link_bytes[{link.from, link.to}] += link.bytes;
  Wake();
}

void RunMonitor::SetResult(absl::StatusOr<op::JobResult> result) {
  const absl::MutexLock lock(&mutex_);
  result_ = std::move(result);
  Wake();
}

void RunMonitor::Wake() const { eventfd_write(descriptor_, 1); }

JobState RunMonitor::State() {
  eventfd_t ignored = 0;
  eventfd_read(descriptor_, &ignored);
  const absl::MutexLock lock(&mutex_);
  return state_;
}

std::optional<absl::StatusOr<op::JobResult>> RunMonitor::Result() const {
  const absl::MutexLock lock(&mutex_);
  return result_;
}

}  // namespace fusion::cli
