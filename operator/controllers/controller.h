// Runs a reconciler over a queue of keys.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "operator/client.h"
#include "operator/controllers/workqueue.h"

namespace fusion::op {

struct ReconcileResult {
  /// Reconcile again after this time though nothing changed; zero: only when something changes.
  absl::Duration requeue_after = absl::ZeroDuration();
};

/// Brings the world to what one object asks for.
///
/// It gets a key, never an event: it reads the object as it is now, and finds out by itself what is to do. It
/// may be called at any time, also when nothing changed, and twice with the same world must do the same. An
/// error means: call again after a backoff that doubles with each error of this key. A wrong object is no
/// error; that is said in its status.
class Reconciler {
 public:
  virtual ~Reconciler() = default;
  virtual absl::StatusOr<ReconcileResult> Reconcile(const ObjectKey& key) = 0;
};

/// Worker threads that take keys from a workqueue. A key is never reconciled by two of them at once.
class Controller {
 public:
  /// `reconciler` outlives the controller.
  Controller(std::string name, Reconciler& reconciler, int workers = 1, Backoff backoff = {});
  ~Controller();

  void Enqueue(const ObjectKey& key) { queue_.Add(key); }
  void EnqueueAfter(const ObjectKey& key, absl::Duration delay) { queue_.AddAfter(key, delay); }

  void Start();
  /// Waits for the reconciliations in progress. Idempotent.
  void Stop();

 private:
  void Work();

  const std::string name_;
  Reconciler& reconciler_;
  const int workers_;
  Workqueue queue_;
  std::vector<std::thread> threads_;
};

}  // namespace fusion::op
