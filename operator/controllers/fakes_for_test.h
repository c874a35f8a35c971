// In-memory twins of what the job reconciler acts on.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "operator/broker/broker.h"
#include "operator/controllers/planning.h"
#include "operator/launcher/launcher.h"

namespace fusion::op {

/// Keeps admitted runs; their progress is what a test sets.
class FakeBroker : public Broker {
 public:
  std::string address() const override { return "127.0.0.1:1"; }
  absl::Status Admit(RunSpec run) override {
    absl::MutexLock lock(&mutex_);
    ++admissions_;
    RunStatus& status = runs_[run.job];
    if (status.incarnation > run.incarnation) return absl::AbortedError("a higher incarnation is there");
    if (status.incarnation == run.incarnation) return absl::OkStatus();
    status = RunStatus();
    status.incarnation = run.incarnation;
    status.stages = static_cast<int>(run.assignments.size());
    return absl::OkStatus();
  }
  std::optional<RunStatus> Find(const std::string& job) const override {
    absl::MutexLock lock(&mutex_);
    const auto run = runs_.find(job);
    if (run == runs_.end()) return std::nullopt;
    return run->second;
  }
  void WorkerExited(const WorkerExit&) override {}
  void Stop(const std::string& job, const std::string&) override {
    absl::MutexLock lock(&mutex_);
    const auto run = runs_.find(job);
    if (run == runs_.end() || run->second.phase > RunPhase::kRunning) return;
    run->second.phase = RunPhase::kStopped;
  }
  void Forget(const std::string& job) override {
    absl::MutexLock lock(&mutex_);
    runs_.erase(job);
  }

  /// Changes a run's status; the run must be admitted.
  template <typename Change>
  void Set(const std::string& job, Change change) {
    absl::MutexLock lock(&mutex_);
    change(runs_.at(job));
  }
  int admissions() const {
    absl::MutexLock lock(&mutex_);
    return admissions_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, RunStatus> runs_ ABSL_GUARDED_BY(mutex_);
  int admissions_ ABSL_GUARDED_BY(mutex_) = 0;
};

/// Remembers who was started; workers of a terminated job are gone at once, unless they linger.
class FakeLauncher : public Launcher {
 public:
  absl::Status Start(const WorkerSpec& worker) override {
    absl::MutexLock lock(&mutex_);
    if (!fault_.ok()) return fault_;
    started_.insert(worker.Name());
    engines_[worker.compnode] = worker.engine;
    running_[worker.job].insert(worker.Name());
    return absl::OkStatus();
  }
  void Terminate(const std::string& job) override {
    absl::MutexLock lock(&mutex_);
    if (!linger_) running_.erase(job);
  }
  int Running(const std::string& job) const override {
    absl::MutexLock lock(&mutex_);
    const auto found = running_.find(job);
    return found == running_.end() ? 0 : static_cast<int>(found->second.size());
  }

  void SetFault(absl::Status fault) {
    absl::MutexLock lock(&mutex_);
    fault_ = std::move(fault);
  }
  void SetLinger(bool linger) {
    absl::MutexLock lock(&mutex_);
    linger_ = linger;
  }
  std::set<std::string> started() const {
    absl::MutexLock lock(&mutex_);
    return started_;
  }
  /// By compnode.
  std::map<std::string, std::string> engines() const {
    absl::MutexLock lock(&mutex_);
    return engines_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::set<std::string> started_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> engines_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::set<std::string>> running_ ABSL_GUARDED_BY(mutex_);
  absl::Status fault_ ABSL_GUARDED_BY(mutex_);
  bool linger_ ABSL_GUARDED_BY(mutex_) = false;
};

/// One stage on each compnode, or the error that is set.
class FakePlanning : public Planning {
 public:
  absl::StatusOr<graph::v1::Plan> MakePlan(const v1alpha1::FusionJob& job,
                                           const std::vector<v1alpha1::Compnode>& compnodes,
                                           int64_t incarnation) override {
    ++plans;
    if (before_plan) before_plan();
    if (!fault.ok()) return fault;
    graph::v1::Plan plan;
    plan.set_job(job.metadata().name());
    plan.set_incarnation(incarnation);
    plan.set_policy("OpFence");
    for (const v1alpha1::Compnode& compnode : compnodes) {
      graph::v1::PlannedStage& stage = *plan.add_stages();
      stage.set_index(plan.stages_size() - 1);
      stage.set_compnode(compnode.metadata().name());
      stage.set_cluster(compnode.spec().cluster());
      stage.add_operators(absl::StrCat("op", plan.stages_size()));
    }
    return plan;
  }
  absl::StatusOr<std::vector<wire::v1::Assignment>> MakeAssignments(const v1alpha1::FusionJob& job,
                                                                    const std::vector<v1alpha1::Compnode>&,
                                                                    const graph::v1::Plan& plan) override {
    std::vector<wire::v1::Assignment> assignments(plan.stages_size());
    for (wire::v1::Assignment& assignment : assignments) *assignment.mutable_spec() = job.spec();
    return assignments;
  }

  absl::Status fault;
  std::function<void()> before_plan;
  int plans = 0;
};

class FakeArchive : public PlanArchive {
 public:
  absl::Status Save(const ObjectKey& job, const graph::v1::Plan& plan) override {
    plans[job] = plan;
    return absl::OkStatus();
  }
  absl::StatusOr<graph::v1::Plan> Load(const ObjectKey& job, int64_t incarnation) override {
    const auto found = plans.find(job);
    if (found == plans.end() || found->second.incarnation() != incarnation)
      return absl::NotFoundError("no such plan");
    return found->second;
  }

  std::map<ObjectKey, graph::v1::Plan> plans;
};

}  // namespace fusion::op
