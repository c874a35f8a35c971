#include "operator/controllers/controller.h"

#include <optional>
#include <utility>

#include "operator/log.h"

namespace fusion::op {

Controller::Controller(std::string name, Reconciler& reconciler, int workers, Backoff backoff)
    : name_(std::move(name)), reconciler_(reconciler), workers_(workers), queue_(backoff) {}

Controller::~Controller() { Stop(); }

void Controller::Start() {
  for (int i = 0; i < workers_; ++i) threads_.emplace_back([this] { Work(); });
}

void Controller::Stop() {
  queue_.ShutDown();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Controller::Work() {
  while (const std::optional<ObjectKey> key = queue_.Get()) {
    const absl::StatusOr<ReconcileResult> result = reconciler_.Reconcile(*key);
    if (!result.ok()) {
      // A conflict is an ordinary event: somebody wrote first, and the next try reads what he wrote.
      if (!absl::IsAborted(result.status()))
        LogWarning("reconcile failed", name_, key->ToString(), result.status());
      queue_.AddFailed(*key);
    } else {
      queue_.Forget(*key);
      if (result->requeue_after > absl::ZeroDuration()) queue_.AddAfter(*key, result->requeue_after);
    }
    queue_.Done(*key);
  }
}

}  // namespace fusion::op
