// Partition policies: which operators go to which compnode. Each returns a partition that passes
// CheckPartition, with depths chosen, or RESOURCE_EXHAUSTED / FAILED_PRECONDITION that says in words why none
// exists ("needs 5.2 GiB for …, the largest free compnode b1 has 4 GiB"). Deterministic: no clocks, no
// unseeded randomness.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/problem.h"

namespace fusion::scheduler {

/// Louvain islands, ordered nodes, dynamic programming over the linearised graph; re-scored by the simulator.
absl::StatusOr<Partition> PartitionOpFence(const Problem& problem);

/// The same number of operators on every node, nodes in the order given.
absl::StatusOr<Partition> PartitionEqualNumber(const Problem& problem);

/// Operators in proportion to the nodes' speed by FLOPs, nodes in the order given.
absl::StatusOr<Partition> PartitionEqualCompute(const Problem& problem);

/// DT-FM's genetic search over the order of the nodes, one replica, cost as in its paper; equal compute
/// segments.
absl::StatusOr<Partition> PartitionDtFm(const Problem& problem, uint64_t seed);

}  // namespace fusion::scheduler
