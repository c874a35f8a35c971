// What controllers rely on in a Client, as tests over a factory: the embedded store and a kube-apiserver pass
// the same ones. A test program includes this header once and instantiates ClientConformance.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "nlohmann/json.hpp"
#include "operator/client.h"
#include "operator/object.h"

namespace fusion::op {

/// An empty place for objects.
class ClientUnderTest {
 public:
  virtual ~ClientUnderTest() = default;
  virtual Client& client() = 0;
  /// Makes every resourceVersion handed out so far, but the newest, too old to watch from.
  virtual void ForgetHistory() = 0;
};

using ClientFactory = std::function<std::unique_ptr<ClientUnderTest>()>;

/// Collects a watch's events; Next and End wait for them.
class WatchLog {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(20);

  absl::Status Start(Client& client, const Resource& resource, const std::string& resource_version) {
    auto started = client.StartWatch(
        resource, "", resource_version,
        [this](const WatchEvent& event) {
          if (event.type == EventType::kBookmark) return;
          absl::MutexLock lock(&mutex_);
          events_.push_back(event);
        },
        [this](absl::Status status) {
          absl::MutexLock lock(&mutex_);
          end_ = std::move(status);
          ended_ = true;
        });
    if (!started.ok()) return started.status();
    watch_ = *std::move(started);
    return absl::OkStatus();
  }

  WatchEvent Next() {
    absl::MutexLock lock(&mutex_);
    const auto arrived = [this] { return taken_ < events_.size(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&arrived), kPatience)) {
      ADD_FAILURE() << "no event in time";
      return {EventType::kBookmark, nlohmann::json::object()};
    }
    return events_[taken_++];
  }

  absl::Status End() {
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&ended_), kPatience))
      return absl::DeadlineExceededError("no end");
    return end_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<WatchEvent> events_;
  size_t taken_ = 0;
  absl::Status end_;
  bool ended_ = false;
  std::unique_ptr<Watch> watch_;  // first to go: it uses the rest
};

class ClientConformance : public ::testing::TestWithParam<ClientFactory> {
 protected:
  ClientConformance() : place_(GetParam()()) {}

  Client& client() { return place_->client(); }
  ClientUnderTest& place() { return *place_; }

  static nlohmann::json Job(const std::string& name) {
    return {{"apiVersion", "fusion.dev/v1alpha1"},
            {"kind", "FusionJob"},
            {"metadata", {{"name", name}, {"namespace", "default"}}},
            {"spec",
             {{"model", {{"family", "mlp"}, {"config", {{"inputs", 10}, {"outputs", 1}}}}},
              {"data", {{"kind", "table"}, {"uri", "table.csv"}}},
              {"training", {{"steps", 10}}}}}};
  }
  static nlohmann::json Compnode(const std::string& name) {
    return {{"apiVersion", "fusion.dev/v1alpha1"},
            {"kind", "Compnode"},
            {"metadata", {{"name", name}}},
            {"spec", {{"cluster", "site-a"}}}};
  }
  /// Names the job and nothing else: the frame of an applied object.
  static nlohmann::json Frame(const std::string& name) {
    nlohmann::json frame = Job(name);
    frame.erase("spec");
    return frame;
  }
  static nlohmann::json Condition(const std::string& type, const std::string& status) {
    return {{"type", type},
            {"status", status},
            {"reason", "Test"},
            {"message", ""},
            {"lastTransitionTime", "2026-01-01T00:00:00Z"}};
  }
  static ObjectKey Key(const std::string& name) { return {"default", name}; }

  nlohmann::json Created(const nlohmann::json& object) {
    auto created = client().Create(kFusionJobs, object);
    EXPECT_TRUE(created.ok()) << created.status();
    return created.ok() ? *created : nlohmann::json::object();
  }
  nlohmann::json Stored(const std::string& name) {
    auto stored = client().Get(kFusionJobs, Key(name));
    EXPECT_TRUE(stored.ok()) << stored.status();
    return stored.ok() ? *stored : nlohmann::json::object();
  }
  absl::Status ApplyStatus(const std::string& name, const std::string& manager, const nlohmann::json& status,
                           bool force = false) {
    nlohmann::json patch = Frame(name);
    patch["status"] = status;
    return client().Apply(kFusionJobs, patch, manager, force, true).status();
  }

 private:
  std::unique_ptr<ClientUnderTest> place_;
};

// ------------------------------------------------------------------------------------------ create, get,
// list

TEST_P(ClientConformance, CreateGivesIdentityAndDropsStatus) {
  nlohmann::json job = Job("a");
  job["status"] = {{"phase", "Succeeded"}};
  const nlohmann::json created = Created(job);
  EXPECT_FALSE(UidOf(created).empty());
  EXPECT_FALSE(ResourceVersionOf(created).empty());
  EXPECT_FALSE(StringAt(created, {"metadata", "creationTimestamp"}).empty());
  EXPECT_EQ(IntAt(created, {"metadata", "generation"}), 1);
  EXPECT_EQ(Find(created, {"status", "phase"}), nullptr);
  EXPECT_EQ(Stored("a"), created);
}

TEST_P(ClientConformance, CreateTwiceIsRefused) {
  const nlohmann::json first = Created(Job("a"));
  EXPECT_TRUE(absl::IsAlreadyExists(client().Create(kFusionJobs, Job("a")).status()));
  EXPECT_EQ(Stored("a"), first);
}

TEST_P(ClientConformance, OfManyCreatorsOneWins) {
  std::vector<std::thread> creators;
  creators.reserve(8);
  std::atomic<int> created{0};
  std::atomic<int> refused{0};
  for (int i = 0; i < 8; ++i) {
    creators.emplace_back([&] {
      const absl::Status status = client().Create(kFusionJobs, Job("a")).status();
      if (status.ok()) ++created;
      if (absl::IsAlreadyExists(status)) ++refused;
    });
  }
  for (std::thread& creator : creators) creator.join();
  EXPECT_EQ(created, 1);
  EXPECT_EQ(refused, 7);
}

TEST_P(ClientConformance, MissingObjectsAreNotFound) {
  EXPECT_TRUE(absl::IsNotFound(client().Get(kFusionJobs, Key("none")).status()));
  EXPECT_TRUE(absl::IsNotFound(client().Update(kFusionJobs, Job("none")).status()));
  EXPECT_TRUE(absl::IsNotFound(client().Delete(kFusionJobs, Key("none"), "")));
  EXPECT_TRUE(absl::IsNotFound(ApplyStatus("none", "one", {{"phase", "Pending"}})));
}

TEST_P(ClientConformance, ObjectsThatTheKindDoesNotAllowAreInvalid) {
  nlohmann::json unnamed = Job("a");
  unnamed["metadata"].erase("name");
  EXPECT_TRUE(absl::IsInvalidArgument(client().Create(kFusionJobs, unnamed).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client().Create(kFusionJobs, Job("../escape")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(client().Create(kFusionJobs, Compnode("a")).status()));
}

TEST_P(ClientConformance, ListHasEveryObjectOfItsKind) {
  for (const char* name : {"c", "a", "b"}) Created(Job(name));
  ASSERT_TRUE(client().Create(kCompnodes, Compnode("n")).ok());
  auto list = client().List(kFusionJobs, "default");
  ASSERT_TRUE(list.ok()) << list.status();
  std::vector<std::string> names;
  for (const nlohmann::json& item : list->items) names.push_back(KeyOf(item).name);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_FALSE(list->resource_version.empty());
  auto elsewhere = client().List(kFusionJobs, "elsewhere");
  ASSERT_TRUE(elsewhere.ok());
  EXPECT_TRUE(elsewhere->items.empty());
  auto compnodes = client().List(kCompnodes, "");
  ASSERT_TRUE(compnodes.ok());
  EXPECT_EQ(compnodes->items.size(), 1u);
}

// ------------------------------------------------------------------------------------------ update

TEST_P(ClientConformance, UpdateFromAStaleVersionConflicts) {
  const nlohmann::json first = Created(Job("a"));
  nlohmann::json winner = first;
  winner["spec"]["training"]["steps"] = 20;
  ASSERT_TRUE(client().Update(kFusionJobs, winner).ok());
  nlohmann::json loser = first;
  loser["spec"]["training"]["steps"] = 30;
  EXPECT_TRUE(absl::IsAborted(client().Update(kFusionJobs, loser).status()));
  EXPECT_EQ(IntAt(Stored("a"), {"spec", "training", "steps"}), 20);
  loser["metadata"].erase("resourceVersion");
  EXPECT_TRUE(client().Update(kFusionJobs, loser).ok());
  EXPECT_EQ(IntAt(Stored("a"), {"spec", "training", "steps"}), 30);
}

TEST_P(ClientConformance, NoIncrementIsLostBetweenWriters) {
  Created(Job("a"));
  const auto increment = [&] {
    for (int i = 0; i < 25; ++i) {
      absl::Status status = absl::AbortedError("not tried");
      while (absl::IsAborted(status)) {
        nlohmann::json job = Stored("a");
        const int64_t steps = IntAt(job, {"spec", "training", "steps"});
        job["spec"]["training"]["steps"] = steps + 1;
        status = client().Update(kFusionJobs, job).status();
      }
      EXPECT_TRUE(status.ok()) << status;
    }
  };
  std::vector<std::thread> writers;
  writers.reserve(4);
  for (int i = 0; i < 4; ++i) writers.emplace_back(increment);
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(IntAt(Stored("a"), {"spec", "training", "steps"}), 10 + 100);
}

TEST_P(ClientConformance, AWriteThatChangesNothingIsNoWrite) {
  const nlohmann::json first = Created(Job("a"));
  auto again = client().Update(kFusionJobs, first);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(ResourceVersionOf(*again), ResourceVersionOf(first));
  ASSERT_TRUE(ApplyStatus("a", "one", {{"phase", "Pending"}}).ok());
  const nlohmann::json applied = Stored("a");
  ASSERT_TRUE(ApplyStatus("a", "one", {{"phase", "Pending"}}).ok());
  EXPECT_EQ(Stored("a"), applied);
}

TEST_P(ClientConformance, GenerationCountsChangesOfTheSpec) {
  nlohmann::json job = Created(Job("a"));
  job["metadata"]["labels"] = {{"team", "x"}};
  ASSERT_TRUE(client().Update(kFusionJobs, job).ok());
  EXPECT_EQ(IntAt(Stored("a"), {"metadata", "generation"}), 1);
  ASSERT_TRUE(ApplyStatus("a", "one", {{"phase", "Pending"}}).ok());
  EXPECT_EQ(IntAt(Stored("a"), {"metadata", "generation"}), 1);
  job = Stored("a");
  job["spec"]["training"]["steps"] = 20;
  ASSERT_TRUE(client().Update(kFusionJobs, job).ok());
  EXPECT_EQ(IntAt(Stored("a"), {"metadata", "generation"}), 2);
}

TEST_P(ClientConformance, SpecAndStatusAreWrittenApart) {
  Created(Job("a"));
  ASSERT_TRUE(ApplyStatus("a", "one", {{"phase", "Pending"}}).ok());
  nlohmann::json job = Stored("a");
  job["spec"]["training"]["steps"] = 20;
  job["status"]["phase"] = "Succeeded";
  ASSERT_TRUE(client().Update(kFusionJobs, job).ok());
  EXPECT_EQ(StringAt(Stored("a"), {"status", "phase"}), "Pending");
  job["spec"]["training"]["steps"] = 30;
  job["status"] = {{"phase", "Planning"}};
  for (const char* name : {"managedFields", "resourceVersion"}) job["metadata"].erase(name);
  ASSERT_TRUE(client().Apply(kFusionJobs, job, "one", false, true).ok());
  EXPECT_EQ(StringAt(Stored("a"), {"status", "phase"}), "Planning");
  EXPECT_EQ(IntAt(Stored("a"), {"spec", "training", "steps"}), 20);
}

// ------------------------------------------------------------------------------------------ delete

TEST_P(ClientConformance, DeleteHonoursTheUid) {
  const nlohmann::json first = Created(Job("a"));
  ASSERT_TRUE(client().Delete(kFusionJobs, Key("a"), UidOf(first)).ok());
  EXPECT_TRUE(absl::IsNotFound(client().Get(kFusionJobs, Key("a")).status()));
  const nlohmann::json second = Created(Job("a"));
  EXPECT_NE(UidOf(second), UidOf(first));
  EXPECT_TRUE(absl::IsAborted(client().Delete(kFusionJobs, Key("a"), UidOf(first))));
  EXPECT_EQ(UidOf(Stored("a")), UidOf(second));
  nlohmann::json stale = Frame("a");
  stale["metadata"]["uid"] = UidOf(first);
  stale["status"] = {{"phase", "Running"}};
  EXPECT_TRUE(absl::IsAborted(client().Apply(kFusionJobs, stale, "one", false, true).status()));
}

TEST_P(ClientConformance, FinalizersHoldADeletedObject) {
  nlohmann::json job = Job("a");
  job["metadata"]["finalizers"] = {"fusion.dev/workers", "fusion.dev/other"};
  const nlohmann::json created = Created(job);
  WatchLog log;
  ASSERT_TRUE(log.Start(client(), kFusionJobs, ResourceVersionOf(created)).ok());

  ASSERT_TRUE(client().Delete(kFusionJobs, Key("a"), "").ok());
  nlohmann::json deleting = Stored("a");
  EXPECT_TRUE(IsDeleting(deleting));
  EXPECT_EQ(log.Next().type, EventType::kModified);
  const std::string since = StringAt(deleting, {"metadata", "deletionTimestamp"});
  ASSERT_TRUE(client().Delete(kFusionJobs, Key("a"), "").ok());
  EXPECT_EQ(StringAt(Stored("a"), {"metadata", "deletionTimestamp"}), since);

  deleting["metadata"]["finalizers"] = {"fusion.dev/other"};
  deleting["metadata"].erase("deletionTimestamp");  // a client cannot take it back
  deleting["metadata"].erase("resourceVersion");
  ASSERT_TRUE(client().Update(kFusionJobs, deleting).ok());
  EXPECT_TRUE(IsDeleting(Stored("a")));
  EXPECT_EQ(log.Next().type, EventType::kModified);

  deleting["metadata"].erase("finalizers");
  ASSERT_TRUE(client().Update(kFusionJobs, deleting).ok());
  EXPECT_TRUE(absl::IsNotFound(client().Get(kFusionJobs, Key("a")).status()));
  EXPECT_EQ(log.Next().type, EventType::kDeleted);
}

// ------------------------------------------------------------------------------------------ watch

TEST_P(ClientConformance, WatchGivesEventsInOrder) {
  auto list = client().List(kFusionJobs, "");
  ASSERT_TRUE(list.ok());
  WatchLog log;
  ASSERT_TRUE(log.Start(client(), kFusionJobs, list->resource_version).ok());
  nlohmann::json job = Created(Job("a"));
  ASSERT_TRUE(client().Create(kCompnodes, Compnode("n")).ok());  // another kind: no event
  job["spec"]["training"]["steps"] = 20;
  auto updated = client().Update(kFusionJobs, job);
  ASSERT_TRUE(updated.ok());
  ASSERT_TRUE(client().Delete(kFusionJobs, Key("a"), "").ok());

  const WatchEvent added = log.Next();
  EXPECT_EQ(added.type, EventType::kAdded);
  EXPECT_EQ(IntAt(added.object, {"spec", "training", "steps"}), 10);
  const WatchEvent modified = log.Next();
  EXPECT_EQ(modified.type, EventType::kModified);
  EXPECT_EQ(modified.object, *updated);
  const WatchEvent deleted = log.Next();
  EXPECT_EQ(deleted.type, EventType::kDeleted);
  EXPECT_EQ(UidOf(deleted.object), UidOf(job));
  EXPECT_NE(ResourceVersionOf(deleted.object), ResourceVersionOf(modified.object));
}

TEST_P(ClientConformance, WatchResumesAfterAnyVersion) {
  std::vector<std::string> versions;
  versions.reserve(5);
  for (int i = 0; i < 5; ++i) versions.push_back(ResourceVersionOf(Created(Job(absl::StrCat("j", i)))));
  for (int from = 0; from < 4; ++from) {
    WatchLog log;
    ASSERT_TRUE(log.Start(client(), kFusionJobs, versions[from]).ok());
    for (int i = from + 1; i < 5; ++i) {
      const WatchEvent event = log.Next();
      EXPECT_EQ(event.type, EventType::kAdded);
      EXPECT_EQ(KeyOf(event.object).name, absl::StrCat("j", i));
    }
  }
}

TEST_P(ClientConformance, WatchFromAForgottenVersionIsOutOfRange) {
  const std::string old = ResourceVersionOf(Created(Job("a")));
  Created(Job("b"));
  const std::string newest = ResourceVersionOf(Created(Job("c")));
  place().ForgetHistory();
  WatchLog refused;
  absl::Status status = refused.Start(client(), kFusionJobs, old);
  if (status.ok()) status = refused.End();  // an apiserver may say it in the stream
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;

  WatchLog log;
  ASSERT_TRUE(log.Start(client(), kFusionJobs, newest).ok());
  Created(Job("d"));
  EXPECT_EQ(KeyOf(log.Next().object).name, "d");
}

TEST_P(ClientConformance, StoppingAWatchWaitsForItsCallback) {
  auto list = client().List(kFusionJobs, "");
  ASSERT_TRUE(list.ok());
  absl::Notification inside;
  absl::Notification go_on;
  std::atomic<bool> returned{false};
  auto watch = client().StartWatch(
      kFusionJobs, "", list->resource_version,
      [&](const WatchEvent&) {
        inside.Notify();
        go_on.WaitForNotification();
        returned = true;
      },
      [](const absl::Status&) {});
  ASSERT_TRUE(watch.ok());
  Created(Job("a"));
  inside.WaitForNotification();
  std::thread release([&] { go_on.Notify(); });
  watch->reset();
  EXPECT_TRUE(returned);
  release.join();
}

// ------------------------------------------------------------------------------------------ apply

TEST_P(ClientConformance, ApplyCreatesThenMerges) {
  ASSERT_TRUE(client().Apply(kFusionJobs, Job("a"), "one", false, false).ok());
  nlohmann::json patch = Frame("a");
  patch["metadata"]["labels"] = {{"team", "x"}};
  ASSERT_TRUE(client().Apply(kFusionJobs, patch, "two", false, false).ok());
  const nlohmann::json job = Stored("a");
  EXPECT_EQ(IntAt(job, {"spec", "training", "steps"}), 10);
  EXPECT_EQ(StringAt(job, {"metadata", "labels", "team"}), "x");
  EXPECT_EQ(IntAt(job, {"metadata", "generation"}), 1);
}

TEST_P(ClientConformance, AnOwnedFieldLeftOutIsDeleted) {
  Created(Job("a"));
  ASSERT_TRUE(ApplyStatus("a", "one", {{"phase", "Running"}, {"checkpoint", "step-5"}}).ok());
  ASSERT_TRUE(ApplyStatus("a", "two", {{"progress", {{"step", 5}}}}).ok());
  ASSERT_TRUE(ApplyStatus("a", "one", {{"phase", "Running"}}).ok());
  const nlohmann::json job = Stored("a");
  EXPECT_EQ(Find(job, {"status", "checkpoint"}), nullptr);
  EXPECT_EQ(StringAt(job, {"status", "phase"}), "Running");
  EXPECT_EQ(IntAt(job, {"status", "progress", "step"}), 5);
}

TEST_P(ClientConformance, AFieldOfTwoOwnersStaysUntilBothLetGo) {
  Created(Job("a"));
  ASSERT_TRUE(ApplyStatus("a", "one", {{"phase", "Running"}}).ok());
  ASSERT_TRUE(ApplyStatus("a", "two", {{"phase", "Running"}}).ok());  // the same value: shared, no conflict
  ASSERT_TRUE(ApplyStatus("a", "one", nlohmann::json::object()).ok());
  EXPECT_EQ(StringAt(Stored("a"), {"status", "phase"}), "Running");
  ASSERT_TRUE(ApplyStatus("a", "two", nlohmann::json::object()).ok());
  EXPECT_EQ(Find(Stored("a"), {"status", "phase"}), nullptr);
}

TEST_P(ClientConformance, AnotherOwnersFieldConflictsUnlessForced) {
  Created(Job("a"));
  ASSERT_TRUE(ApplyStatus("a", "one", {{"phase", "Running"}, {"checkpoint", "step-5"}}).ok());
  const absl::Status refused = ApplyStatus("a", "two", {{"phase", "Failed"}});
  EXPECT_TRUE(absl::IsAborted(refused));
  EXPECT_NE(refused.message().find("phase"), absl::string_view::npos) << refused;
  EXPECT_EQ(StringAt(Stored("a"), {"status", "phase"}), "Running");

  ASSERT_TRUE(ApplyStatus("a", "two", {{"phase", "Failed"}}, /*force=*/true).ok());
  ASSERT_TRUE(
      ApplyStatus("a", "one", {{"checkpoint", "step-5"}}).ok());  // no longer the owner: deletes nothing
  EXPECT_EQ(StringAt(Stored("a"), {"status", "phase"}), "Failed");
  EXPECT_TRUE(absl::IsAborted(ApplyStatus("a", "one", {{"phase", "Running"}})));
}

TEST_P(ClientConformance, ApplyWithAVersionIsACompareAndSwap) {
  const nlohmann::json first = Created(Job("a"));
  nlohmann::json patch = Frame("a");
  patch["metadata"]["resourceVersion"] = ResourceVersionOf(first);
  patch["status"] = {{"incarnation", 1}};
  ASSERT_TRUE(client().Apply(kFusionJobs, patch, "one", true, true).ok());
  patch["status"] = {{"incarnation", 7}};
  EXPECT_TRUE(absl::IsAborted(client().Apply(kFusionJobs, patch, "one", true, true).status()));
  EXPECT_EQ(IntAt(Stored("a"), {"status", "incarnation"}), 1);
}

TEST_P(ClientConformance, ConditionsMergeByType) {
  Created(Job("a"));
  ASSERT_TRUE(
      ApplyStatus("a", "one", {{"conditions", {Condition("Ready", "False"), Condition("Planned", "True")}}})
          .ok());
  ASSERT_TRUE(ApplyStatus("a", "two", {{"conditions", {Condition("Running", "True")}}}).ok());
  ASSERT_TRUE(ApplyStatus("a", "one", {{"conditions", {Condition("Ready", "True")}}}).ok());
  const nlohmann::json job = Stored("a");
  const nlohmann::json* conditions = Find(job, {"status", "conditions"});
  ASSERT_NE(conditions, nullptr);
  ASSERT_EQ(conditions->size(), 2u);
  EXPECT_EQ((*conditions)[0], Condition("Ready", "True"));
  EXPECT_EQ((*conditions)[1], Condition("Running", "True"));
  EXPECT_TRUE(absl::IsAborted(ApplyStatus("a", "two", {{"conditions", {Condition("Ready", "False")}}})));
  EXPECT_TRUE(absl::IsInvalidArgument(ApplyStatus(
      "a", "two", {{"conditions", {Condition("Running", "True"), Condition("Running", "False")}}})));
}

TEST_P(ClientConformance, LinksMergeByPeerAndDefaultPeerKind) {
  ASSERT_TRUE(client().Create(kCompnodes, Compnode("n")).ok());
  nlohmann::json patch = Compnode("n");
  patch["spec"] = {{"links", {{{"peer", "site-b"}, {"bandwidth", "8Mbps"}, {"latency", "40ms"}}}}};
  ASSERT_TRUE(client().Apply(kCompnodes, patch, "one", false, false).ok());
  patch["spec"]["links"][0] = {
      {"peerKind", "Compnode"}, {"peer", "site-b"}, {"bandwidth", "1Gbps"}, {"latency", "1ms"}};
  ASSERT_TRUE(client().Apply(kCompnodes, patch, "two", false, false).ok());
  patch["spec"]["links"][0] = {
      {"peerKind", "Cluster"}, {"peer", "site-b"}, {"bandwidth", "9Mbps"}, {"latency", "40ms"}};
  ASSERT_TRUE(client().Apply(kCompnodes, patch, "one", true, false).ok());
  auto node = client().Get(kCompnodes, {"", "n"});
  ASSERT_TRUE(node.ok());
  const nlohmann::json* links = Find(*node, {"spec", "links"});
  ASSERT_NE(links, nullptr);
  ASSERT_EQ(links->size(), 2u);
  EXPECT_EQ(StringAt((*links)[0], {"bandwidth"}), "9Mbps");
  EXPECT_EQ(StringAt((*links)[1], {"bandwidth"}), "1Gbps");
}

TEST_P(ClientConformance, PlainListsAreReplacedWhole) {
  nlohmann::json patch = Job("a");
  patch["spec"]["placement"]["clusters"] = {"site-a", "site-b"};
  ASSERT_TRUE(client().Apply(kFusionJobs, patch, "one", false, false).ok());
  patch["spec"]["placement"]["clusters"] = {"site-c"};
  ASSERT_TRUE(client().Apply(kFusionJobs, patch, "one", false, false).ok());
  EXPECT_EQ(*Find(Stored("a"), {"spec", "placement", "clusters"}), nlohmann::json({"site-c"}));
}

TEST_P(ClientConformance, AThousandInterleavingsOfTwoManagersLoseNothing) {
  Created(Job("a"));
  std::mt19937 random(7);
  std::vector<nlohmann::json> expected(2, nlohmann::json::object());
  for (int i = 0; i < 1000; ++i) {
    const bool progress = (random() & 1) != 0;
    nlohmann::json& mine = expected[progress ? 1 : 0];
    mine = nlohmann::json::object();
    if (progress) {
      mine["progress"] = {{"step", i}};
      if ((random() & 1) != 0) mine["progress"]["loss"] = 1.0 / (i + 1);
      if ((random() & 1) != 0) mine["display"] = {{"loss", absl::StrCat(i)}};
    } else {
      mine["phase"] = "Running";
      mine["incarnation"] = i;
      if ((random() & 1) != 0) mine["checkpoint"] = absl::StrCat("step-", i);
      if ((random() & 1) != 0)
        mine["conditions"] = {Condition("Ready", (random() & 1) != 0 ? "True" : "False")};
    }
    ASSERT_TRUE(ApplyStatus("a", progress ? "fusion-progress" : "fusion-operator", mine).ok());
    nlohmann::json both = expected[0];
    both.update(expected[1]);
    ASSERT_EQ(Stored("a")["status"], both) << "after write " << i;
  }
}

TEST_P(ClientConformance, TwoManagersAtOnceLoseNothing) {
  Created(Job("a"));
  constexpr int kWrites = 200;
  std::thread progress([&] {
    for (int i = 1; i <= kWrites; ++i) {
      EXPECT_TRUE(ApplyStatus("a", "fusion-progress", {{"progress", {{"step", i}}}}).ok());
    }
  });
  for (int i = 1; i <= kWrites; ++i) {
    EXPECT_TRUE(ApplyStatus("a", "fusion-operator", {{"phase", "Running"}, {"incarnation", i}}).ok());
  }
  progress.join();
  EXPECT_EQ(
      Stored("a")["status"],
      nlohmann::json({{"phase", "Running"}, {"incarnation", kWrites}, {"progress", {{"step", kWrites}}}}));
}

}  // namespace fusion::op
