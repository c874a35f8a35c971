// Cuts the operators, in their topological order, into contiguous segments on places visited in a given
// order.
#pragma once

#include <vector>

#include "scheduler/partition/step_cost.h"

namespace fusion::scheduler {

/// Dynamic programming for  sum(C + R) + (M - 1) max(C, R): for a bound on max(C, R) it minimises the sum.
/// The least bound that has a solution is found by bisection; from there bounds rise, closely at first, and
/// walk the trade-off between the two terms. Places may be left out.
///
/// What it leaves to the exact cost and to local search: a value that jumps over a segment counts as relayed
/// by it; pinned operators count on their own place wherever they stand; shared variables do not count. A
/// bound costs O(places x cuts x (cuts + places)), times the stages where memory or their maximum binds: at
/// most 64 places of an order and at most 192 cuts (of more operators, the cheapest cuts, evenly spaced in
/// work) are looked at.
class ChainPartitioner {
 public:
  /// `cost` must outlive it.
  explicit ChainPartitioner(const StepCost& cost);

  /// Assignments for `order`, one for each bound, by falling bound; none where memory or the maximum of
  /// stages forbids.
  std::vector<Assignment> Partition(const std::vector<int>& order) const;

  /// Inner steps of the dynamic programming for one bound.
  double StepsOfABound() const;

 private:
  struct Segment {
    int place = 0;
    int from = 0;  ///< cuts
    int to = 0;
  };
  struct Link {  ///< both ways between two places
    double latency_seconds = 0;
    double bytes_per_second = 0;
    double back_bytes_per_second = 0;
  };
  struct Table;

  void ChooseCuts();
  void SumOperators();
  void ChooseLevels();
  std::vector<Link> LinksOf(const std::vector<int>& order) const;
  std::vector<Segment> Solve(const std::vector<int>& order, const std::vector<Link>& links,
                             double bound) const;
  double LinkSeconds(const Link& link, int cut, double bound) const;
  double SegmentSeconds(int place, int from, int to) const;
  bool SegmentFits(int place, int from, int to, int level) const;
  double Bottleneck(const std::vector<Segment>& segments) const;
  Assignment Assign(const std::vector<Segment>& segments) const;

  const StepCost& cost_;
  int levels_ = 1;  ///< segments up to the end are counted so far, as depth in memory or against the maximum
  bool open_top_ = true;               ///< the last level means "so many or more"
  std::vector<int> cuts_;              ///< operators before it; the first is 0, the last all
  std::vector<double> forward_bytes_;  ///< by cut: of the values alive there, as sent
  std::vector<double> backward_bytes_;
  std::vector<double> alive_bytes_;  ///< dense
  std::vector<double> seconds_;      ///< [node x cuts + cut]: of the free operators before the cut
  std::vector<double> fixed_bytes_;  ///< by cut, likewise
  std::vector<double> saved_bytes_;
  std::vector<double> pinned_seconds_;  ///< by node: of the operators pinned there
  std::vector<double> pinned_fixed_bytes_;
  std::vector<double> pinned_saved_bytes_;
};

}  // namespace fusion::scheduler
