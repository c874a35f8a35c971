// From a job and compnodes to a plan: the outline of the scheduler.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/graph/v1/plan.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "scheduler/problem.h"
#include "scheduler/profile.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {

struct PlanRequest {
  std::string job;
  const v1alpha1::FusionJobSpec& spec;
  const graph::v1::Graph& graph;
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

/// Problem -> partition by the policy -> depths -> codecs -> simulation -> plan. FAILED_PRECONDITION with the
/// reason for each compnode where nothing fits.
absl::StatusOr<PlanResult> MakePlan(const PlanRequest& request);

/// The problem alone: compnodes filtered by clusters, cordon, taints and tolerations, pins resolved.
absl::StatusOr<Problem> MakeProblem(const PlanRequest& request);

/// Codecs per link for spec.communication.compression; sets partition.codecs.
absl::Status ChooseCodecs(const Problem& problem, const v1alpha1::Compression& compression,
                          Partition& partition);

}  // namespace fusion::scheduler
