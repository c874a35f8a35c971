// Partition policies: which operators go to which compnode. Each returns a partition that passes
// CheckPartition, with depths chosen, or RESOURCE_EXHAUSTED / FAILED_PRECONDITION that says in words why none
// exists ("needs 5.2 GiB for …, the largest compnode b1 has 4 GiB"). Deterministic: no clocks, no unseeded
// randomness. Thread-safe: functions of their arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/problem.h"

namespace fusion::scheduler {

struct OpFenceOptions {
  /// Completes a candidate as the plan will (depths, codecs) and returns the seconds of its step, longer by
  /// what its codecs are worth, infinity where it does not fit. Empty: ChooseDepths, then Simulate.
  std::function<double(const Problem&, Partition&)> finish;
  /// Shares of the activations' bytes that the codecs may leave, each searched: {1} without compression; with
  /// it also the shares of int8, int4 or TopK, as a plan that is good dense is seldom the best one after
  /// compression.
  std::vector<double> byte_shares = {1};
  /// `finish` is called at most so often.
  int most_finished = 240;
};

/// Louvain islands and ordered nodes, dynamic programming over the linearised graph, local search on the
/// closed form, and on `finish` from the best few. Never worse, by `finish`, than EqualNumber and
/// EqualCompute where those fit. Uses fewer nodes than offered where that is faster; gives a compnode several
/// sub-DAGs where pins or a shared variable want it.
///
/// Cost for each share: up to 48 orders, fewer of large problems, x some 40 runs of the dynamic programming
/// of chain_partition.h; closed forms bounded by a number of operator visits; then `most_finished`
/// simulations in all. Measured with at most 16 stages on one core: 60 operators x 6 nodes 0.6 s, 320 x 64 8
/// s, 1,009 x 1,000 13 s.
absl::StatusOr<Partition> PartitionOpFence(const Problem& problem, const OpFenceOptions& options = {});

/// The same number of operators on every node, nodes in the order given. Pinned operators go to their node.
absl::StatusOr<Partition> PartitionEqualNumber(const Problem& problem);

/// Operators in proportion to the nodes' speed by FLOPs, nodes in the order given. Pinned operators go to
/// their node.
absl::StatusOr<Partition> PartitionEqualCompute(const Problem& problem);

/// DT-FM's genetic search over the order of the nodes, one replica, cost as in its paper; segments as
/// EqualCompute.
absl::StatusOr<Partition> PartitionDtFm(const Problem& problem, uint64_t seed);

}  // namespace fusion::scheduler
