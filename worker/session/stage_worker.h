// `fusion-worker stage`: one stage of one job, from registering with the broker to the end.
#pragma once

#include <string>

#include "worker/session/process_signals.h"

namespace fusion::worker {

struct StageWorkerOptions {
  std::string broker;  ///< HOST:PORT
  std::string job;
  int stage = 0;
  std::string compnode;
  int64_t incarnation = 0;
  std::string engine = "torch";        ///< a library of engine.h, or "none"
  std::string listen = "127.0.0.1:0";  ///< of the tensor server
};

/// Returns the exit status: 0 when the broker stopped it, 1 after a failure or when the broker is lost, 143
/// after SIGTERM. Ends at most a few seconds after it should, whatever the engine does.
int RunStageWorker(const StageWorkerOptions& options, ProcessSignals& signals);

}  // namespace fusion::worker
