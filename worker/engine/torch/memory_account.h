// Counts what LibTorch allocates in host memory, for one engine, and enforces its declared memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>

namespace fusion::worker::engine {

/// Thrown inside LibTorch's allocator; caught at the engine's border.
class MemoryLimitExceeded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bytes held and their peak. Thread-safe: exported tensors are freed on other threads, and may outlive the
/// engine.
class MemoryAccount {
 public:
  /// `limit_bytes` 0: no limit.
  explicit MemoryAccount(int64_t limit_bytes) : limit_(limit_bytes) {}

  /// Throws MemoryLimitExceeded, and charges nothing, where the limit would be passed.
  void Charge(int64_t bytes);
  void Discharge(int64_t bytes) noexcept { current_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t current() const { return current_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  const int64_t limit_;
  std::atomic<int64_t> current_{0};
  std::atomic<int64_t> peak_{0};
};

/// While one lives, what this thread allocates through LibTorch is charged to `account`. Scopes nest. The
/// backward pass of CPU tensors runs on the thread that asks for it, so one scope covers it.
class MemoryScope {
 public:
  explicit MemoryScope(std::shared_ptr<MemoryAccount> account);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  std::shared_ptr<MemoryAccount> outer_;
};

/// Makes the counting allocator LibTorch's allocator for CPU tensors. Idempotent; a process keeps it.
void InstallCountingAllocator();

/// Whether storage with this deleter came from the counting allocator, so that the engine may write to it.
bool IsCountedDeleter(void (*deleter)(void*));

}  // namespace fusion::worker::engine
