// What ThreadSanitizer has to be told about Debian's libraries, which are not instrumented. Linked into the
// programs of thread-sanitizer builds.
//
// abseil: locks taken inside the library would be invisible, and everything guarded by an absl::Mutex a false
// race. The functions below go before the library's own, and call them. A condition of another waiter is
// evaluated by the thread that unlocks, between our release and its own: reads in there are not looked at.
//
// gRPC: hands a call's reactions from thread to thread by atomics of its own. Reports with its functions on a
// stack are left out; races are looked for over the in-memory transport.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdlib>
#include <type_traits>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);

extern "C" const char* __tsan_default_suppressions() { return "race:grpc::internal::\nrace:grpc_core::\n"; }
extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }

namespace {

template <typename Function>
Function Find(const char* symbol) {
  void* found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) std::abort();  // another abseil than Debian 12's
  return reinterpret_cast<Function>(found);
}

class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

/// Something that holds the mutex afterwards if it returns true or nothing.
#define FUSION_ACQUIRE(RESULT, SYMBOL, PARAMETERS, ARGUMENTS)  \
  static const auto real = Find<RESULT(*) PARAMETERS>(SYMBOL); \
  const IgnoreReads ignore;                                    \
  return Acquired(this, [&]() -> RESULT { return real ARGUMENTS; })

template <typename Call>
auto Acquired(const void* object, Call call) {
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    __tsan_acquire(const_cast<void*>(object));
  } else {
    const auto result = call();
    __tsan_acquire(const_cast<void*>(object));
    return result;
  }
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() { FUSION_ACQUIRE(void, "_ZN4absl7debian35Mutex4LockEv", (Mutex*), (this)); }
void Mutex::ReaderLock() { FUSION_ACQUIRE(void, "_ZN4absl7debian35Mutex10ReaderLockEv", (Mutex*), (this)); }
bool Mutex::TryLock() { FUSION_ACQUIRE(bool, "_ZN4absl7debian35Mutex7TryLockEv", (Mutex*), (this)); }

void Mutex::Unlock() {
  static const auto real = Find<void (*)(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  __tsan_release(this);
  const IgnoreReads ignore;
  real(this);
}

void Mutex::ReaderUnlock() {
  static const auto real = Find<void (*)(Mutex*)>("_ZN4absl7debian35Mutex12ReaderUnlockEv");
  __tsan_release(this);
  const IgnoreReads ignore;
  real(this);
}

void Mutex::LockWhen(const Condition& condition) {
  FUSION_ACQUIRE(void, "_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE", (Mutex*, const Condition&),
                 (this, condition));
}

void Mutex::Await(const Condition& condition) {
  __tsan_release(this);
  FUSION_ACQUIRE(void, "_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE", (Mutex*, const Condition&),
                 (this, condition));
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  __tsan_release(this);
  FUSION_ACQUIRE(bool, "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE",
                 (Mutex*, const Condition&, Duration), (this, condition, timeout));
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  __tsan_release(this);
  FUSION_ACQUIRE(bool, "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE",
                 (Mutex*, const Condition&, Time), (this, condition, deadline));
}

void CondVar::Wait(Mutex* mutex) {
  static const auto real = Find<void (*)(CondVar*, Mutex*)>("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  const IgnoreReads ignore;
  Acquired(mutex, [&] { real(this, mutex); });
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto real = Find<bool (*)(CondVar*, Mutex*, Duration)>(
      "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const IgnoreReads ignore;
  return Acquired(mutex, [&] { return real(this, mutex, timeout); });
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto real = Find<bool (*)(CondVar*, Mutex*, Time)>(
      "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const IgnoreReads ignore;
  return Acquired(mutex, [&] { return real(this, mutex, deadline); });
}

void Notification::Notify() {
  static const auto real = Find<void (*)(Notification*)>("_ZN4absl7debian312Notification6NotifyEv");
  __tsan_release(this);
  real(this);
}

void Notification::WaitForNotification() const {
  FUSION_ACQUIRE(void, "_ZNK4absl7debian312Notification19WaitForNotificationEv", (const Notification*),
                 (this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  FUSION_ACQUIRE(bool, "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
                 (const Notification*, Duration), (this, timeout));
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  FUSION_ACQUIRE(bool, "_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE",
                 (const Notification*, Time), (this, deadline));
}

ABSL_NAMESPACE_END
}  // namespace absl
