#include "operator/store/object_store.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "operator/conformance_test.h"
#include "operator/store/object_files.h"
#include "tests/support/process.h"

namespace fusion::op {
namespace {

using nlohmann::json;

class StoreUnderTest : public ClientUnderTest {
 public:
  explicit StoreUnderTest(bool files) {
    ObjectStoreOptions options;
    if (files) options.folder = folder_.path();
    auto store = ObjectStore::Open(std::move(options), {kFusionJobs, kCompnodes});
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  Client& client() override { return *store_; }
  void ForgetHistory() override { store_->ForgetHistory(); }

 private:
  testing::ScratchFolder folder_;
  std::unique_ptr<ObjectStore> store_;
};

INSTANTIATE_TEST_SUITE_P(InMemory, ClientConformance, ::testing::Values(ClientFactory([] {
                           return std::make_unique<StoreUnderTest>(false);
                         })));
INSTANTIATE_TEST_SUITE_P(InFiles, ClientConformance, ::testing::Values(ClientFactory([] {
                           return std::make_unique<StoreUnderTest>(true);
                         })));

json Node(const std::string& name) {
  return {{"apiVersion", "fusion.dev/v1alpha1"},
          {"kind", "Compnode"},
          {"metadata", {{"name", name}}},
          {"spec", {{"cluster", "site-a"}}}};
}

std::unique_ptr<ObjectStore> OpenAt(const std::string& folder, size_t history = 4096) {
  ObjectStoreOptions options;
  options.folder = folder;
  options.history = history;
  auto store = ObjectStore::Open(std::move(options), {kFusionJobs, kCompnodes});
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

TEST(ObjectStoreTest, ReopeningKeepsObjectsAndNeverRepeatsVersions) {
  testing::ScratchFolder folder;
  json kept;
  std::string last;
  {
    auto store = OpenAt(folder.path());
    kept = *store->Create(kCompnodes, Node("a"));
    ASSERT_TRUE(store->Create(kCompnodes, Node("b")).ok());
    ASSERT_TRUE(store->Delete(kCompnodes, {"", "b"}, "").ok());
    last = store->List(kCompnodes, "")->resource_version;
  }
  auto store = OpenAt(folder.path());
  EXPECT_EQ(*store->Get(kCompnodes, {"", "a"}), kept);
  EXPECT_TRUE(absl::IsNotFound(store->Get(kCompnodes, {"", "b"}).status()));
  const json next = *store->Create(kCompnodes, Node("c"));
  EXPECT_GT(std::stoll(ResourceVersionOf(next)), std::stoll(last));
  WatchLog log;
  EXPECT_TRUE(absl::IsOutOfRange(log.Start(*store, kCompnodes, ResourceVersionOf(kept))));
}

TEST(ObjectStoreTest, AFolderHasOneWriterAndManyReaders) {
  testing::ScratchFolder folder;
  auto store = OpenAt(folder.path());
  ASSERT_TRUE(store->Create(kCompnodes, Node("a")).ok());
  ObjectStoreOptions options;
  options.folder = folder.path();
  EXPECT_TRUE(absl::IsFailedPrecondition(ObjectStore::Open(options, {kCompnodes}).status()));
  auto read = ReadStoredObjects(folder.path(), kCompnodes);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ(read->front(), *store->Get(kCompnodes, {"", "a"}));
}

TEST(ObjectStoreTest, ReadersSeeWholeObjectsWhileTheyAreWritten) {
  testing::ScratchFolder folder;
  auto store = OpenAt(folder.path());
  json node = Node("a");
  node["spec"]["taints"] = json::array();
  for (int i = 0; i < 200; ++i) node["spec"]["taints"].push_back({{"key", absl::StrCat("taint-", i)}});
  ASSERT_TRUE(store->Create(kCompnodes, node).ok());
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; i < 200; ++i) {
      node["spec"]["cluster"] = absl::StrCat("site-", i);
      EXPECT_TRUE(store->Update(kCompnodes, node).ok());
      EXPECT_TRUE(store->Create(kCompnodes, Node("b")).ok());
      EXPECT_TRUE(store->Delete(kCompnodes, {"", "b"}, "").ok());
    }
    done = true;
  });
  while (!done) {
    auto read = ReadStoredObjects(folder.path(), kCompnodes);
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) break;
    EXPECT_EQ(read->front()["spec"]["taints"].size(), 200u);
  }
  writer.join();
}

TEST(ObjectStoreTest, FieldsOfANewerVersionSurvive) {
  testing::ScratchFolder folder;
  {
    auto store = OpenAt(folder.path());
    json node = Node("a");
    node["spec"]["fromTheFuture"] = {{"x", {1, 2}}};
    ASSERT_TRUE(store->Create(kCompnodes, node).ok());
  }
  auto store = OpenAt(folder.path());
  json status = Node("a");
  status["status"] = {{"assignments", {"job/0"}}};
  ASSERT_TRUE(store->Apply(kCompnodes, status, "one", false, true).ok());
  const json node = *store->Get(kCompnodes, {"", "a"});
  EXPECT_EQ(*Find(node, {"spec", "fromTheFuture", "x"}), json({1, 2}));
}

TEST(ObjectStoreTest, ADamagedFileIsNamed) {
  testing::ScratchFolder folder;
  { OpenAt(folder.path()); }
  for (const char* text :
       {"{\"kind\": \"Comp", "[]", "{\"kind\": \"Compnode\", \"metadata\": {\"name\": \"other\"}}"}) {
    std::ofstream(folder.path() + "/compnodes/bad.json") << text;
    ObjectStoreOptions options;
    options.folder = folder.path();
    const absl::Status status = ObjectStore::Open(options, {kCompnodes}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_NE(status.message().find("bad.json"), absl::string_view::npos) << status;
  }
}

TEST(ObjectStoreTest, AWatchThatFallsBehindEndsWithOutOfRange) {
  auto store = OpenAt("", /*history=*/4);
  absl::Notification inside;
  absl::Notification go_on;
  absl::Notification ended;
  absl::Status end;
  auto watch = store->StartWatch(
      kCompnodes, "", "0",
      [&](const WatchEvent&) {
        if (!inside.HasBeenNotified()) inside.Notify();
        go_on.WaitForNotification();
      },
      [&](absl::Status status) {
        end = std::move(status);
        ended.Notify();
      });
  ASSERT_TRUE(watch.ok());
  ASSERT_TRUE(store->Create(kCompnodes, Node("first")).ok());
  inside.WaitForNotification();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(store->Create(kCompnodes, Node(absl::StrCat("n", i))).ok());
  go_on.Notify();
  ended.WaitForNotification();
  EXPECT_TRUE(absl::IsOutOfRange(end)) << end;
}

}  // namespace
}  // namespace fusion::op
