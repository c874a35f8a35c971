#include "operator/controllers/informer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "operator/controllers/faulty_client.h"
#include "operator/object.h"
#include "operator/store/object_store.h"

namespace fusion::op {
namespace {

using nlohmann::json;

constexpr absl::Duration kPatience = absl::Seconds(20);

json Node(const std::string& name, const std::string& cluster) {
  return {{"apiVersion", "fusion.dev/v1alpha1"},
          {"kind", "Compnode"},
          {"metadata", {{"name", name}}},
          {"spec", {{"cluster", cluster}}}};
}

/// Follows an informer's changes and says when its picture is as wanted.
class InformerTest : public ::testing::Test {
 protected:
  InformerTest()
      : store_(*ObjectStore::Open({}, {kFusionJobs, kCompnodes})),
        client_(*store_),
        informer_(client_, kCompnodes, "",
                  [this](const json* before, const json* now) { OnChange(before, now); },
                  {absl::Milliseconds(1), absl::Milliseconds(10)}) {}
  ~InformerTest() override { informer_.Stop(); }

  void Create(const std::string& name, const std::string& cluster) {
    ASSERT_TRUE(store_->Create(kCompnodes, Node(name, cluster)).ok());
  }
  void Update(const std::string& name, const std::string& cluster) {
    ASSERT_TRUE(store_->Update(kCompnodes, Node(name, cluster)).ok());
  }
  void Delete(const std::string& name) { ASSERT_TRUE(store_->Delete(kCompnodes, {"", name}, "").ok()); }

  bool Reaches(const std::map<std::string, std::string>& wanted) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&] { return picture_ == wanted; };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), kPatience);
  }

  std::unique_ptr<ObjectStore> store_;
  FaultyClient client_;
  absl::Mutex mutex_;
  std::map<std::string, std::string> picture_ ABSL_GUARDED_BY(mutex_);  // name -> cluster
  Informer informer_;

 private:
  void OnChange(const json* before, const json* now) {
    absl::MutexLock lock(&mutex_);
    const json* either = before != nullptr ? before : now;
    if (either == nullptr) {
      ADD_FAILURE() << "a change of nothing to nothing";
      return;
    }
    const std::string name = KeyOf(*either).name;
    const auto known = picture_.find(name);
    EXPECT_EQ(known != picture_.end(), before != nullptr) << name;
    if (known != picture_.end() && before != nullptr) {
      EXPECT_EQ(known->second, StringAt(*before, {"spec", "cluster"}));
    }
    if (now == nullptr) {
      picture_.erase(name);
    } else {
      picture_[name] = StringAt(*now, {"spec", "cluster"});
    }
  }
};

TEST_F(InformerTest, ListsThenFollows) {
  Create("a", "s1");
  informer_.Start();
  ASSERT_TRUE(informer_.WaitForSync(kPatience));
  ASSERT_NE(informer_.Get({"", "a"}), nullptr);
  Create("b", "s1");
  Update("a", "s2");
  EXPECT_TRUE(Reaches({{"a", "s2"}, {"b", "s1"}}));
  Delete("a");
  EXPECT_TRUE(Reaches({{"b", "s1"}}));
  EXPECT_EQ(informer_.Get({"", "a"}), nullptr);
  EXPECT_EQ(informer_.List().size(), 1u);
}

TEST_F(InformerTest, ABrokenWatchResumesWithoutAList) {
  std::atomic<int> lists{0};
  client_.SetFault([&](const std::string& verb) {
    if (verb == "list") ++lists;
    return absl::OkStatus();
  });
  informer_.Start();
  ASSERT_TRUE(informer_.WaitForSync(kPatience));
  for (int i = 0; i < 20; ++i) {
    Create(absl::StrCat("n", i), "s1");
    client_.EndWatches(absl::UnavailableError("connection reset"));
  }
  std::map<std::string, std::string> all;
  for (int i = 0; i < 20; ++i) all[absl::StrCat("n", i)] = "s1";
  EXPECT_TRUE(Reaches(all));
  EXPECT_EQ(lists, 1);
}

TEST_F(InformerTest, AfterGoneItListsAndReportsWhatItMissed) {
  Create("stays", "s1");
  Create("goes", "s1");
  informer_.Start();
  ASSERT_TRUE(Reaches({{"stays", "s1"}, {"goes", "s1"}}));
  // The next watch waits until the history is gone.
  absl::Notification changed;
  client_.SetFault([&](const std::string& verb) {
    if (verb == "watch") changed.WaitForNotification();
    return absl::OkStatus();
  });
  client_.EndWatches(absl::UnavailableError("connection reset"));
  Delete("goes");
  Create("comes", "s2");
  Update("stays", "s3");
  store_->ForgetHistory();
  changed.Notify();
  EXPECT_TRUE(Reaches({{"stays", "s3"}, {"comes", "s2"}}));
}

TEST_F(InformerTest, AnObjectMadeAnewIsDeletedFirst) {
  Create("a", "s1");
  informer_.Start();
  ASSERT_TRUE(Reaches({{"a", "s1"}}));
  absl::Notification changed;
  client_.SetFault([&](const std::string& verb) {
    if (verb == "watch") changed.WaitForNotification();
    return absl::OkStatus();
  });
  client_.EndWatches(absl::OutOfRangeError("gone"));
  Delete("a");
  Create("a", "s2");
  changed.Notify();
  EXPECT_TRUE(Reaches({{"a", "s2"}}));
}

TEST_F(InformerTest, AnyMixOfFaultsEndsInTheTruth) {
  std::mt19937 random(11);
  std::map<std::string, std::string> truth;
  informer_.Start();
  client_.SetFault([n = 0](const std::string&) mutable {
    return ++n % 3 == 0 ? absl::UnavailableError("refused") : absl::OkStatus();
  });
  for (int i = 0; i < 300; ++i) {
    const std::string name = absl::StrCat("n", random() % 5);
    const std::string cluster = absl::StrCat("s", i);
    if (truth.count(name) == 0) {
      Create(name, cluster);
      truth[name] = cluster;
    } else if (random() % 3 == 0) {
      Delete(name);
      truth.erase(name);
    } else {
      Update(name, cluster);
      truth[name] = cluster;
    }
    if (random() % 10 == 0) client_.EndWatches(absl::UnavailableError("connection reset"));
    if (random() % 20 == 0) store_->ForgetHistory();
  }
  EXPECT_TRUE(Reaches(truth));
}

TEST(InformerStateTest, Transitions) {
  using S = InformerState;
  EXPECT_EQ(NextInformerState(S::kEmpty, absl::OkStatus()), S::kListed);
  EXPECT_EQ(NextInformerState(S::kEmpty, absl::UnavailableError("")), S::kEmpty);
  EXPECT_EQ(NextInformerState(S::kListed, absl::UnavailableError("")), S::kListed);
  EXPECT_EQ(NextInformerState(S::kListed, absl::OutOfRangeError("")), S::kEmpty);
}

}  // namespace
}  // namespace fusion::op
