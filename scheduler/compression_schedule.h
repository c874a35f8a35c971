// spec.communication.compression.schedule: which settings hold from which step on.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "fusion/graph/v1/plan.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "scheduler/problem.h"

namespace fusion::scheduler {

struct CompressionPhase {
  int64_t from_step = 1;
  v1alpha1::Compression settings;  ///< without a schedule
};

/// By ascending step from 1 on; one where there is no schedule. Entries change type, ratio and values; mask
/// and error feedback are the job's, where the type has them.
std::vector<CompressionPhase> CompressionPhases(const v1alpha1::Compression& compression);

/// Gives the plan's links the codecs of all phases, chosen for the partition, which has those of the last.
/// Nothing without a schedule.
absl::Status AddPhases(const Problem& problem, const v1alpha1::Compression& compression,
                       const Partition& partition, graph::v1::Plan& plan);

/// Takes the links' phases over from a plan that is replayed.
void CopyPhases(const graph::v1::Plan& from, graph::v1::Plan& to);

}  // namespace fusion::scheduler
