// The part of a FusionJob's status that the field manager `fusion-operator` owns, and how phases show as
// conditions.
//
// kstatus: Ready is True while the job is in the state that its spec asks for (Running, Succeeded);
// Reconciling is True on the way there; a failed job has Ready False and Stalled True. Complete and Failed,
// once True, stay so.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "operator/client.h"

namespace fusion::op {

inline constexpr char kOperatorManager[] = "fusion-operator";
inline constexpr char kProgressManager[] = "fusion-progress";

inline constexpr char kPending[] = "Pending";
inline constexpr char kPlanning[] = "Planning";
inline constexpr char kStarting[] = "Starting";
inline constexpr char kRunning[] = "Running";
inline constexpr char kSucceeded[] = "Succeeded";
inline constexpr char kFailed[] = "Failed";

bool IsTerminal(const std::string& phase);
std::string PhaseOf(const nlohmann::json& job);

/// A condition of a list, or null.
const nlohmann::json* FindCondition(const nlohmann::json& conditions, const std::string& type);

/// Sets one condition of a list; lastTransitionTime changes only when the status does.
void SetCondition(nlohmann::json& conditions, const std::string& type, bool status, const std::string& reason,
                  const std::string& message, int64_t observed_generation, absl::Time now);

/// The operator's whole set of fields of one job, from what is stored to what is to be applied.
class OperatorStatus {
 public:
  /// Takes over what the stored object has of these fields.
  explicit OperatorStatus(const nlohmann::json& job);

  /// Sets phase and conditions. `reason` is one word, `message` a sentence; both are of the conditions that
  /// the phase changes.
  void SetPhase(const std::string& phase, const std::string& reason, const std::string& message,
                absl::Time now);

  void SetCondition(const std::string& type, bool status, const std::string& reason,
                    const std::string& message, absl::Time now);
  void Set(const std::string& name, nlohmann::json value) { fields_[name] = std::move(value); }
  void Erase(const std::string& name) { fields_.erase(name); }

  /// The object to apply to the status: a compare-and-swap against the version that was read.
  nlohmann::json Patch() const;

 private:
  nlohmann::json identity_;  ///< apiVersion, kind, and metadata with uid and resourceVersion
  nlohmann::json fields_;
  int64_t generation_ = 0;
};

}  // namespace fusion::op
