#include "operator/controllers/controller.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"

namespace fusion::op {
namespace {

const ObjectKey kKey{"default", "a"};

class FunctionReconciler : public Reconciler {
 public:
  explicit FunctionReconciler(std::function<absl::StatusOr<ReconcileResult>(const ObjectKey&)> function)
      : function_(std::move(function)) {}
  absl::StatusOr<ReconcileResult> Reconcile(const ObjectKey& key) override { return function_(key); }

 private:
  const std::function<absl::StatusOr<ReconcileResult>(const ObjectKey&)> function_;
};

TEST(ControllerTest, AnErrorComesAgainUntilItSucceeds) {
  std::atomic<int> calls{0};
  absl::BlockingCounter left(4);
  FunctionReconciler reconciler([&](const ObjectKey& key) -> absl::StatusOr<ReconcileResult> {
    EXPECT_EQ(key, kKey);
    const int call = ++calls;
    left.DecrementCount();
    if (call < 4) return absl::AbortedError("conflict");
    return ReconcileResult();
  });
  Controller controller("test", reconciler, 1, {absl::Milliseconds(1), absl::Seconds(1)});
  controller.Start();
  controller.Enqueue(kKey);
  left.Wait();
  controller.Stop();
  EXPECT_EQ(calls, 4);
}

TEST(ControllerTest, RequeueAfterComesAgainWithoutAChange) {
  absl::BlockingCounter left(3);
  std::atomic<int> calls{0};
  FunctionReconciler reconciler([&](const ObjectKey&) -> absl::StatusOr<ReconcileResult> {
    if (++calls > 3) return ReconcileResult();
    left.DecrementCount();
    return ReconcileResult{absl::Milliseconds(1)};
  });
  Controller controller("test", reconciler);
  controller.Start();
  controller.Enqueue(kKey);
  left.Wait();
}

TEST(ControllerTest, StopWaitsForTheReconciliationInProgress) {
  absl::Notification inside;
  absl::Notification go_on;
  std::atomic<bool> finished{false};
  FunctionReconciler reconciler([&](const ObjectKey&) -> absl::StatusOr<ReconcileResult> {
    inside.Notify();
    go_on.WaitForNotification();
    finished = true;
    return ReconcileResult();
  });
  Controller controller("test", reconciler);
  controller.Start();
  controller.Enqueue(kKey);
  inside.WaitForNotification();
  std::thread release([&] { go_on.Notify(); });
  controller.Stop();
  EXPECT_TRUE(finished);
  release.join();
}

}  // namespace
}  // namespace fusion::op
