// A short-lived child program whose output is wanted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/interrupt.h"

namespace fusion::cli {

/// Runs the program and returns its standard output. Its standard error goes to ours. CANCELLED after Ctrl-C,
/// DEADLINE_EXCEEDED after the time; the child is then killed. Its exit status other than 0 is
/// FAILED_PRECONDITION.
absl::StatusOr<std::string> CaptureOutput(const std::vector<std::string>& arguments, absl::Duration limit,
                                          const Interrupt& interrupt);

/// The program that lies beside this one, as build/bin/fusion-worker: $FUSION_WORKER if set.
/// FAILED_PRECONDITION names the path.
absl::StatusOr<std::string> WorkerProgram();

/// The worker of compnodes with the engine jax: $FUSION_JAX_WORKER if set, else the program beside this one,
/// else the one on PATH. FAILED_PRECONDITION says how to get it.
absl::StatusOr<std::string> JaxWorkerProgram();

}  // namespace fusion::cli
