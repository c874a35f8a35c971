// Communities of a weighted graph: Louvain's method (Blondel et al. 2008, arXiv:0803.0476) with a resolution,
// used to find islands of devices that share fast links. Deterministic: nodes are visited in index order and
// ties go to the lower community, so that no seed is needed. O(edges) for each sweep over a level; a few
// sweeps and levels in practice.
#pragma once

#include <utility>
#include <vector>

namespace fusion::scheduler {

/// Undirected, weights >= 0. Parallel edges add up.
class WeightedGraph {
 public:
  explicit WeightedGraph(int nodes) : neighbours_(nodes) {}

  /// REQUIRES: weight >= 0. `a == b` is a self-loop, whose weight counts twice in the node's degree.
  void AddEdge(int a, int b, double weight);

  int size() const { return static_cast<int>(neighbours_.size()); }
  const std::vector<std::pair<int, double>>& neighbours(int node) const { return neighbours_[node]; }

 private:
  std::vector<std::vector<std::pair<int, double>>> neighbours_;  ///< a self-loop stands once
};

/// Community of each node, numbered from 0 in the order of their first nodes.
using Communities = std::vector<int>;

/// Q = sum over communities of (inside / 2m - resolution (degrees / 2m)^2).
double Modularity(const WeightedGraph& graph, const Communities& communities, double resolution);

/// A local optimum of the modularity. A higher resolution gives smaller communities.
Communities Louvain(const WeightedGraph& graph, double resolution);

/// The distinct clusterings worth scoring, coarse ones first: one community, a scan of resolutions, Louvain
/// applied again inside each community until nothing splits (one global resolution cannot find islands of
/// unlike sizes and contrasts), and every node alone.
std::vector<Communities> CandidateClusterings(const WeightedGraph& graph);

/// Members of each community, ascending.
std::vector<std::vector<int>> MembersOf(const Communities& communities);

}  // namespace fusion::scheduler
