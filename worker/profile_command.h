// `fusion-worker profile`: what one thread of this machine does, measured by an engine.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/engine/engine.h"

namespace fusion::worker {

struct ProfileOptions {
  std::string engine = "torch";
  std::string graph;    ///< file of a graph.v1 Graph in protobuf's binary form; empty: the machine alone
  int64_t samples = 1;  ///< of a micro-batch, for the graph's operators
};

/// The document of scheduler/profile.h.
std::string ProfileJson(const MachineMeasurement& measurement);

/// Measures. Errors name the file or the engine.
absl::StatusOr<std::string> RunProfile(const ProfileOptions& options);

}  // namespace fusion::worker
