#include "operator/controllers/workqueue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace fusion::op {
namespace {

ObjectKey Key(const std::string& name) { return {"default", name}; }

TEST(WorkqueueTest, AKeyIsQueuedOnce) {
  Workqueue queue;
  for (int i = 0; i < 5; ++i) queue.Add(Key("a"));
  queue.Add(Key("b"));
  EXPECT_EQ(queue.depth(), 2u);
  EXPECT_EQ(queue.Get(), Key("a"));
  EXPECT_EQ(queue.Get(), Key("b"));
}

TEST(WorkqueueTest, AKeyAddedWhileProcessedComesAgainAfterDone) {
  Workqueue queue;
  queue.Add(Key("a"));
  ASSERT_EQ(queue.Get(), Key("a"));
  queue.Add(Key("a"));
  queue.Add(Key("a"));
  EXPECT_EQ(queue.depth(), 0u);
  queue.Done(Key("a"));
  EXPECT_EQ(queue.depth(), 1u);
  EXPECT_EQ(queue.Get(), Key("a"));
  queue.Done(Key("a"));
  EXPECT_EQ(queue.depth(), 0u);
}

TEST(WorkqueueTest, NoTwoWorkersHaveOneKeyAndNoAddIsLost) {
  Workqueue queue;
  constexpr int kKeys = 3;
  std::atomic<int> held[kKeys] = {};
  std::atomic<int64_t> wanted[kKeys] = {};
  std::atomic<int64_t> seen[kKeys] = {};
  std::vector<std::thread> workers;
  for (int i = 0; i < 4; ++i) {
    workers.emplace_back([&] {
      while (const auto key = queue.Get()) {
        const int index = key->name[0] - '0';
        EXPECT_EQ(held[index]++, 0);
        seen[index] = wanted[index].load();
        held[index]--;
        queue.Done(*key);
      }
    });
  }
  for (int i = 0; i < 3000; ++i) {
    ++wanted[i % kKeys];
    queue.Add(Key(absl::StrCat(i % kKeys)));
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  for (int key = 0; key < kKeys; ++key) {
    while (seen[key] != 1000 && absl::Now() < deadline) std::this_thread::yield();
    EXPECT_EQ(seen[key], 1000);
  }
  queue.ShutDown();
  for (std::thread& worker : workers) worker.join();
}

TEST(WorkqueueTest, TheBackoffDoublesUpToItsLimit) {
  const Backoff backoff;
  EXPECT_EQ(backoff.After(0), absl::Milliseconds(5));
  EXPECT_EQ(backoff.After(1), absl::Milliseconds(10));
  EXPECT_EQ(backoff.After(10), absl::Milliseconds(5120));
  EXPECT_EQ(backoff.After(1000), absl::Seconds(1000));
}

TEST(WorkqueueTest, EachKeyFailsForItselfUntilForgotten) {
  Workqueue queue({absl::Milliseconds(20), absl::Seconds(10)});
  const auto wait_for = [&](const std::string& name) {
    const absl::Time start = absl::Now();
    queue.AddFailed(Key(name));
    EXPECT_EQ(queue.Get(), Key(name));
    queue.Done(Key(name));
    return absl::Now() - start;
  };
  EXPECT_GE(wait_for("a"), absl::Milliseconds(20));
  EXPECT_GE(wait_for("a"), absl::Milliseconds(40));
  EXPECT_GE(wait_for("a"), absl::Milliseconds(80));
  EXPECT_LT(wait_for("b"), absl::Milliseconds(80));
  queue.Forget(Key("a"));
  EXPECT_LT(wait_for("a"), absl::Milliseconds(80));
}

TEST(WorkqueueTest, OfSeveralDelaysTheSoonestCounts) {
  Workqueue queue;
  queue.AddAfter(Key("a"), absl::Hours(1));
  queue.AddAfter(Key("a"), absl::Milliseconds(10));
  EXPECT_EQ(queue.depth(), 0u);
  EXPECT_EQ(queue.Get(), Key("a"));
}

TEST(WorkqueueTest, ShutDownWakesTheWaiting) {
  Workqueue queue;
  queue.AddAfter(Key("a"), absl::Hours(1));
  std::thread waiting([&] { EXPECT_EQ(queue.Get(), std::nullopt); });
  queue.ShutDown();
  waiting.join();
  queue.Add(Key("b"));
  EXPECT_EQ(queue.Get(), std::nullopt);
}

}  // namespace
}  // namespace fusion::op
