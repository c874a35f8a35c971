// Keeps a Compnode's status: is it usable, and which stages run on it.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "operator/client.h"
#include "operator/controllers/controller.h"

namespace fusion::op {

/// Ready is True for a compnode whose spec can be used, and says when it is cordoned. Assignments are
/// JOB/STAGE of the jobs that are Starting or Running.
class CompnodeReconciler : public Reconciler {
 public:
  explicit CompnodeReconciler(Client& client, std::function<absl::Time()> now = absl::Now)
      : client_(client), now_(std::move(now)) {}

  absl::StatusOr<ReconcileResult> Reconcile(const ObjectKey& key) override;

 private:
  Client& client_;
  const std::function<absl::Time()> now_;
};

/// Names of the compnodes in a job's plan summary.
std::set<std::string> CompnodesOf(const nlohmann::json& job);

}  // namespace fusion::op
