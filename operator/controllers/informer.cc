#include "operator/controllers/informer.h"

#include <optional>
#include <set>
#include <utility>

#include "operator/log.h"
#include "operator/object.h"

namespace fusion::op {

using nlohmann::json;

InformerState NextInformerState(InformerState state, const absl::Status& status) {
  if (absl::IsOutOfRange(status)) return InformerState::kEmpty;
  return state == InformerState::kListed || status.ok() ? InformerState::kListed : InformerState::kEmpty;
}

Informer::Informer(Client& client, Resource resource, std::string namespace_name, Handler handler,
                   Backoff backoff)
    : client_(client),
      resource_(std::move(resource)),
      namespace_name_(std::move(namespace_name)),
      handler_(std::move(handler)),
      backoff_(backoff) {}

Informer::~Informer() { Stop(); }

void Informer::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Informer::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool Informer::WaitForSync(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&synced_), timeout);
}

std::shared_ptr<const json> Informer::Get(const ObjectKey& key) const {
  absl::MutexLock lock(&mutex_);
  const auto found = objects_.find(key);
  return found == objects_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<const json>> Informer::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Object> objects;
  objects.reserve(objects_.size());
  for (const auto& [key, object] : objects_) objects.push_back(object);
  return objects;
}

void Informer::Run() {
  InformerState state = InformerState::kEmpty;
  int failures = 0;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      progressed_ = false;
    }
    const bool listing = state == InformerState::kEmpty;
    const absl::Status status = listing ? ListOnce() : WatchOnce();
    state = NextInformerState(state, status);
    if (listing && status.ok()) continue;
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    failures = progressed_ ? 0 : failures + 1;
    if (failures == 0) continue;
    if (!absl::IsOutOfRange(status)) LogWarning("list or watch failed", "informer", resource_.plural, status);
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), backoff_.After(failures - 1));
  }
}

absl::Status Informer::ListOnce() {
  absl::StatusOr<ObjectList> list = client_.List(resource_, namespace_name_);
  if (!list.ok()) return list.status();
  std::set<ObjectKey> gone;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, object] : objects_) gone.insert(key);
  }
  for (json& object : list->items) {
    const ObjectKey key = KeyOf(object);
    gone.erase(key);
    Store(key, std::make_shared<const json>(std::move(object)));
  }
  for (const ObjectKey& key : gone) Store(key, nullptr);
  absl::MutexLock lock(&mutex_);
  resource_version_ = list->resource_version;
  synced_ = true;
  return absl::OkStatus();
}

absl::Status Informer::WatchOnce() {
  std::string from;
  {
    absl::MutexLock lock(&mutex_);
    from = resource_version_;
  }
  std::optional<absl::Status> end;  // guarded by mutex_
  absl::StatusOr<std::unique_ptr<Watch>> watch = client_.StartWatch(
      resource_, namespace_name_, from, [this](const WatchEvent& event) { OnEvent(event); },
      [this, &end](absl::Status status) {
        absl::MutexLock lock(&mutex_);
        end = std::move(status);
      });
  if (!watch.ok()) return watch.status();
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    const auto over = [this, &end] {
      mutex_.AssertReaderHeld();
      return stopping_ || end.has_value();
    };
    mutex_.Await(absl::Condition(&over));
    if (end.has_value()) status = *end;
  }
  watch->reset();
  return status;
}

void Informer::OnEvent(const WatchEvent& event) {
  if (event.type != EventType::kBookmark) {
    const bool deleted = event.type == EventType::kDeleted;
    Store(KeyOf(event.object), deleted ? nullptr : std::make_shared<const json>(event.object));
  }
  absl::MutexLock lock(&mutex_);
  resource_version_ = ResourceVersionOf(event.object);
  progressed_ = true;
}

void Informer::Store(const ObjectKey& key, const Object& now) {
  Object before;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = objects_.find(key);
    if (found != objects_.end()) before = found->second;
    if (now == nullptr) {
      objects_.erase(key);
    } else {
      objects_[key] = now;
    }
  }
  const bool same =
      before != nullptr && now != nullptr && ResourceVersionOf(*before) == ResourceVersionOf(*now);
  if (same || before == now) return;
  // A list may show a new object under an old name: that one is gone.
  if (before != nullptr && now != nullptr && UidOf(*before) != UidOf(*now)) {
    handler_(before.get(), nullptr);
    before = nullptr;
  }
  handler_(before.get(), now.get());
}

}  // namespace fusion::op
