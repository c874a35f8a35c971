// The machine's profile: measured by a worker once, kept in the working folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "cli/interrupt.h"
#include "fusion/graph/v1/graph.pb.h"
#include "operator/controllers/planning.h"
#include "scheduler/profile.h"

namespace fusion::cli {

/// What commands say before a measurement.
inline constexpr char kMeasuring[] = "measuring this machine, once …";

/// The profile that WORKDIR/profiles keeps for this machine, graph and size, else that of `fusion-worker
/// profile -o json`, which is then kept. Numbers are rounded to two digits either way, so that they give the
/// same plan. Ctrl-C while measuring is CANCELLED. Thread-safe.
class ProfileCache : public op::ProfileSource {
 public:
  /// `refresh`: measure even if it was measured before. `interrupt` outlives this. `on_measure` is called
  /// before the machine is measured.
  ProfileCache(std::string workdir, bool refresh, const Interrupt& interrupt,
               std::function<void()> on_measure)
      : workdir_(std::move(workdir)),
        refresh_(refresh),
        interrupt_(interrupt),
        on_measure_(std::move(on_measure)) {}

  absl::StatusOr<scheduler::MachineProfile> Profile(const graph::v1::Graph& graph, int64_t samples) override {
    return Load(&graph, samples);
  }
  /// Of the machine alone.
  absl::StatusOr<scheduler::MachineProfile> Profile() { return Load(nullptr, 1); }

 private:
  absl::StatusOr<scheduler::MachineProfile> Load(const graph::v1::Graph* graph, int64_t samples);
  absl::StatusOr<std::string> Measure(const std::string& graph_bytes, int64_t samples) const;

  const std::string workdir_;
  const bool refresh_;
  const Interrupt& interrupt_;
  const std::function<void()> on_measure_;
};

}  // namespace fusion::cli
