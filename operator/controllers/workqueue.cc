#include "operator/controllers/workqueue.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace fusion::op {

absl::Duration Backoff::After(int failures) const {
  absl::Duration delay = base;
  for (int i = 0; i < failures && delay < limit; ++i) delay *= 2;
  return std::min(delay, limit);
}

void Workqueue::AddLocked(const ObjectKey& key) {
  if (shut_down_ || !dirty_.insert(key).second) return;
  if (processing_.count(key) != 0) return;
  ready_.push_back(key);
  changed_.Signal();
}

void Workqueue::Add(const ObjectKey& key) {
  absl::MutexLock lock(&mutex_);
  AddLocked(key);
}

void Workqueue::AddAfter(const ObjectKey& key, absl::Duration delay) {
  absl::MutexLock lock(&mutex_);
  if (shut_down_) return;
  if (delay <= absl::ZeroDuration()) return AddLocked(key);
  const absl::Time due = absl::Now() + delay;
  const auto [entry, inserted] = delayed_.emplace(key, due);
  if (!inserted) entry->second = std::min(entry->second, due);
  changed_.SignalAll();
}

void Workqueue::AddFailed(const ObjectKey& key) {
  absl::Duration delay;
  {
    absl::MutexLock lock(&mutex_);
    delay = backoff_.After(failures_[key]++);
  }
  AddAfter(key, delay);
}

void Workqueue::Forget(const ObjectKey& key) {
  absl::MutexLock lock(&mutex_);
  failures_.erase(key);
}

absl::Time Workqueue::PromoteLocked(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (auto entry = delayed_.begin(); entry != delayed_.end();) {
    if (entry->second <= now) {
      AddLocked(entry->first);
      entry = delayed_.erase(entry);
    } else {
      next = std::min(next, entry->second);
      ++entry;
    }
  }
  return next;
}

std::optional<ObjectKey> Workqueue::Get() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    if (shut_down_) return std::nullopt;
    const absl::Time next = PromoteLocked(absl::Now());
    if (!ready_.empty()) break;
    changed_.WaitWithDeadline(&mutex_, next);
  }
  const ObjectKey key = ready_.front();
  ready_.pop_front();
  dirty_.erase(key);
  processing_.insert(key);
  return key;
}

void Workqueue::Done(const ObjectKey& key) {
  absl::MutexLock lock(&mutex_);
  processing_.erase(key);
  if (dirty_.count(key) == 0) return;
  ready_.push_back(key);
  changed_.Signal();
}

void Workqueue::ShutDown() {
  absl::MutexLock lock(&mutex_);
  shut_down_ = true;
  ready_.clear();
  dirty_.clear();
  delayed_.clear();
  changed_.SignalAll();
}

size_t Workqueue::depth() const {
  absl::MutexLock lock(&mutex_);
  return ready_.size();
}

}  // namespace fusion::op
