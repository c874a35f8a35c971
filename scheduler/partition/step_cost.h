// Cost of an assignment in closed form, fast enough for search: the objective that the policies minimise
// before the simulator has the last word.
//
//   step = longest way of one micro-batch forward and back + (M - 1) x load of the busiest stage or resource
//          + longest update + shared variables out and back
//
// the pipeline objective of FusionLLM (arXiv:2410.12707), with its sum over a chain of stages read as the
// longest path of a graph of sub-DAGs, and with links as resources that several pairs of stages may share.
// The closed form of EstimateStepSeconds and the memory of StageMemory, on flat tables; `byte_share` stands
// for a compression chosen later.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/partition/assignment.h"
#include "scheduler/problem.h"

namespace fusion::scheduler {

/// What is minimised: first what does not fit, then time.
struct Cost {
  double excess = 0;       ///< bytes over the memory limits; a stage too many weighs more than any bytes
  double seconds = 0;      ///< of a step
  double bottleneck = 0;   ///< seconds of a micro-batch on the busiest stage or resource
  int extra_sub_dags = 0;  ///< sub-DAGs beyond one a stage

  bool fits() const { return excess <= 0; }
  /// A second sub-DAG on a compnode must pay: it is harder to read, and each costs what no model counts.
  double weighted_seconds() const { return seconds * (1 + kExtraSubDag * extra_sub_dags); }
  bool operator<(const Cost& other) const {
    return excess != other.excess ? excess < other.excess : weighted_seconds() < other.weighted_seconds();
  }

  static constexpr double kExtraSubDag = 0.01;
};

/// Not thread-safe: keeps scratch space between calls. `problem` must outlive it.
/// O(operators + reads + sub-DAGs^2 + (sub-DAGs x operators, where a compnode needs several)).
class StepCost {
 public:
  /// Codecs will leave this share of the bytes of differentiable floating values; (0, 1].
  StepCost(const Problem& problem, double byte_share);

  /// Depths are the least that 1F1B needs, as MakePartition gives them. REQUIRES: pinned operators are on
  /// their nodes.
  Cost Of(const Assignment& assignment);

  const Problem& problem() const { return problem_; }
  const Places& places() const { return places_; }
  const OperatorLinks& links() const { return links_; }

  /// Forward and backward of one micro-batch.
  double ComputeSeconds(int operator_index, int node) const;
  /// Bytes of a value on its way, and of the gradient that returns.
  double ForwardBytes(const Value& value) const;
  double BackwardBytes(const Value& value) const;
  Way WayBetween(int from_node, int to_node) const;
  /// Of one operator while it runs: outputs, inputs and, in training, its variables once more.
  int64_t WorkingBytes(int operator_index) const { return working_bytes_[operator_index]; }
  /// Bytes that an operator's variables, their gradients and their optimizer state take.
  int64_t FixedBytes(int operator_index) const;

 private:
  struct Group {
    int stage = 0;
    int node = 0;
    bool has_backward = false;
    double forward = 0;
    double backward = 0;
    double saved_bytes = 0;
    double kept_bytes = 0;  ///< with recompute: inputs made in the stage
    int depth = 1;
    double done = 0;      ///< when the first micro-batch's forward ends
    double returned = 0;  ///< and its backward
  };
  struct Stage {
    int node = 0;
    double load = 0;  ///< seconds of a micro-batch
    double bytes = 0;
    double working_bytes = 0;
    double recomputed_bytes = 0;  ///< with recompute: saved by the group that saves most
    double parameters = 0;
  };
  struct Edge {
    int value = 0;
    int from = 0;  ///< group
    int to_stage = 0;
    int cotangents = 1;
  };
  struct Hop {  ///< all that one group reads of another
    double forward_bytes = 0;
    double backward_bytes = 0;
    bool read = false;
  };

  void FormGroups(const Assignment& assignment);
  void AddValues();
  void KeepLocal(const Value& value, int group, int consumer);
  int Cotangents(const Value& value, int stage) const;
  void ChooseDepths();
  void AddMemory();
  double AddShared();
  double LoadSeconds();
  double PathSeconds();

  const Problem& problem_;
  const Places places_;
  const OperatorLinks links_;
  const double byte_share_;
  std::vector<double> forward_seconds_;  ///< [operator x nodes + node]
  std::vector<double> backward_seconds_;
  std::vector<int64_t> working_bytes_;
  std::vector<Way> ways_;  ///< [from x nodes + to]; empty for many nodes

  // Scratch of one evaluation.
  std::vector<Group> groups_;
  std::vector<Stage> stages_;
  std::vector<int> group_of_;
  std::vector<int> stage_of_place_;
  std::vector<Edge> edges_;
  std::vector<Hop> hops_;  ///< [from group x groups + to group]
  std::vector<double> resource_load_;
  std::vector<int> uses_;  ///< of a shared variable, by stage
};

}  // namespace fusion::scheduler
