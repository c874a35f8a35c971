// The workload estimator: what each operator of a graph costs and what travels between operators.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "scheduler/problem.h"
#include "scheduler/profile.h"

namespace fusion::scheduler {

/// Fills operators, values, shared and loss for micro-batches of `samples`. PALEO's form: an operator takes
/// FLOPs / (lambda x S) + bytes / memory bandwidth + a fixed cost, or what the profile measured for its
/// signature. Work is in seconds of the profiled machine, by the operator's class.
absl::Status AddWorkload(const graph::v1::Graph& graph, int64_t samples, const v1alpha1::Training& training,
                         const MachineProfile& machine, Problem& problem);

/// FLOPs a second that all operators together reach on the profiled machine, as a share of its flops.
double ReachedShare(const Problem& problem, const MachineProfile& machine);

}  // namespace fusion::scheduler
