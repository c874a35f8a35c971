// Objects in memory, behind the client interface that a kube-apiserver serves too, optionally kept in files.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "operator/client.h"

namespace fusion::op {

struct ObjectStoreOptions {
  std::string folder;     ///< of the objects' files; empty: memory only
  size_t history = 4096;  ///< events kept for watches; older ones are gone (410)
  std::function<absl::Time()> now = absl::Now;
};

/// resourceVersions count all writes of the store, so that they compare across kinds. A write that changes
/// nothing gives no new version and no event. Thread-safe; must outlive its watches.
class ObjectStore : public Client {
 public:
  /// Reads what `folder` holds and locks it: FAILED_PRECONDITION when another process has it open.
  static absl::StatusOr<std::unique_ptr<ObjectStore>> Open(ObjectStoreOptions options,
                                                           const std::vector<Resource>& resources);
  ~ObjectStore() override;

  absl::StatusOr<nlohmann::json> Create(const Resource& resource, const nlohmann::json& object) override;
  absl::StatusOr<nlohmann::json> Get(const Resource& resource, const ObjectKey& key) override;
  absl::StatusOr<ObjectList> List(const Resource& resource, const std::string& namespace_name) override;
  absl::StatusOr<nlohmann::json> Update(const Resource& resource, const nlohmann::json& object) override;
  absl::StatusOr<nlohmann::json> Apply(const Resource& resource, const nlohmann::json& patch,
                                       const std::string& field_manager, bool force, bool status) override;
  absl::Status Delete(const Resource& resource, const ObjectKey& key, const std::string& uid) override;
  absl::StatusOr<std::unique_ptr<Watch>> StartWatch(const Resource& resource,
                                                    const std::string& namespace_name,
                                                    const std::string& resource_version,
                                                    std::function<void(const WatchEvent&)> on_event,
                                                    std::function<void(absl::Status)> on_end) override;

  /// Forgets all events so far, as a compaction does: watches from older versions get OUT_OF_RANGE.
  void ForgetHistory();

 private:
  class StoreWatch;
  class FolderLock;
  using Objects = std::map<ObjectKey, nlohmann::json>;

  struct Record {
    int64_t version;
    std::string plural;
    EventType type;
    std::shared_ptr<const nlohmann::json> object;
  };

  explicit ObjectStore(ObjectStoreOptions options);
  absl::Status Load(const std::vector<Resource>& resources);

  absl::StatusOr<nlohmann::json*> FindLocked(const Resource& resource, const ObjectKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<nlohmann::json> InsertLocked(const Resource& resource, nlohmann::json object)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Stores `next` in place of `live` unless they are equal; removes it when its last finalizer went while it
  /// is deleted.
  absl::StatusOr<nlohmann::json> CommitLocked(const Resource& resource, const nlohmann::json& live,
                                              nlohmann::json next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<nlohmann::json> RemoveLocked(const Resource& resource, nlohmann::json object)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordLocked(const Resource& resource, EventType type, const nlohmann::json& object)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ObjectStoreOptions options_;
  std::unique_ptr<FolderLock> folder_lock_;

  absl::Mutex mutex_;
  std::map<std::string, Objects> objects_ ABSL_GUARDED_BY(mutex_);  ///< by plural
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 0;                     ///< of the last write
  int64_t forgotten_ ABSL_GUARDED_BY(mutex_) = 0;                   ///< events up to this version are gone
  std::deque<Record> history_ ABSL_GUARDED_BY(mutex_);              ///< ascending versions
};

}  // namespace fusion::op
