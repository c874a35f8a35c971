// A partition as the search sees it: the place of each operator. Sub-DAGs follow from it.
#pragma once

#include <utility>
#include <vector>

#include "scheduler/problem.h"

namespace fusion::scheduler {

/// Index in Places for each operator of the problem.
using Assignment = std::vector<int>;

/// Stages-to-be: one for each slot of a node, at most as many for a node as the job may have stages. Places
/// of a node follow each other, nodes are in file order.
struct Places {
  explicit Places(const Problem& problem);

  int size() const { return static_cast<int>(node.size()); }

  std::vector<int> node;   ///< by place
  std::vector<int> first;  ///< by node: its first place
};

/// Reads between operators, each once.
struct OperatorLinks {
  explicit OperatorLinks(const Problem& problem);

  std::vector<std::vector<int>> sources;  ///< operators whose outputs this one reads, ascending
  std::vector<std::vector<int>> readers;  ///< operators that read its outputs, ascending
};

/// A sub-DAG's operators (ascending) and its place.
struct PlaceGroup {
  int place = 0;
  std::vector<int> operators;
};

/// Cuts an assignment into few sub-DAGs, in a topological order of their quotient graph, which is therefore
/// acyclic: one for each place where the places' own quotient is acyclic. Otherwise a place whose remaining
/// operators can all run next comes first; where there is none, the place of the first ready operator runs
/// all that it can ("private labels": input and loss on one compnode give it two sub-DAGs). O((operators +
/// reads) x sub-DAGs).
std::vector<PlaceGroup> GroupOperators(const OperatorLinks& links, const Assignment& assignment, int places);

/// Stages in the order of their first operators, sub-DAGs in run order, depths at the least that 1F1B needs:
/// the longest path to the loss plus one, at most the number of micro-batches.
Partition MakePartition(const Problem& problem, const Places& places, const std::vector<PlaceGroup>& groups);

}  // namespace fusion::scheduler
