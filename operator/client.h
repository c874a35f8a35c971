// The client interface over which controllers see objects: served by the embedded store and, later, by a
// kube-apiserver. One conformance suite (operator/conformance_test.h) runs over both.
//
// Objects are Kubernetes JSON values: {apiVersion, kind, metadata, spec, status}.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace fusion::op {

/// A kind of object, as in the API's paths.
struct Resource {
  std::string group;    ///< fusion.dev
  std::string version;  ///< v1alpha1
  std::string plural;   ///< fusionjobs
  std::string kind;     ///< FusionJob
  bool namespaced = true;
};

extern const Resource kFusionJobs;
extern const Resource kCompnodes;

struct ObjectKey {
  std::string namespace_name;  ///< empty for cluster-scoped kinds
  std::string name;
  auto operator<=>(const ObjectKey&) const = default;
  std::string ToString() const;
};

enum class EventType { kAdded, kModified, kDeleted, kBookmark };

struct WatchEvent {
  EventType type;
  nlohmann::json object;
};

struct ObjectList {
  std::vector<nlohmann::json> items;
  std::string resource_version;
};

/// A running watch; destroying it stops it and waits for the callback in progress.
class Watch {
 public:
  virtual ~Watch() = default;
};

/// Error codes: NOT_FOUND (404), ALREADY_EXISTS (409 on create), ABORTED (409 conflict on write),
/// OUT_OF_RANGE (410: the resourceVersion is too old, list again), INVALID_ARGUMENT (422), UNAVAILABLE.
/// Thread-safe.
class Client {
 public:
  virtual ~Client() = default;

  virtual absl::StatusOr<nlohmann::json> Create(const Resource& resource, const nlohmann::json& object) = 0;
  virtual absl::StatusOr<nlohmann::json> Get(const Resource& resource, const ObjectKey& key) = 0;
  virtual absl::StatusOr<ObjectList> List(const Resource& resource, const std::string& namespace_name) = 0;

  /// Replaces; metadata.resourceVersion, when present, must be the stored one. Status is left as it is.
  virtual absl::StatusOr<nlohmann::json> Update(const Resource& resource, const nlohmann::json& object) = 0;

  /// Server-side apply of the main resource or of `status`: `patch` is the whole set of fields that
  /// `field_manager` owns; an owned field left out is deleted; with metadata.resourceVersion it is a
  /// compare-and-swap; `force` takes fields over.
  virtual absl::StatusOr<nlohmann::json> Apply(const Resource& resource, const nlohmann::json& patch,
                                               const std::string& field_manager, bool force, bool status) = 0;

  /// Sets deletionTimestamp where finalizers remain, else removes. `uid` non-empty: a precondition.
  virtual absl::Status Delete(const Resource& resource, const ObjectKey& key, const std::string& uid) = 0;

  /// Events after `resource_version`, in order, from a thread of the client's. `on_end` is called once when
  /// the watch ends by itself: OUT_OF_RANGE, or UNAVAILABLE.
  virtual absl::StatusOr<std::unique_ptr<Watch>> StartWatch(const Resource& resource,
                                                            const std::string& namespace_name,
                                                            const std::string& resource_version,
                                                            std::function<void(const WatchEvent&)> on_event,
                                                            std::function<void(absl::Status)> on_end) = 0;
};

}  // namespace fusion::op
