// A Chrome trace (chrome://tracing, ui.perfetto.dev) of one step of a stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace fusion::worker {

/// Thread-safe.
class Trace {
 public:
  /// Rows of a stage, in the order shown.
  enum class Row { kCompute, kEncode, kDecode, kLink };

  /// `path` empty: records nothing.
  Trace(std::string path, int64_t step, int stage) : path_(std::move(path)), step_(step), stage_(stage) {}

  bool Wants(int64_t step) const { return !path_.empty() && step == step_; }

  /// Something named `name` of `step` that took from `begin_ns` to `end_ns` (CLOCK_MONOTONIC).
  void Add(int64_t step, Row row, std::string name, int64_t begin_ns, int64_t end_ns);

  /// A link's bytes and busy seconds in the whole step.
  void AddLink(int64_t step, int to_stage, int64_t bytes, double busy_seconds, int64_t end_ns);

  /// Writes {"traceEvents": […]}, with the stage as process. The file is whole or not there.
  absl::Status Write() const;

 private:
  struct Event {
    Row row;
    std::string name;
    int64_t begin_ns;
    int64_t end_ns;
  };
  struct LinkUse {
    int to_stage;
    int64_t bytes;
    double busy_seconds;
    int64_t end_ns;
  };

  const std::string path_;
  const int64_t step_;
  const int stage_;
  mutable absl::Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  std::vector<LinkUse> links_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fusion::worker
