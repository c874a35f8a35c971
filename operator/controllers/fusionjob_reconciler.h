// Takes a FusionJob from its creation to its end.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "fusion/v1alpha1/api.pb.h"
#include "nlohmann/json.hpp"
#include "operator/broker/broker.h"
#include "operator/client.h"
#include "operator/controllers/controller.h"
#include "operator/controllers/job_status.h"
#include "operator/controllers/planning.h"
#include "operator/launcher/launcher.h"

namespace fusion::op {

/// Pending -> Planning -> Starting -> Running -> Succeeded | Failed.
///
/// Before any worker is started, the plan is in the archive, and its summary, the incarnation and the phase
/// Starting are in the status by a compare-and-swap: whoever loses it has started nothing. Workers have names
/// that follow from job, stage and incarnation, so that starting is idempotent. Each call does what the
/// present state asks for, and no more than once.
///
/// A job that lost a worker starts again from its newest intact checkpoint, or its first step where it has
/// none, with a higher incarnation, at most runPolicy.backoffLimit times; steps are deterministic, so the
/// result is the same.
class FusionJobReconciler : public Reconciler {
 public:
  /// What it acts on; all outlive it.
  struct Dependencies {
    Client& client;
    Planning& planning;
    PlanArchive& archive;
    Broker& broker;
    Launcher& launcher;
    std::function<absl::Time()> now = absl::Now;
  };

  explicit FusionJobReconciler(Dependencies dependencies) : d_(std::move(dependencies)) {}

  absl::StatusOr<ReconcileResult> Reconcile(const ObjectKey& key) override;

  /// From its next reconciliation on, the job fails with reason Cancelled unless it has ended. Thread-safe.
  void Cancel(const ObjectKey& key, const std::string& message);

 private:
  using Result = absl::StatusOr<ReconcileResult>;

  Result Finalize(const ObjectKey& key, const nlohmann::json& job);
  Result Clean(const ObjectKey& key, const nlohmann::json& job);
  Result Pend(const nlohmann::json& job);
  Result Plan(const ObjectKey& key, const nlohmann::json& job);
  /// Admits the run unless it is, and starts the workers that were not started.
  Result Begin(const ObjectKey& key, const nlohmann::json& job, bool admitted);
  Result Observe(const ObjectKey& key, const nlohmann::json& job, const RunStatus& run);
  Result FailOrRestart(const nlohmann::json& job, const RunStatus& run);
  Result Fail(const nlohmann::json& job, const std::string& reason, const std::string& message);
  /// What is left of the phase's deadline and the whole job's; Fail when one has passed.
  Result Wait(const nlohmann::json& job, bool running);

  absl::Status Apply(const OperatorStatus& status);
  absl::Status SetFinalizer(const nlohmann::json& job, bool present);
  absl::StatusOr<std::vector<v1alpha1::Compnode>> Compnodes();
  void EndRun(const ObjectKey& key, const std::string& reason);
  std::string CancelMessage(const ObjectKey& key) const;

  const Dependencies d_;
  mutable absl::Mutex mutex_;
  std::map<ObjectKey, std::string> cancelled_ ABSL_GUARDED_BY(mutex_);  ///< key -> message
};

/// Annotation that gives compnodes the order in which they were declared; those without one follow by name.
inline constexpr char kOrderAnnotation[] = "fusion.dev/order";

/// Keeps a job from vanishing while workers of it may run.
inline constexpr char kWorkersFinalizer[] = "fusion.dev/workers";

}  // namespace fusion::op
