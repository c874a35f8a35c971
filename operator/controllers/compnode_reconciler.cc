#include "operator/controllers/compnode_reconciler.h"

#include "absl/strings/str_cat.h"
#include "fusion/v1alpha1/api.pb.h"
#include "operator/controllers/job_status.h"
#include "operator/object.h"
#include "proto/json_mapper.h"

namespace fusion::op {
namespace {

using nlohmann::json;

template <typename Visit>
void VisitStages(const json& job, Visit visit) {
  const json* stages = Find(job, {"status", "plan", "stages"});
  if (stages == nullptr) return;
  for (const json& stage : *stages) visit(StringAt(stage, {"compnode"}), IntAt(stage, {"index"}));
}

}  // namespace

std::set<std::string> CompnodesOf(const json& job) {
  std::set<std::string> names;
  VisitStages(job, [&](const std::string& compnode, int64_t) { names.insert(compnode); });
  return names;
}

absl::StatusOr<ReconcileResult> CompnodeReconciler::Reconcile(const ObjectKey& key) {
  absl::StatusOr<json> compnode = client_.Get(kCompnodes, key);
  if (absl::IsNotFound(compnode.status())) return ReconcileResult();
  if (!compnode.ok()) return compnode.status();
  absl::StatusOr<ObjectList> jobs = client_.List(kFusionJobs, "");
  if (!jobs.ok()) return jobs.status();

  json assignments = json::array();
  for (const json& job : jobs->items) {
    const std::string phase = PhaseOf(job);
    if (phase != kStarting && phase != kRunning) continue;
    VisitStages(job, [&](const std::string& name, int64_t index) {
      if (name == key.name) assignments.push_back(absl::StrCat(KeyOf(job).name, "/", index));
    });
  }

  v1alpha1::Compnode parsed;
  const absl::Status valid = api::FromJson(*compnode, api::Mode::kLenient, &parsed);
  json conditions = json::array();
  if (const json* known = Find(*compnode, {"status", "conditions"})) conditions = *known;
  const int64_t generation = IntAt(*compnode, {"metadata", "generation"});
  if (!valid.ok()) {
    SetCondition(conditions, "Ready", false, "InvalidSpec", std::string(valid.message()), generation, now_());
  } else if (parsed.spec().cordoned()) {
    SetCondition(conditions, "Ready", true, "Cordoned", "takes no new stages", generation, now_());
  } else {
    SetCondition(conditions, "Ready", true, "Declared", "takes stages", generation, now_());
  }
  const json patch = {
      {"apiVersion", ApiVersionOf(kCompnodes)},
      {"kind", kCompnodes.kind},
      {"metadata",
       {{"name", key.name}, {"uid", UidOf(*compnode)}, {"resourceVersion", ResourceVersionOf(*compnode)}}},
      {"status",
       {{"conditions", conditions}, {"observedGeneration", generation}, {"assignments", assignments}}}};
  const absl::Status applied =
      client_.Apply(kCompnodes, patch, kOperatorManager, /*force=*/true, /*status=*/true).status();
  if (!applied.ok()) return applied;
  return ReconcileResult();
}

}  // namespace fusion::op
