#include "operator/controllers/progress_reconciler.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "operator/controllers/job_status.h"
#include "operator/object.h"

namespace fusion::op {
namespace {

using nlohmann::json;

void SetFinite(json& object, const char* name, double value) {
  if (std::isfinite(value)) object[name] = value;
}

}  // namespace

json ProgressFields(const RunStatus& run) {
  const StepRecord& last = run.last_step;
  json progress = {{"step", last.step}, {"steps", run.steps}};
  json display = {{"stagesReady", absl::StrCat(run.stages_ready, "/", run.stages)}};
  if (!run.clusters.empty()) display["clusters"] = run.clusters;
  if (last.loss) {
    SetFinite(progress, "loss", *last.loss);
    display["loss"] = absl::StrFormat("%.4g", *last.loss);
  }
  if (run.validation_loss) SetFinite(progress, "validationLoss", *run.validation_loss);
  if (run.validation_accuracy) SetFinite(progress, "validationAccuracy", *run.validation_accuracy);
  if (last.step > 0) {
    SetFinite(progress, "samplesPerSecond", last.samples_per_second);
    if (last.tokens_per_second > 0) SetFinite(progress, "tokensPerSecond", last.tokens_per_second);
    SetFinite(progress, "etaSeconds", last.step_seconds * static_cast<double>(run.steps - last.step));
    display["throughput"] = last.tokens_per_second > 0
                                ? absl::StrFormat("%.4g tokens/s", last.tokens_per_second)
                                : absl::StrFormat("%.4g samples/s", last.samples_per_second);
  }
  return {{"progress", progress}, {"display", display}};
}

absl::StatusOr<ReconcileResult> ProgressReconciler::Reconcile(const ObjectKey& key) {
  const std::optional<RunStatus> run = broker_.Find(key.ToString());
  if (!run) {
    written_.erase(key);
    return ReconcileResult();
  }
  const auto written = written_.find(key);
  if (written != written_.end() && written->second.phase == run->phase) {
    if (written->second.step == run->last_step.step) return ReconcileResult();
    const absl::Duration wait = written->second.time + kProgressInterval - now_();
    if (wait > absl::ZeroDuration()) return ReconcileResult{wait};
  }
  const json patch = {{"apiVersion", ApiVersionOf(kFusionJobs)},
                      {"kind", kFusionJobs.kind},
                      {"metadata", {{"name", key.name}, {"namespace", key.namespace_name}}},
                      {"status", ProgressFields(*run)}};
  const absl::Status applied =
      client_.Apply(kFusionJobs, patch, kProgressManager, /*force=*/true, /*status=*/true).status();
  if (!applied.ok() && !absl::IsNotFound(applied)) return applied;
  written_[key] = {now_(), run->phase, run->last_step.step};
  return ReconcileResult();
}

}  // namespace fusion::op
