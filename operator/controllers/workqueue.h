// The queue between what changes and who reconciles it.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "operator/client.h"

namespace fusion::op {

/// Waiting time before try number `failures` + 1 of an item: base, 2 base, 4 base, … at most `limit`.
struct Backoff {
  absl::Duration base = absl::Milliseconds(5);
  absl::Duration limit = absl::Seconds(1000);
  absl::Duration After(int failures) const;
};

/// A key is queued at most once, and never handed to two workers at a time: one that is added while it is
/// processed comes again when its worker is done. Thread-safe.
class Workqueue {
 public:
  explicit Workqueue(Backoff backoff = {}) : backoff_(backoff) {}

  void Add(const ObjectKey& key);
  /// Adds after a delay; of several delays the soonest counts.
  void AddAfter(const ObjectKey& key, absl::Duration delay);
  /// Adds after the backoff of the key's failures so far, and counts one more.
  void AddFailed(const ObjectKey& key);
  /// The key succeeded: its failures are forgotten.
  void Forget(const ObjectKey& key);

  /// The next key, which the caller hands back by Done; nothing after ShutDown.
  std::optional<ObjectKey> Get();
  void Done(const ObjectKey& key);

  /// Wakes all that wait in Get. Keys that are queued are dropped.
  void ShutDown();

  /// Keys ready to be processed.
  size_t depth() const;

 private:
  void AddLocked(const ObjectKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Moves delayed keys whose time has come; the time of the next one.
  absl::Time PromoteLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Backoff backoff_;
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  std::deque<ObjectKey> ready_ ABSL_GUARDED_BY(mutex_);
  std::set<ObjectKey> dirty_ ABSL_GUARDED_BY(mutex_);       ///< in ready_, or to be put there by Done
  std::set<ObjectKey> processing_ ABSL_GUARDED_BY(mutex_);  ///< handed out
  std::map<ObjectKey, absl::Time> delayed_ ABSL_GUARDED_BY(mutex_);
  std::map<ObjectKey, int> failures_ ABSL_GUARDED_BY(mutex_);
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fusion::op
