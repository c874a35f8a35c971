// Server-side apply and the bookkeeping of field managers, as pure functions of objects.
//
// What a manager owns is in metadata.managedFields, as Kubernetes writes it: one entry for each (manager,
// operation, subresource). Reference: Kubernetes' documentation of server-side apply and its
// structured-merge-diff library.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "operator/client.h"

namespace fusion::op {

struct ApplyOptions {
  std::string manager;
  bool force = false;   ///< take fields over that others own with other values
  bool status = false;  ///< the status subresource: nothing but `status` is applied; else everything but it
  absl::Time now;       ///< time of the manager's entry when it changes
};

/// `live` with `patch` applied: fields of the patch are set and owned, fields that the manager owned and left
/// out are removed unless another owns them. ABORTED names the fields and managers in conflict.
/// INVALID_ARGUMENT: two items of a keyed list have the same key.
absl::StatusOr<nlohmann::json> ApplyPatch(const Resource& resource, const nlohmann::json& live,
                                          const nlohmann::json& patch, const ApplyOptions& options);

/// `next` with the managedFields of `live` brought up to date for a plain write: what changed belongs to
/// `manager` from now on, what is gone belongs to nobody.
nlohmann::json TrackWrite(const Resource& resource, const nlohmann::json& live, nlohmann::json next,
                          const std::string& manager, absl::Time now);

/// RFC 3339 in UTC with whole seconds, as Kubernetes writes times.
std::string KubernetesTime(absl::Time time);

}  // namespace fusion::op
