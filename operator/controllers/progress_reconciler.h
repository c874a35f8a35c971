// Shows a run's progress in the job's status, as field manager `fusion-progress`.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "operator/broker/broker.h"
#include "operator/client.h"
#include "operator/controllers/controller.h"

namespace fusion::op {

inline constexpr absl::Duration kProgressInterval = absl::Seconds(10);

/// One write per job and interval at most, at once on a change of the run's phase. The write is small, and
/// always the manager's whole set. To be used by a controller with one worker.
class ProgressReconciler : public Reconciler {
 public:
  /// Both outlive it.
  ProgressReconciler(Client& client, const Broker& broker, std::function<absl::Time()> now = absl::Now)
      : client_(client), broker_(broker), now_(std::move(now)) {}

  absl::StatusOr<ReconcileResult> Reconcile(const ObjectKey& key) override;

 private:
  struct Written {
    absl::Time time;
    RunPhase phase;
    int64_t step;
  };

  Client& client_;
  const Broker& broker_;
  const std::function<absl::Time()> now_;
  std::map<ObjectKey, Written> written_;  ///< used by the one worker
};

/// The status fields of the manager: progress and display.
nlohmann::json ProgressFields(const RunStatus& run);

}  // namespace fusion::op
