// Placement of a pipeline with several replicas of each stage on equal devices: DT-FM's problem (Yuan et al.
// 2022, arXiv:2206.01288) with its own cost, solved by islands instead of a genetic search. A library
// function: no policy uses it yet.
//
// Cost, as in DT-FM's published scheduler (seconds a step):
//   gradients = max over stages, over devices i of the stage, of sum over its devices j != i of
//               2 (latency_ij + gradient_bytes / (replicas x bandwidth_ij))
//   hop(a, b) = bottleneck perfect matching of stages a and b under latency_ij + activation_bytes /
//   bandwidth_ij pipeline  = cheapest path through all stages over hop() cost      = gradients + 2 pipeline
#pragma once

#include <vector>

#include "absl/status/statusor.h"

namespace fusion::scheduler {

struct ReplicaProblem {
  int stages = 1;
  int replicas = 1;                      ///< devices = stages x replicas
  std::vector<double> latency_seconds;   ///< [from x devices + to], symmetric
  std::vector<double> bytes_per_second;  ///< likewise, > 0 off the diagonal
  double activation_bytes = 0;
  double gradient_bytes = 0;  ///< of one stage

  int devices() const { return stages * replicas; }
};

struct ReplicaPlacement {
  std::vector<std::vector<int>>
      stages;  ///< [stage][pipeline]: device; equal pipeline indexes exchange activations
  double gradient_seconds = 0;
  double pipeline_seconds = 0;  ///< one direction
  double seconds() const { return gradient_seconds + 2 * pipeline_seconds; }
};

/// Finds islands by Louvain (recursion and a scan of resolutions), lays them on the grid of stages x
/// pipelines as runs of a pipeline (gradients cross islands) or of a stage (pipelines cross islands), orders
/// and matches the stages, and keeps the cheapest. Deterministic. INVALID_ARGUMENT where the matrices do not
/// fit the numbers. Each of the few dozen layouts costs stages^2 matchings of replicas^2 pairs and a path
/// over the stages, exact up to 12.
absl::StatusOr<ReplicaPlacement> PlaceReplicas(const ReplicaProblem& problem);

/// Orders and matches given groups of `replicas` devices at the least pipeline cost. REQUIRES: every device
/// once.
ReplicaPlacement OrderStages(const ReplicaProblem& problem, const std::vector<std::vector<int>>& groups);

}  // namespace fusion::scheduler
