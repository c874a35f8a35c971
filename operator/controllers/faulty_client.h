// For tests: a client that fails where it is told to, over one that works.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "operator/client.h"

namespace fusion::op {

class FaultyClient : public Client {
 public:
  explicit FaultyClient(Client& client) : client_(client) {}

  /// Called before each list, watch and write with its name ("list", "watch", "create", "update", "apply",
  /// "delete"); what it returns but OK is the answer.
  void SetFault(std::function<absl::Status(const std::string& verb)> fault) {
    absl::MutexLock lock(&mutex_);
    fault_ = std::move(fault);
  }

  /// Ends the running watches with `status`; events after that reach nobody.
  void EndWatches(const absl::Status& status) {
    std::vector<std::shared_ptr<WatchState>> watches;
    {
      absl::MutexLock lock(&mutex_);
      for (const std::weak_ptr<WatchState>& watch : watches_) {
        if (auto running = watch.lock()) watches.push_back(std::move(running));
      }
      watches_.clear();
    }
    for (const auto& watch : watches) watch->End(status);
  }

  absl::StatusOr<nlohmann::json> Create(const Resource& resource, const nlohmann::json& object) override {
    if (absl::Status status = Fault("create"); !status.ok()) return status;
    return client_.Create(resource, object);
  }
  absl::StatusOr<nlohmann::json> Get(const Resource& resource, const ObjectKey& key) override {
    return client_.Get(resource, key);
  }
  absl::StatusOr<ObjectList> List(const Resource& resource, const std::string& namespace_name) override {
    if (absl::Status status = Fault("list"); !status.ok()) return status;
    return client_.List(resource, namespace_name);
  }
  absl::StatusOr<nlohmann::json> Update(const Resource& resource, const nlohmann::json& object) override {
    if (absl::Status status = Fault("update"); !status.ok()) return status;
    return client_.Update(resource, object);
  }
  absl::StatusOr<nlohmann::json> Apply(const Resource& resource, const nlohmann::json& patch,
                                       const std::string& field_manager, bool force, bool status) override {
    if (absl::Status fault = Fault("apply"); !fault.ok()) return fault;
    return client_.Apply(resource, patch, field_manager, force, status);
  }
  absl::Status Delete(const Resource& resource, const ObjectKey& key, const std::string& uid) override {
    if (absl::Status status = Fault("delete"); !status.ok()) return status;
    return client_.Delete(resource, key, uid);
  }
  absl::StatusOr<std::unique_ptr<Watch>> StartWatch(const Resource& resource,
                                                    const std::string& namespace_name,
                                                    const std::string& resource_version,
                                                    std::function<void(const WatchEvent&)> on_event,
                                                    std::function<void(absl::Status)> on_end) override {
    if (absl::Status status = Fault("watch"); !status.ok()) return status;
    auto state = std::make_shared<WatchState>(std::move(on_event), std::move(on_end));
    auto started = client_.StartWatch(
        resource, namespace_name, resource_version, [state](const WatchEvent& event) { state->Pass(event); },
        [state](const absl::Status& status) { state->End(status); });
    if (!started.ok()) return started.status();
    absl::MutexLock lock(&mutex_);
    watches_.push_back(state);
    return std::make_unique<FaultyWatch>(state, *std::move(started));
  }

 private:
  class WatchState {
   public:
    WatchState(std::function<void(const WatchEvent&)> on_event, std::function<void(absl::Status)> on_end)
        : on_event_(std::move(on_event)), on_end_(std::move(on_end)) {}

    void Pass(const WatchEvent& event) {
      if (!Enter(false)) return;
      on_event_(event);
      Leave();
    }
    void End(const absl::Status& status) {
      if (!Enter(true)) return;
      on_end_(status);
      Leave();
    }
    /// No callback runs after this.
    void Close() {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
      const auto idle = [this] { return callbacks_ == 0; };
      mutex_.Await(absl::Condition(&idle));
    }

   private:
    bool Enter(bool last) {
      absl::MutexLock lock(&mutex_);
      if (ended_) return false;
      ended_ = last;
      ++callbacks_;
      return true;
    }
    void Leave() {
      absl::MutexLock lock(&mutex_);
      --callbacks_;
    }

    const std::function<void(const WatchEvent&)> on_event_;
    const std::function<void(absl::Status)> on_end_;
    absl::Mutex mutex_;
    bool ended_ ABSL_GUARDED_BY(mutex_) = false;
    int callbacks_ ABSL_GUARDED_BY(mutex_) = 0;  ///< in progress
  };

  class FaultyWatch : public Watch {
   public:
    FaultyWatch(std::shared_ptr<WatchState> state, std::unique_ptr<Watch> watch)
        : state_(std::move(state)), watch_(std::move(watch)) {}
    ~FaultyWatch() override { state_->Close(); }

   private:
    const std::shared_ptr<WatchState> state_;
    const std::unique_ptr<Watch> watch_;
  };

  absl::Status Fault(const std::string& verb) {
    std::function<absl::Status(const std::string&)> fault;
    {
      absl::MutexLock lock(&mutex_);
      fault = fault_;
    }
    return fault ? fault(verb) : absl::OkStatus();
  }

  Client& client_;
  absl::Mutex mutex_;
  std::function<absl::Status(const std::string&)> fault_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<WatchState>> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fusion::op
