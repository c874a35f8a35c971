// CPU time of the calling thread: what emulated speeds and profiles are measured in.
#pragma once

#include <ctime>

namespace fusion::worker::engine {

inline double ThreadCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace fusion::worker::engine
