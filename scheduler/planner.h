// From a job and compnodes to a plan: the outline of the scheduler. Same request, same plan: no clocks, no
// unseeded randomness, no I/O.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/graph/v1/plan.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "scheduler/plan.h"
#include "scheduler/problem.h"
#include "scheduler/profile.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {

/// The references must outlive the request.
struct PlanRequest {
  std::string job;
  const v1alpha1::FusionJobSpec& spec;
  const graph::v1::Graph& graph;                     ///< that graph::ValidateGraph accepts
  const std::vector<v1alpha1::Compnode>& compnodes;  ///< in file order
  const MachineProfile&
      machine;  ///< of the machine that runs emulated compnodes; also gives lambda to others
  int64_t incarnation = 1;
};

struct PlanResult {
  graph::v1::Plan plan;
  Problem problem;
  Partition partition;
  Simulation simulation;
  Simulation free_links;  ///< the same plan over free links
};

/// Problem -> partition by the policy, with depths and codecs -> check -> simulation -> plan.
/// FAILED_PRECONDITION or RESOURCE_EXHAUSTED where nothing fits, with the numbers and with the reason of each
/// compnode that was left out; INVALID_ARGUMENT, with the field's path, for a request that cannot be met
/// anywhere.
absl::StatusOr<PlanResult> MakePlan(const PlanRequest& request);

/// The request's plan as `plan` prescribes it (fusionctl run --plan): checked and simulated again, not
/// changed.
absl::StatusOr<PlanResult> ReplayPlan(const PlanRequest& request, const graph::v1::Plan& plan);

/// The problem alone: compnodes filtered by clusters, cordon, taints and tolerations, pins resolved.
absl::StatusOr<Problem> MakeProblem(const PlanRequest& request);

/// Codecs per link for spec.communication.compression; sets partition.codecs. Evaluation is dense.
absl::Status ChooseCodecs(const Problem& problem, const v1alpha1::Compression& compression,
                          Partition& partition);

}  // namespace fusion::scheduler
