#include "worker/pipeline/task_timer.h"

#include <gtest/gtest.h>

namespace fusion::worker {
namespace {

// Uses this thread's CPU.
void Burn(int64_t nanoseconds) {
  const int64_t end = ThreadCpuNanoseconds() + nanoseconds;
  while (ThreadCpuNanoseconds() < end) {
  }
}

TEST(TaskTimer, AtFullSpeedATaskLastsAsLongAsItDoes) {
  TaskTimer timer(0);
  const int64_t before = NowNanoseconds();
  timer.Begin(true);
  Burn(1'000'000);
  const TaskSpan span = timer.End();
  EXPECT_GE(span.begin_ns, before);
  EXPECT_GE(span.end_ns - span.begin_ns, 1'000'000);
  EXPECT_LE(span.end_ns, NowNanoseconds());
  EXPECT_FALSE(span.overrun);
}

TEST(TaskTimer, ASlowMachinesTaskLastsSlowdownTimesTheCpuSeconds) {
  TaskTimer timer(10);
  timer.Begin(true);
  const int64_t cpu = ThreadCpuNanoseconds();
  Burn(2'000'000);
  const TaskSpan span = timer.End();
  EXPECT_GE(span.end_ns - span.begin_ns, 20'000'000);
  EXPECT_LE(span.end_ns - span.begin_ns, 10 * (ThreadCpuNanoseconds() - cpu) + 10'000'000);
  EXPECT_GE(NowNanoseconds(), span.end_ns) << "it was slept out";
  EXPECT_FALSE(span.overrun);
}

TEST(TaskTimer, ATaskThatDidNotWaitBeginsWhereTheOneBeforeEnded) {
  TaskTimer timer(5);
  timer.Begin(true);
  Burn(1'000'000);
  const TaskSpan first = timer.End();
  timer.Begin(false);
  Burn(1'000'000);
  const TaskSpan second = timer.End();
  EXPECT_EQ(second.begin_ns, first.end_ns);
  timer.Begin(true);
  EXPECT_GT(timer.End().begin_ns, second.end_ns);
}

TEST(TaskTimer, CountsWhatItCannotImitate) {
  TaskTimer timer(1.5);
  timer.Begin(true);
  SleepUntilNanoseconds(NowNanoseconds() + 5'000'000);  // stands for other load on the machine
  const TaskSpan span = timer.End();
  EXPECT_TRUE(span.overrun);
  EXPECT_GE(span.end_ns - span.begin_ns, 5'000'000);
}

}  // namespace
}  // namespace fusion::worker
