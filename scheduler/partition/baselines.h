// Cuts of the topological order that know nothing of links or memory.
#pragma once

#include <vector>

#include "scheduler/partition/assignment.h"

namespace fusion::scheduler {

/// The places that a baseline uses, in the order given: those with pinned operators and the first others, as
/// many in all as the job may have stages.
std::vector<int> UsedPlaces(const Problem& problem, const Places& places, const std::vector<int>& order);

/// Contiguous segments of equally many operators. Pinned operators go to their node.
Assignment AssignEqualNumber(const Problem& problem, const Places& places, const std::vector<int>& order);

/// Contiguous segments of FLOPs in proportion to the nodes' speed. Pinned operators go to their node.
Assignment AssignEqualCompute(const Problem& problem, const Places& places, const std::vector<int>& order);

/// 0, 1, …
std::vector<int> FileOrder(const Places& places);

}  // namespace fusion::scheduler
