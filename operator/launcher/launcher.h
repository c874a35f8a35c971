// Who starts workers: child processes in an embedded run, pods in a cluster.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/engine.h"

namespace fusion::op {

/// One attempt at one stage of a job.
struct WorkerSpec {
  std::string job;  ///< as in the session protocol: NAMESPACE/NAME
  int stage = 0;
  std::string compnode;
  int64_t incarnation = 0;
  std::string engine = api::kTorchEngine;  ///< of the compnode

  /// The same for the same attempt, so that starting twice is harmless: default-gpt2-s0-a1.
  std::string Name() const;
};

struct WorkerExit {
  WorkerSpec worker;
  std::string description;  ///< "exited with status 3", "was ended by signal 9 (Killed)"
  std::string last_lines;   ///< of its log; may be empty
};

/// Thread-safe.
class Launcher {
 public:
  /// Called once for each worker that has ended, from a thread of the launcher's; must not block, nor call
  /// the launcher.
  using ExitHandler = std::function<void(const WorkerExit&)>;

  virtual ~Launcher() = default;

  /// OK also when this attempt was started before, whatever became of it. NOT_FOUND, PERMISSION_DENIED: the
  /// worker's program.
  virtual absl::Status Start(const WorkerSpec& worker) = 0;

  /// Ends the job's workers: they have a moment to end by themselves, then are asked to, then forced. Returns
  /// at once.
  virtual void Terminate(const std::string& job) = 0;

  /// Workers of the job that have not ended.
  virtual int Running(const std::string& job) const = 0;
};

}  // namespace fusion::op
