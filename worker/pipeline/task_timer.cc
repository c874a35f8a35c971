#include "worker/pipeline/task_timer.h"

#include <cerrno>
#include <ctime>

namespace fusion::worker {
namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

int64_t Now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * kNanosecondsPerSecond + time.tv_nsec;
}

}  // namespace

int64_t NowNanoseconds() { return Now(CLOCK_MONOTONIC); }

int64_t ThreadCpuNanoseconds() { return Now(CLOCK_THREAD_CPUTIME_ID); }

void SleepUntilNanoseconds(int64_t monotonic) {
  const timespec until{.tv_sec = monotonic / kNanosecondsPerSecond,
                       .tv_nsec = monotonic % kNanosecondsPerSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void TaskTimer::Begin(bool waited) {
  const bool follows = emulated() && !waited && last_end_ns_ > 0;
  begin_ns_ = follows ? last_end_ns_ : NowNanoseconds();
  begin_cpu_ns_ = ThreadCpuNanoseconds();
}

TaskSpan TaskTimer::End() {
  TaskSpan span{.begin_ns = begin_ns_, .end_ns = NowNanoseconds()};
  if (emulated()) {
    const auto cpu_ns = static_cast<double>(ThreadCpuNanoseconds() - begin_cpu_ns_);
    const int64_t emulated_end = begin_ns_ + static_cast<int64_t>(cpu_ns * slowdown_);
    span.overrun = span.end_ns > emulated_end;
    if (!span.overrun) {
      SleepUntilNanoseconds(emulated_end);
      span.end_ns = emulated_end;
    }
  }
  last_end_ns_ = span.end_ns;
  return span;
}

}  // namespace fusion::worker
