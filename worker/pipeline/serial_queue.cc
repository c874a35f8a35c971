#include "worker/pipeline/serial_queue.h"

#include <utility>

namespace fusion::worker {

SerialQueue::~SerialQueue() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    waiting_.clear();
  }
  thread_.join();
}

void SerialQueue::Post(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(std::move(work));
}

void SerialQueue::Drain() {
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_.empty() && !running_; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&idle));
}

void SerialQueue::Run() {
  const auto something = [this]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !waiting_.empty(); };
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&something));
      if (stopped_) {
        return;
      }
      work = std::move(waiting_.front());
      waiting_.pop_front();
      running_ = true;
    }
    work();
    work = nullptr;  // what it holds goes before Drain returns
    absl::MutexLock lock(&mutex_);
    running_ = false;
  }
}

}  // namespace fusion::worker
