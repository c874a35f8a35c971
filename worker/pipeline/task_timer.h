// How long the tasks of a compute thread take, and the imitation of a slower machine: a task that cost c CPU
// seconds of this thread lasts slowdown x c, the rest is slept.
#pragma once

#include <cstdint>

namespace fusion::worker {

int64_t NowNanoseconds();                       ///< CLOCK_MONOTONIC
int64_t ThreadCpuNanoseconds();                 ///< CLOCK_THREAD_CPUTIME_ID
void SleepUntilNanoseconds(int64_t monotonic);  ///< on the absolute clock

/// When a task ran.
struct TaskSpan {
  int64_t begin_ns = 0;  ///< CLOCK_MONOTONIC
  int64_t end_ns = 0;
  bool overrun = false;  ///< emulated: its real time exceeded the emulated one

  double seconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-9; }
};

/// One thread's tasks, one after the other.
class TaskTimer {
 public:
  /// `slowdown`: machine FLOP/s / emulated FLOP/s; 0 for full speed.
  explicit TaskTimer(double slowdown) : slowdown_(slowdown) {}

  /// `waited`: nothing was ready after the task before. Else the task begins where that one ended, so that
  /// the clock of an emulated machine does not run late by the wake-ups of this one.
  void Begin(bool waited);

  /// Sleeps until the emulated end.
  TaskSpan End();

  bool emulated() const { return slowdown_ > 0; }

 private:
  const double slowdown_;
  int64_t begin_ns_ = 0;
  int64_t begin_cpu_ns_ = 0;
  int64_t last_end_ns_ = 0;
};

}  // namespace fusion::worker
