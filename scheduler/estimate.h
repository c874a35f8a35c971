// One micro-batch on its way through an idle pipeline, and what bounds the rate of many.
#pragma once

#include <vector>

#include "scheduler/problem.h"
#include "scheduler/quotient.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {

struct Passage {
  std::vector<double> forward_start;  ///< by sub-DAG
  std::vector<double> end;            ///< by sub-DAG: of its backward, or of its forward where it has none
  double seconds = 0;                 ///< until the last task
  double bottleneck_seconds = 0;      ///< of one micro-batch on the busiest stage or resource
};

/// REQUIRES: an acyclic quotient graph with consistent run orders.
Passage PassageOfOne(const Problem& problem, const Partition& partition, const Quotient& quotient,
                     const SimulationOptions& options);

}  // namespace fusion::scheduler
