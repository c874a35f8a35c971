#include "scheduler/partition/step_cost.h"

#include <algorithm>

#include "scheduler/quotient.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {
namespace {

// Ways between more nodes than these are looked up each time instead of being kept in a table.
constexpr size_t kTableNodes = 256;

// More than the bytes of any machine.
constexpr double kExcessOfStage = 1e18;

}  // namespace

StepCost::StepCost(const Problem& problem, double byte_share)
    : problem_(problem), places_(problem), links_(problem), byte_share_(byte_share) {
  const size_t nodes = problem.nodes.size();
  for (const OperatorWork& work : problem.operators) {
    for (const Node& node : problem.nodes) {
      forward_seconds_.push_back(ForwardSeconds(work, node));
      backward_seconds_.push_back(problem.training ? BackwardSeconds(work, node) : 0);
    }
    working_bytes_.push_back(work.output_bytes +
                             (problem.training ? work.variable_bytes + work.internal_bytes : 0));
  }
  for (const Value& value : problem.values) {
    for (int consumer : value.consumers) working_bytes_[consumer] += value.bytes;
  }
  if (nodes > kTableNodes) return;
  for (size_t from = 0; from < nodes; ++from) {
    for (size_t to = 0; to < nodes; ++to) {
      ways_.push_back(problem.network.Between(static_cast<int>(from), static_cast<int>(to)));
    }
  }
}

double StepCost::ComputeSeconds(int operator_index, int node) const {
  const size_t at = operator_index * problem_.nodes.size() + node;
  return forward_seconds_[at] + backward_seconds_[at];
}

double StepCost::ForwardBytes(const Value& value) const {
  const bool coded = value.floating && value.differentiable;
  return static_cast<double>(value.bytes) * (coded ? byte_share_ : 1);
}

double StepCost::BackwardBytes(const Value& value) const {
  return problem_.training && value.differentiable ? static_cast<double>(value.bytes) * byte_share_ : 0;
}

Way StepCost::WayBetween(int from_node, int to_node) const {
  if (ways_.empty()) return problem_.network.Between(from_node, to_node);
  return ways_[from_node * problem_.nodes.size() + to_node];
}

int64_t StepCost::FixedBytes(int operator_index) const {
  const OperatorWork& work = problem_.operators[operator_index];
  return work.variable_bytes + (problem_.training ? work.optimizer_bytes : 0);
}

Cost StepCost::Of(const Assignment& assignment) {
  FormGroups(assignment);
  AddValues();
  ChooseDepths();
  AddMemory();
  const double shared = AddShared();
  Cost cost;
  double update = 0;
  for (const Stage& stage : stages_) {
    const Node& node = problem_.nodes[stage.node];
    if (problem_.training) update = std::max(update, stage.parameters * node.update_seconds_per_parameter);
    cost.excess += std::max(0.0, stage.bytes + stage.working_bytes - static_cast<double>(node.memory_bytes));
  }
  cost.excess += kExcessOfStage * std::max(0, static_cast<int>(stages_.size()) - problem_.max_stages);
  cost.extra_sub_dags = static_cast<int>(groups_.size() - stages_.size());
  cost.bottleneck = LoadSeconds();
  cost.seconds = PathSeconds() + (problem_.micro_batches - 1) * cost.bottleneck + update + shared;
  return cost;
}

void StepCost::FormGroups(const Assignment& assignment) {
  groups_.clear();
  stages_.clear();
  group_of_.assign(assignment.size(), -1);
  stage_of_place_.assign(places_.size(), -1);
  const int loss = LossOperator(problem_);
  for (const PlaceGroup& placed : GroupOperators(links_, assignment, places_.size())) {
    int& stage_index = stage_of_place_[placed.place];
    if (stage_index < 0) {
      stage_index = static_cast<int>(stages_.size());
      stages_.emplace_back().node = places_.node[placed.place];
    }
    Stage& stage = stages_[stage_index];
    Group& group = groups_.emplace_back();
    group.stage = stage_index;
    group.node = stage.node;
    for (int op : placed.operators) {
      const OperatorWork& work = problem_.operators[op];
      const size_t at = op * problem_.nodes.size() + group.node;
      group_of_[op] = static_cast<int>(groups_.size()) - 1;
      group.forward += forward_seconds_[at];
      group.backward += backward_seconds_[at];
      if (problem_.recompute && work.fed) {
        group.kept_bytes += static_cast<double>(work.output_bytes);
      } else {
        group.saved_bytes += static_cast<double>(work.saved_bytes);
      }
      group.has_backward = group.has_backward || (op == loss && problem_.training);
      stage.bytes += static_cast<double>(FixedBytes(op));
      stage.working_bytes = std::max(stage.working_bytes, static_cast<double>(working_bytes_[op]));
      stage.parameters += static_cast<double>(work.parameters);
    }
  }
}

void StepCost::AddValues() {
  edges_.clear();
  hops_.assign(groups_.size() * groups_.size(), Hop());
  for (size_t v = 0; v < problem_.values.size(); ++v) {
    const Value& value = problem_.values[v];
    const int from = group_of_[value.producer];
    const size_t first_edge = edges_.size();
    for (int consumer : value.consumers) {
      const int to = group_of_[consumer];
      if (to == from) continue;
      if (problem_.training && value.differentiable) groups_[from].has_backward = true;
      Hop& hop = hops_[from * groups_.size() + to];
      hop.read = true;
      const int stage = groups_[to].stage;
      if (stage == groups_[from].stage) {
        KeepLocal(value, to, consumer);
        continue;
      }
      const bool sent = std::any_of(edges_.begin() + first_edge, edges_.end(),
                                    [stage](const Edge& edge) { return edge.to_stage == stage; });
      if (sent) continue;
      const int cotangents = Cotangents(value, stage);
      edges_.push_back({static_cast<int>(v), from, stage, cotangents});
      hop.forward_bytes += ForwardBytes(value);
      hop.backward_bytes += BackwardBytes(value) * (byte_share_ < 1 ? 1 : cotangents);
    }
  }
}

// Counts a value that a group reads of its own stage, at the first of its readers there.
void StepCost::KeepLocal(const Value& value, int group, int consumer) {
  const auto first = std::find_if(value.consumers.begin(), value.consumers.end(),
                                  [&](int other) { return group_of_[other] == group; });
  if (problem_.recompute && *first == consumer) groups_[group].kept_bytes += static_cast<double>(value.bytes);
}

// Uses of a stage are summed there only where they are the last ones: sums run in descending order (see
// quotient.h).
int StepCost::Cotangents(const Value& value, int stage) const {
  int count = 0;
  bool others_after = false;
  bool interrupted = false;
  for (size_t i = value.consumers.size(); i-- > 0;) {
    if (groups_[group_of_[value.consumers[i]]].stage == stage) {
      interrupted = interrupted || others_after;
      ++count;
    } else {
      others_after = true;
    }
  }
  return interrupted ? count : 1;
}

void StepCost::ChooseDepths() {
  const size_t count = groups_.size();
  std::vector<int> hops_to_end(count, 0);
  for (size_t g = count; g-- > 0;) {
    for (size_t reader = g + 1; reader < count; ++reader) {
      if (!hops_[g * count + reader].read) continue;
      const int crossed = groups_[reader].stage == groups_[g].stage ? 0 : 1;
      hops_to_end[g] = std::max(hops_to_end[g], hops_to_end[reader] + crossed);
    }
    groups_[g].depth =
        problem_.gpipe ? problem_.micro_batches : std::min(hops_to_end[g] + 1, problem_.micro_batches);
  }
}

void StepCost::AddMemory() {
  for (const Group& group : groups_) {
    if (!group.has_backward) continue;
    Stage& stage = stages_[group.stage];
    if (problem_.recompute) {
      stage.bytes += group.kept_bytes * group.depth;
      stage.recomputed_bytes = std::max(stage.recomputed_bytes, group.saved_bytes);
    } else {
      stage.bytes += group.saved_bytes * group.depth;
    }
  }
  for (Stage& stage : stages_) stage.bytes += stage.recomputed_bytes;
  for (const Edge& edge : edges_) {
    const Value& value = problem_.values[edge.value];
    const auto bytes = static_cast<double>(value.bytes);
    const Group& producer = groups_[edge.from];
    int kept = 1;
    bool backward = false;
    for (int consumer : value.consumers) {
      const Group& reader = groups_[group_of_[consumer]];
      if (reader.stage != edge.to_stage) continue;
      backward = backward || reader.has_backward;
      kept = std::max(kept, reader.depth);
    }
    const int waiting = std::max(0, producer.depth - kept);
    stages_[edge.to_stage].bytes +=
        bytes * (((value.kept || problem_.recompute) && backward ? kept : 1) + waiting);
    if (problem_.training && value.differentiable) {
      stages_[producer.stage].bytes += bytes * edge.cotangents;
    } else if (!producer.has_backward) {
      stages_[producer.stage].bytes += bytes * producer.depth;
    }
  }
}

// Memory of the copies; seconds that the slowest of the values and its gradients take.
double StepCost::AddShared() {
  double slowest = 0;
  for (const SharedValue& shared : problem_.shared) {
    if (shared.consumers.empty()) continue;
    const auto bytes = static_cast<double>(shared.bytes);
    const int owner = groups_[group_of_[shared.consumers[0]]].stage;
    if (problem_.training && shared.trainable) {
      stages_[owner].bytes += bytes * static_cast<double>(shared.consumers.size() - 1);
    }
    uses_.assign(stages_.size(), 0);
    for (int consumer : shared.consumers) ++uses_[groups_[group_of_[consumer]].stage];
    for (size_t user = 0; user < stages_.size(); ++user) {
      if (uses_[user] == 0 || static_cast<int>(user) == owner) continue;
      const double gradients = problem_.training && shared.trainable ? bytes * uses_[user] : 0;
      stages_[user].bytes += bytes + gradients;
      const Way out = WayBetween(stages_[owner].node, stages_[user].node);
      const Way back = WayBetween(stages_[user].node, stages_[owner].node);
      slowest = std::max(slowest, out.latency_seconds + bytes / out.bytes_per_second + back.latency_seconds +
                                      gradients / back.bytes_per_second);
    }
  }
  return problem_.training ? slowest : 0;
}

double StepCost::LoadSeconds() {
  double busiest = 0;
  for (const Group& group : groups_) {
    Stage& stage = stages_[group.stage];
    stage.load += group.forward + (group.has_backward ? group.backward : 0);
    busiest = std::max(busiest, stage.load);
  }
  resource_load_.assign(problem_.network.resources.size(), 0);
  auto add = [this, &busiest](int from, int to, double bytes) {
    const Way way = WayBetween(from, to);
    if (way.resources.empty() || bytes <= 0) return;
    const auto message = static_cast<double>(MessageBytes(static_cast<int64_t>(bytes), way.bytes_per_second));
    for (int resource : way.resources) {
      double& load = resource_load_[resource];
      load += message / problem_.network.resources[resource].bytes_per_second;
      busiest = std::max(busiest, load);
    }
  };
  for (const Edge& edge : edges_) {
    const Value& value = problem_.values[edge.value];
    const int from = groups_[edge.from].node;
    const int to = stages_[edge.to_stage].node;
    add(from, to, ForwardBytes(value));
    add(to, from, BackwardBytes(value) * (byte_share_ < 1 ? 1 : edge.cotangents));
  }
  return busiest;
}

// When the first micro-batch's last backward ends, everything else being idle.
double StepCost::PathSeconds() {
  const size_t count = groups_.size();
  double end = 0;
  for (size_t g = 0; g < count; ++g) {
    Group& group = groups_[g];
    double ready = 0;
    for (size_t source = 0; source < g; ++source) {
      const Hop& hop = hops_[source * count + g];
      if (!hop.read) continue;
      const Way way = WayBetween(groups_[source].node, group.node);
      const bool remote = groups_[source].stage != group.stage;
      const double way_seconds = remote ? way.latency_seconds + hop.forward_bytes / way.bytes_per_second : 0;
      ready = std::max(ready, groups_[source].done + way_seconds);
    }
    group.done = ready + group.forward;
    end = std::max(end, group.done);
  }
  for (size_t g = count; g-- > 0;) {
    Group& group = groups_[g];
    if (!group.has_backward) continue;
    double ready = group.done;
    for (size_t reader = g + 1; reader < count; ++reader) {
      const Hop& hop = hops_[g * count + reader];
      if (!hop.read || !groups_[reader].has_backward) continue;
      const Way way = WayBetween(groups_[reader].node, group.node);
      const bool remote = groups_[reader].stage != group.stage;
      const double way_seconds = remote ? way.latency_seconds + hop.backward_bytes / way.bytes_per_second : 0;
      ready = std::max(ready, groups_[reader].returned + way_seconds);
    }
    group.returned = ready + group.backward;
    end = std::max(end, group.returned);
  }
  return end;
}

}  // namespace fusion::scheduler
