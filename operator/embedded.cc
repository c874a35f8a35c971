#include "operator/embedded.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "operator/broker/broker_server.h"
#include "operator/controllers/compnode_reconciler.h"
#include "operator/controllers/controller.h"
#include "operator/controllers/fusionjob_reconciler.h"
#include "operator/controllers/informer.h"
#include "operator/controllers/progress_reconciler.h"
#include "operator/job_folder.h"
#include "operator/launcher/process_launcher.h"
#include "operator/log.h"
#include "operator/object.h"
#include "operator/store/object_store.h"
#include "proto/json_mapper.h"

namespace fusion::op {
namespace {

using nlohmann::json;

constexpr char kDefaultNamespace[] = "default";
constexpr char kCancelled[] = "the run was cancelled";
constexpr char kListen[] = "127.0.0.1:0";
constexpr int64_t kDefaultKeep = 3;
constexpr absl::Duration kSyncPatience = absl::Seconds(10);
// Voluntary end, SIGTERM and SIGKILL take 4 s; see ProcessLauncherOptions.
constexpr absl::Duration kEndPatience = absl::Seconds(10);

// What a change of the job's own progress leaves as it was: a reconciler has nothing to do for it.
bool OnlyProgressChanged(const json& before, const json& now) {
  const auto without_progress = [](json job) {
    for (const char* name : {"resourceVersion", "managedFields"}) job["metadata"].erase(name);
    if (job.contains("status")) {
      for (const char* name : {"progress", "display"}) job["status"].erase(name);
    }
    return job;
  };
  return without_progress(before) == without_progress(now);
}

std::string PhaseMessage(const json& job) {
  const json* conditions = Find(job, {"status", "conditions"});
  const json* ready = conditions == nullptr ? nullptr : FindCondition(*conditions, "Ready");
  return ready == nullptr ? "" : StringAt(*ready, {"message"});
}

class ControlPlane final : public EmbeddedControlPlane, private RunObserver {
 public:
  explicit ControlPlane(EmbeddedOptions options)
      : options_(std::move(options)),
        planning_(*options_.profile, options_.cores > 0 ? options_.cores : UsableCores()) {}
  ~ControlPlane() override;

  absl::Status Open(const std::vector<v1alpha1::Compnode>& compnodes);

  Client& client() override { return *store_; }
  absl::StatusOr<JobResult> Run(const EmbeddedJob& job, const JobCallbacks& callbacks) override;
  void Cancel() override;

 private:
  /// The job that runs.
  struct Current {
    ObjectKey key;
    std::string folder;
    std::string checkpoints;
    JobCallbacks callbacks;
    int64_t keep;  ///< checkpoints
    MetricsFile metrics;
    json object = nullptr;  ///< as last seen
    RunStatus run = {};     ///< as last seen
    int64_t begun = 0;      ///< incarnation whose metrics have begun
    int64_t tasks = 0;
    int64_t overrun_tasks = 0;
    bool replaced = false;  ///< what an earlier run left is set aside
  };

  absl::Status DeclareCompnodes(const std::vector<v1alpha1::Compnode>& compnodes);
  absl::Status RemoveEarlier(const ObjectKey& key);
  JobResult AwaitEnd(const ObjectKey& key);
  /// What the job replaces is removed, once it has a result of its own.
  static void DropReplaced(Current& current);
  std::vector<std::string> WorkerCommand(const WorkerSpec& worker) const;
  std::string FolderOf(const std::string& job) const;
  static JobResult ResultOf(const Current& current);
  /// Once for each incarnation, when it runs and before its first step; false at other times.
  static bool BeginMetrics(Current& current);
  /// Passes what happened to the job's callbacks, unless another job runs.
  void Report(const ObjectKey& key, const std::function<void(const JobCallbacks&)>& report);

  void OnJob(const json* before, const json* now);
  void OnStep(const std::string& job, const StepRecord& record) override;
  void OnCheckpoint(const std::string& job, int64_t step, const std::string& path) override;
  void OnChange(const std::string& job) override;
  static ObjectKey KeyOfName(const std::string& job);

  const EmbeddedOptions options_;
  LocalPlanning planning_;
  PlanFiles plans_;
  std::unique_ptr<ObjectStore> store_;
  std::unique_ptr<BrokerServer> broker_;
  std::unique_ptr<ProcessLauncher> launcher_;
  std::unique_ptr<FusionJobReconciler> job_reconciler_;
  std::unique_ptr<ProgressReconciler> progress_reconciler_;
  std::unique_ptr<CompnodeReconciler> compnode_reconciler_;
  std::unique_ptr<Controller> jobs_;
  std::unique_ptr<Controller> progress_;
  std::unique_ptr<Controller> compnodes_;
  std::unique_ptr<Informer> job_informer_;
  std::unique_ptr<Informer> compnode_informer_;

  absl::Mutex callback_mutex_;  ///< one callback at a time; before mutex_
  absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(callback_mutex_);
  absl::CondVar jobs_changed_;
  std::unique_ptr<Current> current_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

ControlPlane::~ControlPlane() {
  Cancel();
  // First what calls others, then what is called.
  for (auto* informer : {&job_informer_, &compnode_informer_}) {
    if (*informer) (*informer)->Stop();
  }
  for (auto* controller : {&jobs_, &progress_, &compnodes_}) {
    if (*controller) (*controller)->Stop();
  }
  launcher_.reset();
  broker_.reset();
}

absl::Status ControlPlane::Open(const std::vector<v1alpha1::Compnode>& compnodes) {
  ObjectStoreOptions store_options;
  store_options.folder = ObjectsFolder(options_.workdir);
  absl::StatusOr<std::unique_ptr<ObjectStore>> store =
      ObjectStore::Open(std::move(store_options), {kFusionJobs, kCompnodes});
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  if (absl::Status status = DeclareCompnodes(compnodes); !status.ok()) return status;

  absl::StatusOr<std::unique_ptr<BrokerServer>> broker = BrokerServer::Start(kListen, *this);
  if (!broker.ok()) return broker.status();
  broker_ = *std::move(broker);

  ProcessLauncherOptions launcher_options;
  launcher_options.command = [this](const WorkerSpec& worker) { return WorkerCommand(worker); };
  launcher_options.log_file = [this](const WorkerSpec& worker) {
    return absl::StrCat(FolderOf(KeyOfName(worker.job).name), "/logs/stage-", worker.stage, ".log");
  };
  // A waiting OpenMP thread would take a core from another stage.
  launcher_options.environment = {{"OMP_WAIT_POLICY", "PASSIVE"}};
  launcher_ = std::make_unique<ProcessLauncher>(std::move(launcher_options), [this](const WorkerExit& exit) {
    broker_->WorkerExited(exit);
    jobs_->Enqueue(KeyOfName(exit.worker.job));
  });

  job_reconciler_ = std::make_unique<FusionJobReconciler>(
      FusionJobReconciler::Dependencies{*store_, planning_, plans_, *broker_, *launcher_});
  progress_reconciler_ = std::make_unique<ProgressReconciler>(*store_, *broker_);
  compnode_reconciler_ = std::make_unique<CompnodeReconciler>(*store_);
  jobs_ = std::make_unique<Controller>("fusionjob", *job_reconciler_);
  progress_ = std::make_unique<Controller>("progress", *progress_reconciler_);
  compnodes_ = std::make_unique<Controller>("compnode", *compnode_reconciler_);
  job_informer_ = std::make_unique<Informer>(
      *store_, kFusionJobs, "", [this](const json* before, const json* now) { OnJob(before, now); });
  compnode_informer_ =
      std::make_unique<Informer>(*store_, kCompnodes, "", [this](const json*, const json* now) {
        if (now != nullptr) compnodes_->Enqueue(KeyOf(*now));
      });
  for (Controller* controller : {jobs_.get(), progress_.get(), compnodes_.get()}) controller->Start();
  for (Informer* informer : {job_informer_.get(), compnode_informer_.get()}) {
    informer->Start();
    if (!informer->WaitForSync(kSyncPatience))
      return absl::DeadlineExceededError("the objects could not be listed");
  }
  return absl::OkStatus();
}

absl::Status ControlPlane::DeclareCompnodes(const std::vector<v1alpha1::Compnode>& compnodes) {
  absl::StatusOr<ObjectList> earlier = store_->List(kCompnodes, "");
  if (!earlier.ok()) return earlier.status();
  for (const json& item : earlier->items) {
    if (absl::Status status = store_->Delete(kCompnodes, KeyOf(item), ""); !status.ok()) return status;
  }
  for (size_t i = 0; i < compnodes.size(); ++i) {
    json object = api::ToJson(compnodes[i]);
    object["metadata"]["annotations"][kOrderAnnotation] = absl::StrFormat("%06d", i);
    if (absl::Status status = store_->Create(kCompnodes, object).status(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<std::string> ControlPlane::WorkerCommand(const WorkerSpec& worker) const {
  if (options_.worker_command) return options_.worker_command(worker, broker_->address());
  return {worker.engine == api::kJaxEngine ? options_.jax_worker_binary : options_.worker_binary,
          "stage",
          "--broker",
          broker_->address(),
          "--job",
          worker.job,
          "--stage",
          absl::StrCat(worker.stage),
          "--compnode",
          worker.compnode,
          "--incarnation",
          absl::StrCat(worker.incarnation)};
}

std::string ControlPlane::FolderOf(const std::string& job) const {
  return absl::StrCat(options_.workdir, "/", job);
}

ObjectKey ControlPlane::KeyOfName(const std::string& job) {
  const size_t slash = job.find('/');
  return {job.substr(0, slash), job.substr(slash + 1)};
}

absl::Status ControlPlane::RemoveEarlier(const ObjectKey& key) {
  absl::Status removed = store_->Delete(kFusionJobs, key, "");
  if (absl::IsNotFound(removed)) return absl::OkStatus();
  if (!removed.ok()) return removed;
  const absl::Time deadline = absl::Now() + kEndPatience;
  absl::MutexLock lock(&mutex_);
  while (job_informer_->Get(key) != nullptr) {
    if (jobs_changed_.WaitWithDeadline(&mutex_, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("the earlier job ", key.ToString(), " does not go away"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<JobResult> ControlPlane::Run(const EmbeddedJob& input, const JobCallbacks& callbacks) {
  v1alpha1::FusionJob job = input.job;
  job.clear_status();
  if (!job.metadata().has_namespace_()) job.mutable_metadata()->set_namespace_(kDefaultNamespace);
  const ObjectKey key{job.metadata().namespace_(), job.metadata().name()};
  const std::string folder = FolderOf(key.name);
  const ExistingFolder existing = options_.resume      ? ExistingFolder::kKeep
                                  : options_.overwrite ? ExistingFolder::kOverwrite
                                                       : ExistingFolder::kRefuse;
  const std::string checkpoints = CheckpointFolder(job.spec(), input.base_directory, folder);
  if (absl::Status status = MakeJobFolder(folder, checkpoints, existing); !status.ok()) return status;
  if (absl::Status status = RemoveEarlier(key); !status.ok()) return status;
  plans_.SetFolder(key, folder);
  planning_.SetFiles(key, {input.base_directory, folder, input.replay, input.trace_step, options_.resume});
  {
    absl::MutexLock lock(&mutex_);
    const int64_t keep = job.spec().checkpoint().has_keep() ? job.spec().checkpoint().keep() : kDefaultKeep;
    current_ = std::make_unique<Current>(
        Current{key, folder, checkpoints, callbacks, keep, MetricsFile(folder + "/metrics.jsonl")});
    current_->replaced = existing == ExistingFolder::kOverwrite;
    if (cancelled_) job_reconciler_->Cancel(key, kCancelled);
    absl::StatusOr<json> created = store_->Create(kFusionJobs, api::ToJson(job));
    if (!created.ok()) {
      current_ = nullptr;
      return created.status();
    }
    current_->object = *std::move(created);
  }
  JobResult result = AwaitEnd(key);
  absl::MutexLock no_callbacks(&callback_mutex_);
  absl::MutexLock lock(&mutex_);
  current_ = nullptr;
  return result;
}

JobResult ControlPlane::AwaitEnd(const ObjectKey& key) {
  {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this] {
      mutex_.AssertReaderHeld();
      return IsTerminal(PhaseOf(current_->object));
    };
    mutex_.Await(absl::Condition(&ended));
  }
  if (!launcher_->WaitUntilGone(key.ToString(), kEndPatience)) {
    LogWarning("workers are left", "embedded", key.ToString(), absl::DeadlineExceededError("after SIGKILL"));
  }
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<graph::v1::Plan> plan =
      plans_.Load(key, IntAt(current_->object, {"status", "incarnation"}));
  const absl::Status tidied =
      TidyJobFolder(current_->folder, current_->checkpoints, plan.ok() ? plan->stages_size() : 0);
  if (!tidied.ok()) LogWarning("the job's folder could not be tidied", "embedded", key.ToString(), tidied);
  JobResult result = ResultOf(*current_);
  if (plan.ok()) result.plan = PlanFiles::FileIn(current_->folder);
  if (result.phase == kSucceeded) DropReplaced(*current_);
  if (!current_->replaced) return result;
  const absl::StatusOr<bool> back = PutBackReplaced(current_->folder, current_->checkpoints);
  if (!back.ok()) {
    LogWarning("what an earlier run left cannot be put back", "embedded", key.ToString(), back.status());
  } else if (*back) {
    result.plan.clear();
    absl::StrAppend(&result.message, "; what an earlier run left in ", current_->folder, " is as it was");
  }
  return result;
}

void ControlPlane::DropReplaced(Current& current) {
  if (!std::exchange(current.replaced, false)) return;
  const absl::Status dropped = op::DropReplaced(current.folder, current.checkpoints);
  if (!dropped.ok()) {
    LogWarning("what an earlier run left cannot be removed", "embedded", current.key.ToString(), dropped);
  }
}

JobResult ControlPlane::ResultOf(const Current& current) {
  JobResult result;
  result.job = current.key.name;
  result.phase = PhaseOf(current.object);
  if (const json* conditions = Find(current.object, {"status", "conditions"})) {
    const json* end = FindCondition(*conditions, result.phase == kSucceeded ? "Complete" : "Failed");
    if (end != nullptr) {
      result.reason = StringAt(*end, {"reason"});
      result.message = StringAt(*end, {"message"});
    }
  }
  result.step = current.run.last_step.step;
  result.loss = current.run.last_step.loss;
  result.validation_loss = current.run.validation_loss;
  result.validation_accuracy = current.run.validation_accuracy;
  const json& kept = current.metrics.last_kept();
  if (!result.loss && kept.is_object() && IntAt(kept, {"step"}) == result.step) {  // no step was left to do
    const auto number = [&kept](const char* name) -> std::optional<double> {
      const json* value = Find(kept, {name});
      return value != nullptr && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
    };
    result.loss = number("loss");
    result.validation_loss = number("validationLoss");
    result.validation_accuracy = number("validationAccuracy");
  }
  result.checkpoint = current.run.checkpoint;
  result.tasks = current.tasks;
  result.overrun_tasks = current.overrun_tasks;
  return result;
}

void ControlPlane::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (current_ == nullptr) return;
  job_reconciler_->Cancel(current_->key, kCancelled);
  jobs_->Enqueue(current_->key);
}

void ControlPlane::Report(const ObjectKey& key, const std::function<void(const JobCallbacks&)>& report) {
  absl::MutexLock one_at_a_time(&callback_mutex_);
  JobCallbacks callbacks;
  {
    absl::MutexLock lock(&mutex_);
    if (current_ == nullptr || current_->key != key) return;
    callbacks = current_->callbacks;
  }
  report(callbacks);
}

void ControlPlane::OnJob(const json* before, const json* now) {
  const json& object = now != nullptr ? *now : *before;
  const ObjectKey key = KeyOf(object);
  const std::string phase = PhaseOf(object);
  bool current = false;  // not one of the same name from an earlier run
  {
    absl::MutexLock lock(&mutex_);
    current = current_ != nullptr && UidOf(current_->object) == UidOf(object);
  }
  if (current && !phase.empty() && (before == nullptr || PhaseOf(*before) != phase)) {
    const absl::StatusOr<graph::v1::Plan> plan = plans_.Load(key, IntAt(object, {"status", "incarnation"}));
    Report(key, [&](const JobCallbacks& callbacks) {
      if (phase == kStarting && plan.ok() && callbacks.on_plan) callbacks.on_plan(*plan);
      if (callbacks.on_phase) callbacks.on_phase(phase, PhaseMessage(object));
    });
  }
  {
    absl::MutexLock lock(&mutex_);
    if (current && now != nullptr) current_->object = *now;
    jobs_changed_.SignalAll();
  }
  if (before != nullptr && now != nullptr && OnlyProgressChanged(*before, *now)) return;
  jobs_->Enqueue(key);
  for (const std::string& compnode : CompnodesOf(object)) compnodes_->Enqueue({"", compnode});
}

void ControlPlane::OnStep(const std::string& job, const StepRecord& record) {
  const ObjectKey key = KeyOfName(job);
  {
    absl::MutexLock lock(&mutex_);
    if (current_ == nullptr || current_->key != key) return;
    DropReplaced(*current_);
    const absl::Status written = current_->metrics.Append(record);
    if (!written.ok()) LogWarning("a step's metrics are lost", "embedded", job, written);
    current_->tasks += record.tasks;
    current_->overrun_tasks += record.overrun_tasks;
    current_->run = broker_->Find(job).value_or(current_->run);
  }
  Report(key, [&](const JobCallbacks& callbacks) {
    if (callbacks.on_step) callbacks.on_step(record);
  });
  progress_->Enqueue(key);
}

bool ControlPlane::BeginMetrics(Current& current) {
  const RunStatus& run = current.run;
  if (run.phase != RunPhase::kRunning || current.begun == run.incarnation) return false;
  current.begun = run.incarnation;
  const absl::Status begun = current.metrics.StartAfter(run.resumed_step);
  if (!begun.ok()) LogWarning("metrics.jsonl cannot begin", "embedded", current.key.ToString(), begun);
  return true;
}

void ControlPlane::OnCheckpoint(const std::string& job, int64_t /*step*/, const std::string& /*path*/) {
  absl::MutexLock lock(&mutex_);
  if (current_ == nullptr || current_->key != KeyOfName(job)) return;
  const absl::Status pruned = PruneCheckpoints(current_->checkpoints, current_->keep);
  if (!pruned.ok()) LogWarning("old checkpoints could not be removed", "embedded", job, pruned);
}

void ControlPlane::OnChange(const std::string& job) {
  const ObjectKey key = KeyOfName(job);
  std::vector<std::string> notes;
  {
    absl::MutexLock lock(&mutex_);
    if (current_ != nullptr && current_->key == key) {
      current_->run = broker_->Find(job).value_or(current_->run);
      if (BeginMetrics(*current_)) notes = current_->run.notes;
    }
  }
  Report(key, [&](const JobCallbacks& callbacks) {
    for (const std::string& note : notes) {
      if (callbacks.on_note) callbacks.on_note(note);
    }
  });
  jobs_->Enqueue(key);
  progress_->Enqueue(key);
}

}  // namespace

json ResultJson(const JobResult& result) {
  json object = {{"job", result.job},         {"phase", result.phase}, {"reason", result.reason},
                 {"message", result.message}, {"step", result.step},   {"checkpoint", result.checkpoint},
                 {"plan", result.plan}};
  if (result.loss && std::isfinite(*result.loss)) object["loss"] = *result.loss;
  if (result.validation_loss && std::isfinite(*result.validation_loss)) {
    object["validationLoss"] = *result.validation_loss;
  }
  if (result.validation_accuracy) object["validationAccuracy"] = *result.validation_accuracy;
  return object;
}

std::string ObjectsFolder(const std::string& workdir) { return workdir + "/.objects"; }

absl::StatusOr<std::unique_ptr<EmbeddedControlPlane>> EmbeddedControlPlane::Start(
    EmbeddedOptions options, const std::vector<v1alpha1::Compnode>& compnodes) {
  auto plane = std::make_unique<ControlPlane>(std::move(options));
  if (absl::Status status = plane->Open(compnodes); !status.ok()) return status;
  return plane;
}

}  // namespace fusion::op
