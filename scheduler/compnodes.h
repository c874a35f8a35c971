// Which compnodes a job may use, and how fast and large they are.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fusion/v1alpha1/api.pb.h"
#include "scheduler/problem.h"
#include "scheduler/profile.h"

namespace fusion::scheduler {

struct Offer {
  std::vector<int> used;              ///< indexes of the compnodes that the job may use, in file order
  std::vector<std::string> excluded;  ///< "b1 is cordoned", one for each of the others
};

/// By spec.placement's clusters and tolerations, by cordon and taints. INVALID_ARGUMENT for a cluster without
/// compnodes, FAILED_PRECONDITION with every compnode's reason when none is left.
absl::StatusOr<Offer> SelectCompnodes(const v1alpha1::Placement& placement,
                                      const std::vector<v1alpha1::Compnode>& compnodes);

/// Speed relative to `machine`: emulation.flops, else the first device's peakFlops.fp32, else the machine's
/// own; of matrix products and convolutions in bf16, peakFlops.bf16 where it is declared and nothing is
/// emulated. Memory of a stage: the smallest device's, else its share of hostMemory. `lambda` is the share of
/// the machine's flops that the job's operators reach.
absl::StatusOr<Node> MakeNode(const v1alpha1::Compnode& compnode, const MachineProfile& machine,
                              double lambda, v1alpha1::Training::Precision precision);

}  // namespace fusion::scheduler
