// Random models for FakeEngine and random cuts of them.
#pragma once

#include <cstdint>
#include <vector>

#include "fusion/graph/v1/graph.pb.h"
#include "worker/tensor.h"

namespace fusion::worker {

inline constexpr int64_t kFakeColumns = 6;

struct FakeModelOptions {
  uint64_t seed = 0;  ///< of everything random here
  int layers = 4;     ///< fake.mix operators
  int stages = 2;     ///< at most; a stage that got nothing is left out
  int sub_dags = 3;   ///< segments of a random topological order, each on a random stage
  int max_depth = 3;
};

/// A graph with skip reads, shared variables and integer values, cut at random into programs whose quotient
/// graph is acyclic.
struct FakeModel {
  graph::v1::Graph graph;
  std::vector<graph::v1::StageProgram> programs;
  graph::v1::StageProgram whole;  ///< the same graph in one sub-DAG
};
FakeModel MakeFakeModel(const FakeModelOptions& options);

/// Data of `input` or `label`: small integers that depend on all arguments.
Tensor FakeData(bool label, bool training, int64_t batch, int64_t first, int64_t count);

}  // namespace fusion::worker
