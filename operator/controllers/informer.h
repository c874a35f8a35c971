// A local copy of all objects of a kind, kept by list and watch.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "operator/client.h"
#include "operator/controllers/workqueue.h"

namespace fusion::op {

enum class InformerState {
  kEmpty,   ///< knows nothing, or too little: list
  kListed,  ///< knows all up to a resourceVersion: watch from there
};

/// The state after the list or the watch of `state` has ended with `status`: OUT_OF_RANGE (410) leads to a
/// new list, whatever else ends a watch to a watch from where it stood.
InformerState NextInformerState(InformerState state, const absl::Status& status);

/// Thread-safe. Handlers are called one at a time; from the start on, every difference between two states of
/// the copy reaches them, also those that a new list shows (what is gone from it is reported as deleted).
class Informer {
 public:
  /// `before` is null for an added object, `now` for a deleted one.
  using Handler = std::function<void(const nlohmann::json* before, const nlohmann::json* now)>;

  /// `client` outlives the informer. `namespace_name` empty: all.
  Informer(Client& client, Resource resource, std::string namespace_name, Handler handler,
           Backoff backoff = {absl::Milliseconds(100), absl::Seconds(30)});
  ~Informer();

  void Start();
  /// Waits for the handler in progress. Idempotent.
  void Stop();

  /// False: no complete list within the time.
  bool WaitForSync(absl::Duration timeout);

  /// Null: not there.
  std::shared_ptr<const nlohmann::json> Get(const ObjectKey& key) const;
  std::vector<std::shared_ptr<const nlohmann::json>> List() const;

 private:
  using Object = std::shared_ptr<const nlohmann::json>;

  void Run();
  absl::Status ListOnce();
  /// Starts a watch and waits for its end.
  absl::Status WatchOnce();
  void OnEvent(const WatchEvent& event);
  void Store(const ObjectKey& key, const Object& now);

  Client& client_;
  const Resource resource_;
  const std::string namespace_name_;
  const Handler handler_;
  const Backoff backoff_;

  mutable absl::Mutex mutex_;
  std::map<ObjectKey, Object> objects_ ABSL_GUARDED_BY(mutex_);
  std::string resource_version_ ABSL_GUARDED_BY(mutex_);
  bool synced_ ABSL_GUARDED_BY(mutex_) = false;
  bool progressed_ ABSL_GUARDED_BY(mutex_) = false;  ///< the current watch has given something
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fusion::op
