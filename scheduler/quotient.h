// The quotient graph of a partition: sub-DAGs and what travels between them. Simulator, memory model, checks
// and the compression policies work on it. Mirrors graph::Slice (graph/slicing.h) in the problem's indexes.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/problem.h"

namespace fusion::scheduler {

struct QuotientSubDag {
  int stage = 0;
  int depth = 1;               ///< M under GPipe
  bool backward = false;       ///< it has a backward task
  double forward_seconds = 0;  ///< of one micro-batch on its stage's node
  double backward_seconds = 0;
  std::vector<int> incoming;    ///< edges that it reads
  std::vector<int> outgoing;    ///< edges that it provides
  std::vector<int> first_read;  ///< differentiable edges whose gradient its backward completes
  std::vector<int> reads_from;  ///< sub-DAGs of its stage whose values it reads, ascending
  std::vector<int> readers;     ///< sub-DAGs of its stage that read its values, ascending
  std::vector<int> waits_for;   ///< sub-DAGs of its stage whose backward must come before its own, ascending
};

/// One value on its way from a sub-DAG to another stage.
struct QuotientEdge {
  int value = 0;         ///< index in Problem::values
  int from_sub_dag = 0;  ///< index in Quotient::sub_dags
  int from_stage = 0;
  int to_stage = 0;
  std::vector<int> to_sub_dags;  ///< those of to_stage that read it, in run order
  bool differentiable = false;   ///< a gradient returns
  int cotangents = 1;            ///< gradients that return a micro-batch, where the link has no lossy codec
};

/// A shared variable that one stage lends to another.
struct QuotientLoan {
  int shared = 0;  ///< index in Problem::shared
  int owner_stage = 0;
  int user_stage = 0;
  int gradients = 0;  ///< that return a step: one for each operator of user_stage that reads it
};

struct Quotient {
  std::vector<QuotientSubDag> sub_dags;  ///< by stage, in run order
  std::vector<int> first_sub_dag;        ///< by stage, and one past the last
  std::vector<QuotientEdge> edges;       ///< by value, then to_stage
  std::vector<QuotientLoan> loans;
  std::vector<int> sub_dag_of_operator;  ///< -1: not placed
  std::vector<int64_t> parameters;       ///< by stage, owned

  int stages() const { return static_cast<int>(first_sub_dag.size()) - 1; }
};

/// Index of the operator that computes the loss.
int LossOperator(const Problem& problem);

double ForwardSeconds(const OperatorWork& work, const Node& node);
double BackwardSeconds(const OperatorWork& work, const Node& node);

/// REQUIRES: operators and nodes of the partition exist, no operator is placed twice.
Quotient MakeQuotient(const Problem& problem, const Partition& partition);

/// Codec of the values from one stage to another.
codec::Codec CodecBetween(const Partition& partition, int from_stage, int to_stage);

/// Encoded bytes of an edge's value, and of all its gradients, of one micro-batch; headers not included.
int64_t ForwardBytes(const Problem& problem, const QuotientEdge& edge, const codec::Codec& codec);
int64_t BackwardBytes(const Problem& problem, const QuotientEdge& edge, const codec::Codec& codec);

/// Sub-DAGs in a topological order of the quotient graph; fewer than all where it has a cycle.
std::vector<int> TopologicalOrder(const Quotient& quotient);

}  // namespace fusion::scheduler
