#include "scheduler/quotient.h"

#include <algorithm>
#include <queue>

namespace fusion::scheduler {
namespace {

double Seconds(const Work& work, const Node& node) {
  double seconds = 0;
  for (int c = 0; c < kOperatorClasses; ++c) seconds += work[c] * node.seconds_per_work[c];
  return seconds;
}

void Insert(std::vector<int>& sorted, int item) {
  const auto place = std::lower_bound(sorted.begin(), sorted.end(), item);
  if (place == sorted.end() || *place != item) sorted.insert(place, item);
}

/// Consumers of one stage form a sum of their own only where they are the last ones: sums run in descending
/// order.
int Cotangents(const Value& value, const std::vector<int>& stage_of_consumer, int stage) {
  int count = 0;
  bool others_after = false;
  bool interrupted = false;
  for (int i = static_cast<int>(value.consumers.size()) - 1; i >= 0; --i) {
    if (stage_of_consumer[i] == stage) {
      interrupted = interrupted || others_after;
      ++count;
    } else {
      others_after = true;
    }
  }
  return interrupted ? count : 1;
}

void AddValue(const Problem& problem, int index, Quotient& quotient) {
  const Value& value = problem.values[index];
  const int from = quotient.sub_dag_of_operator[value.producer];
  if (from < 0) return;
  const int from_stage = quotient.sub_dags[from].stage;
  const bool differentiable = problem.training && value.differentiable;
  std::vector<int> readers;
  std::vector<int> stage_of_consumer(value.consumers.size(), -1);
  for (size_t i = 0; i < value.consumers.size(); ++i) {
    const int reader = quotient.sub_dag_of_operator[value.consumers[i]];
    if (reader < 0) continue;
    stage_of_consumer[i] = quotient.sub_dags[reader].stage;
    if (reader != from) Insert(readers, reader);
  }
  // Sub-DAGs are numbered by stage: readers of one stage follow each other in run order.
  for (size_t i = 0; i < readers.size();) {
    const int stage = quotient.sub_dags[readers[i]].stage;
    size_t end = i;
    while (end < readers.size() && quotient.sub_dags[readers[end]].stage == stage) ++end;
    if (differentiable) {
      quotient.sub_dags[from].backward = true;
      for (size_t r = i; r < end; ++r) quotient.sub_dags[readers[r]].backward = true;
    }
    if (stage == from_stage) {
      for (; i < end; ++i) {
        Insert(quotient.sub_dags[readers[i]].reads_from, from);
        Insert(quotient.sub_dags[from].readers, readers[i]);
        if (differentiable) Insert(quotient.sub_dags[from].waits_for, readers[i]);
      }
      continue;
    }
    const int edge = static_cast<int>(quotient.edges.size());
    quotient.sub_dags[from].outgoing.push_back(edge);
    for (size_t r = i; r < end; ++r) {
      quotient.sub_dags[readers[r]].incoming.push_back(edge);
      if (differentiable && r > i) Insert(quotient.sub_dags[readers[i]].waits_for, readers[r]);
    }
    if (differentiable) quotient.sub_dags[readers[i]].first_read.push_back(edge);
    QuotientEdge& added = quotient.edges.emplace_back();
    added.value = index;
    added.from_sub_dag = from;
    added.from_stage = from_stage;
    added.to_stage = stage;
    added.to_sub_dags.assign(readers.begin() + i, readers.begin() + end);
    added.differentiable = differentiable;
    added.cotangents = Cotangents(value, stage_of_consumer, stage);
    i = end;
  }
}

void AddShared(const Problem& problem, int index, Quotient& quotient) {
  const bool gradients = problem.training && problem.shared[index].trainable;
  std::vector<int> users(quotient.stages(), 0);
  int owner = -1;
  for (const int consumer : problem.shared[index].consumers) {
    const int sub_dag = quotient.sub_dag_of_operator[consumer];
    if (sub_dag < 0) continue;
    const int stage = quotient.sub_dags[sub_dag].stage;
    if (owner < 0) owner = stage;
    ++users[stage];
  }
  for (int stage = 0; stage < quotient.stages(); ++stage) {
    if (users[stage] == 0 || stage == owner) continue;
    quotient.loans.push_back({index, owner, stage, gradients ? users[stage] : 0});
  }
}

/// The compute thread hands each tensor to the transport, or takes it from there.
void AddMessageSeconds(const Problem& problem, const Partition& partition, Quotient& quotient) {
  for (const QuotientEdge& edge : quotient.edges) {
    const double send = problem.nodes[partition.stages[edge.from_stage].node].message_seconds;
    const double take = problem.nodes[partition.stages[edge.to_stage].node].message_seconds;
    QuotientSubDag& from = quotient.sub_dags[edge.from_sub_dag];
    QuotientSubDag& to = quotient.sub_dags[edge.to_sub_dags.front()];
    from.forward_seconds += send;
    to.forward_seconds += take;
    if (!edge.differentiable) continue;
    from.backward_seconds += send * edge.cotangents;
    to.backward_seconds += take * edge.cotangents;
  }
}

}  // namespace

int LossOperator(const Problem& problem) {
  return problem.loss >= 0 ? problem.loss : static_cast<int>(problem.operators.size()) - 1;
}

double ForwardSeconds(const OperatorWork& work, const Node& node) { return Seconds(work.forward, node); }
double BackwardSeconds(const OperatorWork& work, const Node& node) { return Seconds(work.backward, node); }

Quotient MakeQuotient(const Problem& problem, const Partition& partition) {
  Quotient quotient;
  quotient.sub_dag_of_operator.assign(problem.operators.size(), -1);
  quotient.parameters.assign(partition.stages.size(), 0);
  const int loss = LossOperator(problem);
  for (size_t s = 0; s < partition.stages.size(); ++s) {
    const PlacedStage& stage = partition.stages[s];
    const Node& node = problem.nodes[stage.node];
    quotient.first_sub_dag.push_back(static_cast<int>(quotient.sub_dags.size()));
    for (const PlacedSubDag& placed : stage.sub_dags) {
      const int index = static_cast<int>(quotient.sub_dags.size());
      QuotientSubDag& sub_dag = quotient.sub_dags.emplace_back();
      sub_dag.stage = static_cast<int>(s);
      sub_dag.depth = problem.gpipe ? problem.micro_batches : std::min(placed.depth, problem.micro_batches);
      for (const int op : placed.operators) {
        const OperatorWork& work = problem.operators[op];
        quotient.sub_dag_of_operator[op] = index;
        quotient.parameters[s] += work.parameters;
        sub_dag.forward_seconds += ForwardSeconds(work, node);
        if (problem.training) sub_dag.backward_seconds += BackwardSeconds(work, node);
        if (op == loss && problem.training) sub_dag.backward = true;
      }
    }
  }
  quotient.first_sub_dag.push_back(static_cast<int>(quotient.sub_dags.size()));
  for (size_t v = 0; v < problem.values.size(); ++v) AddValue(problem, static_cast<int>(v), quotient);
  for (size_t v = 0; v < problem.shared.size(); ++v) AddShared(problem, static_cast<int>(v), quotient);
  AddMessageSeconds(problem, partition, quotient);
  for (QuotientSubDag& sub_dag : quotient.sub_dags) {
    if (!sub_dag.backward) sub_dag.backward_seconds = 0;
  }
  return quotient;
}

codec::Codec CodecBetween(const Partition& partition, int from_stage, int to_stage) {
  for (const LinkCodec& link : partition.codecs) {
    if (link.from_stage == from_stage && link.to_stage == to_stage) return link.codec;
  }
  return codec::Codec();
}

int64_t ForwardBytes(const Problem& problem, const QuotientEdge& edge, const codec::Codec& codec) {
  const Value& value = problem.values[edge.value];
  // Codecs touch activations: floating, with a gradient where the job trains.
  const bool coded = value.floating && value.differentiable && codec != codec::Codec();
  return coded ? codec::ValueBytes(codec, value.layout) : value.bytes;
}

int64_t BackwardBytes(const Problem& problem, const QuotientEdge& edge, const codec::Codec& codec) {
  if (!edge.differentiable) return 0;
  const Value& value = problem.values[edge.value];
  const bool dense = codec == codec::Codec();
  return dense ? value.bytes * edge.cotangents : codec::GradientBytes(codec, value.layout);
}

std::vector<int> TopologicalOrder(const Quotient& quotient) {
  const int count = static_cast<int>(quotient.sub_dags.size());
  std::vector<int> missing(count, 0);
  std::vector<std::vector<int>> readers(count);
  for (int s = 0; s < count; ++s) {
    for (const int source : quotient.sub_dags[s].reads_from) readers[source].push_back(s);
    for (const int edge : quotient.sub_dags[s].incoming)
      readers[quotient.edges[edge].from_sub_dag].push_back(s);
  }
  for (const std::vector<int>& list : readers) {
    for (const int reader : list) ++missing[reader];
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int s = 0; s < count; ++s) {
    if (missing[s] == 0) ready.push(s);
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int next = ready.top();
    ready.pop();
    order.push_back(next);
    for (const int reader : readers[next]) {
      if (--missing[reader] == 0) ready.push(reader);
    }
  }
  return order;
}

}  // namespace fusion::scheduler
