#include "operator/controllers/job_status.h"

#include "operator/object.h"
#include "operator/store/apply.h"

namespace fusion::op {
namespace {

using nlohmann::json;

constexpr const char* kOperatorFields[] = {"phase",     "conditions",     "observedGeneration",
                                           "plan",      "incarnation",    "restarts",
                                           "startTime", "completionTime", "checkpoint"};

}  // namespace

bool IsTerminal(const std::string& phase) { return phase == kSucceeded || phase == kFailed; }

std::string PhaseOf(const json& job) { return StringAt(job, {"status", "phase"}); }

const json* FindCondition(const json& conditions, const std::string& type) {
  for (const json& condition : conditions) {
    if (StringAt(condition, {"type"}) == type) return &condition;
  }
  return nullptr;
}

void SetCondition(json& conditions, const std::string& type, bool status, const std::string& reason,
                  const std::string& message, int64_t observed_generation, absl::Time now) {
  const std::string text = status ? "True" : "False";
  const json* before = FindCondition(conditions, type);
  const bool flips = before == nullptr || StringAt(*before, {"status"}) != text;
  const json condition = {
      {"type", type},
      {"status", text},
      {"reason", reason},
      {"message", message},
      {"lastTransitionTime", flips ? KubernetesTime(now) : StringAt(*before, {"lastTransitionTime"})},
      {"observedGeneration", observed_generation}};
  for (json& known : conditions) {
    if (StringAt(known, {"type"}) != type) continue;
    known = condition;
    return;
  }
  conditions.push_back(condition);
}

OperatorStatus::OperatorStatus(const json& job) : fields_(json::object()) {
  identity_ = {{"apiVersion", job["apiVersion"]}, {"kind", job["kind"]}};
  const ObjectKey key = KeyOf(job);
  identity_["metadata"] = {{"name", key.name},
                           {"namespace", key.namespace_name},
                           {"uid", UidOf(job)},
                           {"resourceVersion", ResourceVersionOf(job)}};
  generation_ = IntAt(job, {"metadata", "generation"});
  for (const char* name : kOperatorFields) {
    if (const json* value = Find(job, {"status", name})) fields_[name] = *value;
  }
  if (!fields_.contains("conditions")) fields_["conditions"] = json::array();
}

void OperatorStatus::SetCondition(const std::string& type, bool status, const std::string& reason,
                                  const std::string& message, absl::Time now) {
  op::SetCondition(fields_["conditions"], type, status, reason, message, generation_, now);
}

void OperatorStatus::SetPhase(const std::string& phase, const std::string& reason, const std::string& message,
                              absl::Time now) {
  fields_["phase"] = phase;
  fields_["observedGeneration"] = generation_;
  const bool ready = phase == kRunning || phase == kSucceeded;
  const bool failed = phase == kFailed;
  SetCondition("Ready", ready, reason, message, now);
  SetCondition("Reconciling", !ready && !failed, reason, message, now);
  SetCondition("Stalled", failed, reason, message, now);
  if (phase == kRunning || FindCondition(fields_["conditions"], "Running") != nullptr) {
    SetCondition("Running", phase == kRunning, reason, message, now);
  }
  if (phase == kSucceeded) SetCondition("Complete", true, reason, message, now);
  if (failed) SetCondition("Failed", true, reason, message, now);
  if (IsTerminal(phase)) fields_["completionTime"] = KubernetesTime(now);
}

json OperatorStatus::Patch() const {
  json patch = identity_;
  patch["status"] = fields_;
  return patch;
}

}  // namespace fusion::op
