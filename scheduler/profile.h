// What a machine's profile says of its speed. `fusion-worker profile -o json` writes it; `fusionctl` caches
// it.
#pragma once

#include <array>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/registry.h"

namespace fusion::scheduler {

inline constexpr int kOperatorClasses = 5;  ///< of graph::OperatorClass

/// CPU seconds of the compute thread for one execution of an operator at a given micro-batch.
struct OperatorSeconds {
  double forward = 0;
  double backward = 0;
};

/// One thread of the machine that runs emulated compnodes, or one device of a real one.
///
/// JSON: {"flops": 4.1e10, "lambda": {"matmul": 0.9, "convolution": …, "elementwise": …, "reduction": …,
/// "memory": …}, "memoryBytesPerSecond": 1.1e10, "operatorSeconds": 9e-6, "updateSecondsPerParameter": 2e-9,
/// "operators": {"SIGNATURE": {"forward": s, "backward": s}}}. Measurements vary: ParseProfile rounds every
/// number to two significant digits, and a profile that was read once is cached, so that the same job gives
/// the same plan.
struct MachineProfile {
  double flops = 0;                               ///< S_machine: FLOP/s of a large fp32 matrix product
  std::array<double, kOperatorClasses> lambda{};  ///< share of `flops` that a class reaches, (0, 1]
  double memory_bytes_per_second = 0;
  double operator_seconds = 0;                       ///< fixed cost of one operator, each direction
  double update_seconds_per_parameter = 0;           ///< optimizer step
  std::map<std::string, OperatorSeconds> operators;  ///< measured, by graph::OperatorSignature
};

/// lambda 0.5 everywhere, where nothing was measured.
MachineProfile UnmeasuredProfile(double flops);

/// INVALID_ARGUMENT names the field. Unknown fields are ignored.
absl::StatusOr<MachineProfile> ParseProfile(absl::string_view json);
std::string ProfileJson(const MachineProfile& profile);

}  // namespace fusion::scheduler
