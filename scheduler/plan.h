// Plans as messages: from a partition and its simulation, and back.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fusion/graph/v1/plan.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "fusion/wire/v1/broker.pb.h"
#include "scheduler/problem.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {

/// Stages, links and the predictions of `simulation`; job, spec, incarnation, schedule and policy are the
/// caller's.
graph::v1::Plan PlanOf(const Problem& problem, const Partition& partition, const Simulation& simulation,
                       const Simulation& free_links);

/// The partition that a plan describes. INVALID_ARGUMENT, with the field's path in the plan, for an operator,
/// compnode or codec that does not exist; whether it fits is CheckPartition's to say.
absl::StatusOr<Partition> PartitionOf(const Problem& problem, const graph::v1::Plan& plan);

/// rho: seconds a step for which the busiest resource of the network carries the dense tensors of this
/// partition, over the seconds that the step's FLOPs take on all offered compnodes together.
double CommunicationToCompute(const Problem& problem, const Partition& partition);

/// By stage of the plan: its ways to every other stage, for workers that imitate them. Empty for stages on
/// compnodes without emulation.links. INVALID_ARGUMENT where the plan names an unknown compnode; else as
/// MakeNetwork.
absl::StatusOr<std::vector<std::vector<wire::v1::EmulatedLink>>> EmulatedLinksOf(
    const std::vector<v1alpha1::Compnode>& compnodes, const graph::v1::Plan& plan);

}  // namespace fusion::scheduler
