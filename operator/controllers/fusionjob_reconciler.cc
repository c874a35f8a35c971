#include "operator/controllers/fusionjob_reconciler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "operator/object.h"
#include "operator/store/apply.h"
#include "proto/json_mapper.h"

namespace fusion::op {
namespace {

using nlohmann::json;

constexpr absl::Duration kCleaningInterval = absl::Milliseconds(100);
constexpr int64_t kPreRunningDeadlineSeconds = 300;
constexpr int kSummaryEntries = 64;
constexpr size_t kNoteBytes = 1000;  // of one note in a condition's message

absl::StatusOr<v1alpha1::FusionJob> ParseJob(const json& object) {
  v1alpha1::FusionJob job;
  absl::Status status = api::FromJson(object, api::Mode::kLenient, &job);
  if (!status.ok()) return status;
  api::ApplyDefaults(&job);
  return job;
}

// Of the stages on a compnode.
std::string EngineOf(const std::vector<v1alpha1::Compnode>& compnodes, const std::string& name) {
  for (const v1alpha1::Compnode& compnode : compnodes) {
    if (compnode.metadata().name() == name) return api::EngineOf(compnode);
  }
  return api::kTorchEngine;
}

// For status.plan: bounded, whatever the plan's size.
json Summary(const graph::v1::Plan& plan) {
  v1alpha1::PlanSummary summary;
  summary.set_policy(plan.policy());
  summary.set_incarnation(plan.incarnation());
  summary.set_predicted_samples_per_second(plan.samples_per_second());
  summary.set_predicted_step_seconds(plan.step_seconds());
  for (const graph::v1::PlannedStage& stage : plan.stages()) {
    if (summary.stages_size() == kSummaryEntries) break;
    v1alpha1::StageSummary& entry = *summary.add_stages();
    entry.set_index(stage.index());
    entry.set_compnode(stage.compnode());
    entry.set_operators(stage.operators_size());
    if (stage.operators_size() == 0) continue;
    entry.set_first_operator(stage.operators(0));
    entry.set_last_operator(stage.operators(stage.operators_size() - 1));
  }
  for (const graph::v1::PlannedLink& link : plan.links()) {
    if (summary.links_size() == kSummaryEntries) break;
    v1alpha1::LinkSummary& entry = *summary.add_links();
    entry.set_from(link.from());
    entry.set_to(link.to());
    entry.set_codec(link.codec());
    entry.set_bytes(link.bytes());
  }
  return api::ToJson(summary);
}

absl::Time TimeAt(const json& object, std::initializer_list<const char*> path, absl::Time otherwise) {
  absl::Time time;
  return absl::ParseTime(absl::RFC3339_full, StringAt(object, path), &time, nullptr) ? time : otherwise;
}

std::string ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return "DataMissing";
    case absl::StatusCode::kInvalidArgument:
      return "InvalidJob";
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
      return "Infeasible";
    default:
      return "PlanningFailed";
  }
}

std::string RunningMessage(const RunStatus& run) {
  std::string message = absl::StrCat("all ", run.stages, " stages are running");
  for (const std::string& note : run.notes) {
    absl::StrAppend(&message, "; ", note.substr(0, kNoteBytes), note.size() > kNoteBytes ? "…" : "");
  }
  return message;
}

std::string Clusters(const graph::v1::Plan& plan) {
  std::set<std::string> clusters;
  for (const graph::v1::PlannedStage& stage : plan.stages()) clusters.insert(stage.cluster());
  return absl::StrJoin(clusters, ",");
}

}  // namespace

void FusionJobReconciler::Cancel(const ObjectKey& key, const std::string& message) {
  absl::MutexLock lock(&mutex_);
  cancelled_.emplace(key, message);
}

std::string FusionJobReconciler::CancelMessage(const ObjectKey& key) const {
  absl::MutexLock lock(&mutex_);
  const auto found = cancelled_.find(key);
  return found == cancelled_.end() ? "" : found->second;
}

absl::StatusOr<ReconcileResult> FusionJobReconciler::Reconcile(const ObjectKey& key) {
  absl::StatusOr<json> job = d_.client.Get(kFusionJobs, key);
  if (absl::IsNotFound(job.status())) {
    EndRun(key, "the job was deleted");
    d_.broker.Forget(key.ToString());
    return ReconcileResult();
  }
  if (!job.ok()) return job.status();
  const std::string phase = PhaseOf(*job);
  if (IsDeleting(*job)) return Finalize(key, *job);
  if (IsTerminal(phase)) return Clean(key, *job);
  if (const std::string message = CancelMessage(key); !message.empty())
    return Fail(*job, "Cancelled", message);
  if (phase.empty()) return Pend(*job);
  if (phase == kPending || phase == kPlanning) return Plan(key, *job);

  const std::optional<RunStatus> run = d_.broker.Find(key.ToString());
  const bool known = run.has_value() && run->incarnation == IntAt(*job, {"status", "incarnation"});
  if (phase == kStarting && (!known || run->phase == RunPhase::kRegistering)) return Begin(key, *job, known);
  if (!known)
    return Fail(*job, "RunLost", "the operator that ran the job has ended, and its workers with it");
  return Observe(key, *job, *run);
}

// ------------------------------------------------------------------------------------------ beginning

FusionJobReconciler::Result FusionJobReconciler::Pend(const json& job) {
  if (absl::Status status = SetFinalizer(job, true); !status.ok()) return status;
  absl::StatusOr<json> current = d_.client.Get(kFusionJobs, KeyOf(job));
  if (!current.ok()) return current.status();
  OperatorStatus status(*current);
  status.Set("startTime", KubernetesTime(d_.now()));
  status.Set("restarts", 0);
  status.SetPhase(kPending, "Pending", "waiting to be planned", d_.now());
  if (absl::Status applied = Apply(status); !applied.ok()) return applied;
  return ReconcileResult();
}

FusionJobReconciler::Result FusionJobReconciler::Plan(const ObjectKey& key, const json& object) {
  // Workers of an attempt that failed leave first.
  if (d_.launcher.Running(key.ToString()) > 0) {
    EndRun(key, "the job starts again");
    return ReconcileResult{kCleaningInterval};
  }
  if (PhaseOf(object) == kPending) {
    OperatorStatus planning(object);
    planning.SetCondition("Planned", false, "Planning", "", d_.now());
    planning.SetPhase(kPlanning, "Planning", "choosing compnodes and cutting the model", d_.now());
    return Apply(planning).ok() ? Result(ReconcileResult())
                                : Result(absl::AbortedError("status written meanwhile"));
  }
  absl::StatusOr<v1alpha1::FusionJob> job = ParseJob(object);
  if (!job.ok()) return Fail(object, "InvalidJob", std::string(job.status().message()));
  absl::StatusOr<std::vector<v1alpha1::Compnode>> compnodes = Compnodes();
  if (!compnodes.ok()) return compnodes.status();

  const int64_t incarnation = IntAt(object, {"status", "incarnation"}) + 1;
  absl::StatusOr<graph::v1::Plan> plan = d_.planning.MakePlan(*job, *compnodes, incarnation);
  if (absl::IsUnavailable(plan.status())) return plan.status();
  if (!plan.ok()) return Fail(object, ReasonOf(plan.status()), std::string(plan.status().message()));
  if (absl::Status saved = d_.archive.Save(key, *plan); !saved.ok()) return saved;

  OperatorStatus status(object);
  status.Set("plan", Summary(*plan));
  status.Set("incarnation", incarnation);
  const std::string message = absl::StrFormat("%d stages by %s, %.3g s a step predicted", plan->stages_size(),
                                              plan->policy(), plan->step_seconds());
  status.SetCondition("Planned", true, "PlanChosen", message, d_.now());
  status.SetPhase(kStarting, "Starting", "starting workers", d_.now());
  if (absl::Status applied = Apply(status); !applied.ok()) return applied;
  return ReconcileResult();
}

FusionJobReconciler::Result FusionJobReconciler::Begin(const ObjectKey& key, const json& object,
                                                       bool admitted) {
  const int64_t incarnation = IntAt(object, {"status", "incarnation"});
  absl::StatusOr<graph::v1::Plan> plan = d_.archive.Load(key, incarnation);
  if (!plan.ok()) return Fail(object, "PlanLost", std::string(plan.status().message()));
  absl::StatusOr<std::vector<v1alpha1::Compnode>> compnodes = Compnodes();
  if (!compnodes.ok()) return compnodes.status();
  if (!admitted) {
    absl::StatusOr<v1alpha1::FusionJob> job = ParseJob(object);
    if (!job.ok()) return Fail(object, "InvalidJob", std::string(job.status().message()));
    absl::StatusOr<std::vector<wire::v1::Assignment>> assignments =
        d_.planning.MakeAssignments(*job, *compnodes, *plan);
    if (!assignments.ok()) {
      return Fail(object, ReasonOf(assignments.status()), std::string(assignments.status().message()));
    }
    RunSpec run{key.ToString(), incarnation, {}, *std::move(assignments), Clusters(*plan)};
    for (const graph::v1::PlannedStage& stage : plan->stages()) run.compnodes.push_back(stage.compnode());
    if (absl::Status status = d_.broker.Admit(std::move(run)); !status.ok()) return status;
  }
  for (int stage = 0; stage < plan->stages_size(); ++stage) {
    const std::string& compnode = plan->stages(stage).compnode();
    const WorkerSpec worker{key.ToString(), stage, compnode, incarnation, EngineOf(*compnodes, compnode)};
    if (absl::Status started = d_.launcher.Start(worker); !started.ok()) {
      return Fail(object, "WorkerStartFailed",
                  absl::StrCat("stage ", stage, " (compnode ", worker.compnode, "): ", started.message()));
    }
  }
  return Wait(object, false);
}

// ------------------------------------------------------------------------------------------ running

FusionJobReconciler::Result FusionJobReconciler::Observe(const ObjectKey& key, const json& job,
                                                         const RunStatus& run) {
  switch (run.phase) {
    case RunPhase::kRegistering:
    case RunPhase::kLoading:
      return Wait(job, false);
    case RunPhase::kFailed:
      EndRun(key, run.message);
      return FailOrRestart(job, run);
    case RunPhase::kStopped:
      return Fail(job, run.reason, run.message);
    case RunPhase::kRunning:
    case RunPhase::kSucceeded:
      break;
  }
  OperatorStatus status(job);
  if (!run.checkpoint.empty()) status.Set("checkpoint", run.checkpoint);
  if (run.nonfinite_step > 0) {
    status.SetCondition("NonFiniteLoss", true, "NonFiniteLoss",
                        absl::StrCat("the loss of step ", run.nonfinite_step, " is not a finite number"),
                        d_.now());
  }
  if (run.phase == RunPhase::kSucceeded) {
    status.SetPhase(
        kSucceeded, "Succeeded",
        run.steps == 0 ? std::string("evaluated") : absl::StrCat("trained for ", run.steps, " steps"),
        d_.now());
    if (absl::Status applied = Apply(status); !applied.ok()) return applied;
    EndRun(key, "");
    return ReconcileResult();
  }
  status.SetPhase(kRunning, "Running", RunningMessage(run), d_.now());
  if (absl::Status applied = Apply(status); !applied.ok()) return applied;
  return Wait(job, true);
}

FusionJobReconciler::Result FusionJobReconciler::FailOrRestart(const json& job, const RunStatus& run) {
  const int64_t restarts = IntAt(job, {"status", "restarts"});
  const int64_t limit = IntAt(job, {"spec", "runPolicy", "backoffLimit"});
  if (run.reason != "WorkerLost" || restarts >= limit) return Fail(job, run.reason, run.message);
  OperatorStatus status(job);
  status.Set("restarts", restarts + 1);
  status.SetPhase(kPending, "Restarting",
                  absl::StrCat("restart ", restarts + 1, " of at most ", limit, ": ", run.message), d_.now());
  if (absl::Status applied = Apply(status); !applied.ok()) return applied;
  return ReconcileResult();
}

FusionJobReconciler::Result FusionJobReconciler::Wait(const json& job, bool running) {
  const absl::Time now = d_.now();
  absl::Time deadline = absl::InfiniteFuture();
  std::string limit;
  if (const int64_t seconds = IntAt(job, {"spec", "runPolicy", "activeDeadlineSeconds"}); seconds > 0) {
    deadline = TimeAt(job, {"status", "startTime"}, now) + absl::Seconds(seconds);
    limit = absl::StrCat("runPolicy.activeDeadlineSeconds of ", seconds, " s have passed");
  }
  if (!running) {
    int64_t seconds = IntAt(job, {"spec", "runPolicy", "preRunningDeadlineSeconds"});
    if (seconds <= 0) seconds = kPreRunningDeadlineSeconds;
    const json* conditions = Find(job, {"status", "conditions"});
    const json* planned = conditions == nullptr ? nullptr : FindCondition(*conditions, "Planned");
    const absl::Time since = planned == nullptr ? now : TimeAt(*planned, {"lastTransitionTime"}, now);
    if (since + absl::Seconds(seconds) < deadline) {
      deadline = since + absl::Seconds(seconds);
      limit = absl::StrCat("not all workers were ready within runPolicy.preRunningDeadlineSeconds of ",
                           seconds, " s");
    }
  }
  if (now >= deadline) return Fail(job, "DeadlineExceeded", limit);
  return ReconcileResult{deadline == absl::InfiniteFuture() ? absl::ZeroDuration() : deadline - now};
}

// ------------------------------------------------------------------------------------------ end

FusionJobReconciler::Result FusionJobReconciler::Fail(const json& job, const std::string& reason,
                                                      const std::string& message) {
  OperatorStatus status(job);
  status.SetPhase(kFailed, reason, message, d_.now());
  if (absl::Status applied = Apply(status); !applied.ok()) return applied;
  EndRun(KeyOf(job), message);
  return ReconcileResult();
}

FusionJobReconciler::Result FusionJobReconciler::Clean(const ObjectKey& key, const json& job) {
  EndRun(key, "the job has ended");
  if (d_.launcher.Running(key.ToString()) > 0) return ReconcileResult{kCleaningInterval};
  if (absl::Status status = SetFinalizer(job, false); !status.ok()) return status;
  const json* ttl = Find(job, {"spec", "runPolicy", "ttlSecondsAfterFinished"});
  if (ttl == nullptr) return ReconcileResult();
  const absl::Time end = TimeAt(job, {"status", "completionTime"}, d_.now()) +
                         absl::Seconds(IntAt(job, {"spec", "runPolicy", "ttlSecondsAfterFinished"}));
  if (d_.now() < end) return ReconcileResult{end - d_.now()};
  const absl::Status deleted = d_.client.Delete(kFusionJobs, key, UidOf(job));
  if (!deleted.ok() && !absl::IsNotFound(deleted)) return deleted;
  return ReconcileResult();
}

FusionJobReconciler::Result FusionJobReconciler::Finalize(const ObjectKey& key, const json& job) {
  EndRun(key, "the job was deleted");
  if (d_.launcher.Running(key.ToString()) > 0) return ReconcileResult{kCleaningInterval};
  d_.broker.Forget(key.ToString());
  if (absl::Status status = SetFinalizer(job, false); !status.ok()) return status;
  return ReconcileResult();
}

void FusionJobReconciler::EndRun(const ObjectKey& key, const std::string& reason) {
  d_.broker.Stop(key.ToString(), reason);
  d_.launcher.Terminate(key.ToString());
}

// ------------------------------------------------------------------------------------------ objects

absl::Status FusionJobReconciler::Apply(const OperatorStatus& status) {
  // Forced: the version makes it safe, and fields of an earlier operator's other name are taken over.
  return d_.client.Apply(kFusionJobs, status.Patch(), kOperatorManager, /*force=*/true, /*status=*/true)
      .status();
}

absl::Status FusionJobReconciler::SetFinalizer(const json& job, bool present) {
  const json* finalizers = Find(job, {"metadata", "finalizers"});
  const bool there = finalizers != nullptr && std::find(finalizers->begin(), finalizers->end(),
                                                        kWorkersFinalizer) != finalizers->end();
  if (there == present) return absl::OkStatus();
  json patch = OperatorStatus(job).Patch();
  patch.erase("status");
  if (present) patch["metadata"]["finalizers"] = {kWorkersFinalizer};
  return d_.client.Apply(kFusionJobs, patch, kOperatorManager, /*force=*/false, /*status=*/false).status();
}

absl::StatusOr<std::vector<v1alpha1::Compnode>> FusionJobReconciler::Compnodes() {
  absl::StatusOr<ObjectList> list = d_.client.List(kCompnodes, "");
  if (!list.ok()) return list.status();
  std::stable_sort(list->items.begin(), list->items.end(), [](const json& a, const json& b) {
    const auto order = [](const json& object) {
      const std::string text = StringAt(object, {"metadata", "annotations", kOrderAnnotation});
      return std::pair(text.empty(), text);
    };
    return order(a) < order(b);
  });
  std::vector<v1alpha1::Compnode> compnodes;
  for (const json& item : list->items) {
    if (IsDeleting(item)) continue;
    v1alpha1::Compnode& compnode = compnodes.emplace_back();
    if (absl::Status status = api::FromJson(item, api::Mode::kLenient, &compnode); !status.ok()) {
      return absl::InternalError(absl::StrCat("compnode ", KeyOf(item).name, ": ", status.message()));
    }
    api::ApplyDefaults(&compnode);
  }
  return compnodes;
}

}  // namespace fusion::op
