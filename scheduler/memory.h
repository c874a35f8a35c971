// Memory that a stage needs, part by part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/problem.h"
#include "scheduler/quotient.h"

namespace fusion::scheduler {

/// Bytes at the peak, which is reached in a backward pass while `depth` micro-batches are in flight.
struct MemoryParts {
  int64_t variables = 0;  ///< owned parameters and buffers
  int64_t optimizer = 0;  ///< their gradients and optimizer state
  int64_t saved =
      0;  ///< tensors kept for backward, of all micro-batches in flight (recompute: of one sub-DAG
          ///< and micro-batch, and for the others its inputs that come from the stage itself)
  int64_t links = 0;     ///< values received and not yet done with, gradients received
  int64_t borrowed = 0;  ///< copies of variables that other stages own, and their gradients
  int64_t working = 0;   ///< of one operator: outputs, inputs and variables once more, as their gradients

  int64_t total() const { return variables + optimizer + saved + links + borrowed + working; }
  std::string ToString() const;
};

/// By stage.
std::vector<MemoryParts> MemoryOfStages(const Problem& problem, const Partition& partition,
                                        const Quotient& quotient);

}  // namespace fusion::scheduler
