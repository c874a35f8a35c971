#include "worker/engine/torch/memory_account.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <new>
#include <utility>

#include "absl/strings/str_format.h"

namespace fusion::worker::engine {
namespace {

// Stands before each block and keeps the block's 64-byte alignment.
struct alignas(64) BlockHeader {
  size_t bytes;
  std::shared_ptr<MemoryAccount> account;
};
static_assert(sizeof(BlockHeader) == 64);

std::shared_ptr<MemoryAccount>& ThreadAccount() {
  thread_local std::shared_ptr<MemoryAccount> account;
  return account;
}

void FreeBlock(void* data) {
  if (data == nullptr) {
    return;
  }
  BlockHeader* header = static_cast<BlockHeader*>(data) - 1;
  if (header->account != nullptr) {
    header->account->Discharge(static_cast<int64_t>(header->bytes));
  }
  header->~BlockHeader();
  c10::free_cpu(header);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &FreeBlock, c10::Device(c10::DeviceType::CPU)};
    }
    std::shared_ptr<MemoryAccount> account = ThreadAccount();
    if (account != nullptr) {
      account->Charge(static_cast<int64_t>(bytes));
    }
    void* block = nullptr;
    try {
      block = c10::alloc_cpu(sizeof(BlockHeader) + bytes);
    } catch (...) {
      if (account != nullptr) {
        account->Discharge(static_cast<int64_t>(bytes));
      }
      throw;
    }
    void* data = new (block) BlockHeader{bytes, std::move(account)} + 1;
    return {data, data, &FreeBlock, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &FreeBlock; }

  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }
};

}  // namespace

void MemoryAccount::Charge(int64_t bytes) {
  const int64_t now = current_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (limit_ > 0 && now > limit_) {
    Discharge(bytes);
    throw MemoryLimitExceeded(absl::StrFormat(
        "memory limit exceeded: %d bytes are held and %d more are needed, the limit is %d bytes", now - bytes,
        bytes, limit_));
  }
  int64_t peak = peak_.load(std::memory_order_relaxed);
  while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

MemoryScope::MemoryScope(std::shared_ptr<MemoryAccount> account)
    : outer_(std::exchange(ThreadAccount(), std::move(account))) {}

MemoryScope::~MemoryScope() { ThreadAccount() = std::move(outer_); }

void InstallCountingAllocator() {
  // LibTorch keeps the pointer for as long as the process lives, and blocks may be freed during its exit.
  static CountingAllocator* const allocator = [] {
    auto* installed = new CountingAllocator;
    c10::SetCPUAllocator(installed, /*priority=*/100);
    return installed;
  }();
  static_cast<void>(allocator);
}

bool IsCountedDeleter(void (*deleter)(void*)) { return deleter == &FreeBlock; }

}  // namespace fusion::worker::engine
