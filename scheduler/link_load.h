// What the links of a placed job carry.
#pragma once

#include <vector>

#include "scheduler/problem.h"
#include "scheduler/quotient.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {

/// Links that carry something every micro-batch, by (from, to), a pair's values before the gradients of the
/// other way.
std::vector<SimulatedLink> LinkLoads(const Problem& problem, const Partition& partition,
                                     const Quotient& quotient);

/// Seconds for which each of Network::resources is busy in a step: values, gradients and shared variables,
/// with headers.
std::vector<double> ResourceSeconds(const Problem& problem, const Partition& partition,
                                    const Quotient& quotient);

}  // namespace fusion::scheduler
