// Why a problem has no partition, in words with the numbers.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/partition/assignment.h"
#include "scheduler/partition/step_cost.h"

namespace fusion::scheduler {

/// What no partition can satisfy: no compnode, pins to more compnodes than stages, an operator that fits
/// nowhere, more in all than the compnodes have. OK does not promise that a partition exists.
absl::Status CheckNeeds(const Problem& problem);

/// The partition of an assignment with its depths chosen; RESOURCE_EXHAUSTED names the stage that needs most
/// beyond its compnode's memory.
absl::StatusOr<Partition> FinishPartition(const Problem& problem, const Places& places,
                                          const Assignment& assignment);

/// Some assignment that fits, by depth-first search over operators that stays on a place where it can, or
/// nothing after so many complete or refused assignments: the last resort where descent does not find one.
std::optional<Assignment> FindFitting(StepCost& cost, int64_t tries);

}  // namespace fusion::scheduler
