#include "graph/slicing.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/graph_index.h"
#include "graph/quotient.h"
#include "graph/registry.h"

namespace fusion::graph {
namespace {

/// Where an operator runs; stage -1 for a variable, which runs where it is read.
struct Place {
  int stage = -1;
  int sub_dag = -1;
  bool operator==(const Place&) const = default;
};

absl::StatusOr<std::vector<Place>> PlaceOperators(const v1::Graph& graph, const GraphIndex& index,
                                                  const Placement& placement) {
  std::vector<Place> places(graph.operators_size());
  for (int stage = 0; stage < static_cast<int>(placement.size()); ++stage) {
    const auto& sub_dags = placement[stage].sub_dags;
    if (sub_dags.empty()) return absl::InvalidArgumentError(absl::StrCat("stage ", stage, " has no sub-DAG"));
    for (int sub_dag = 0; sub_dag < static_cast<int>(sub_dags.size()); ++sub_dag) {
      const std::string where = absl::StrCat("stage ", stage, ", sub-DAG ", sub_dag);
      if (sub_dags[sub_dag].operators.empty())
        return absl::InvalidArgumentError(absl::StrCat(where, ": no operators"));
      if (sub_dags[sub_dag].depth < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": depth must be at least 1, not ", sub_dags[sub_dag].depth));
      }
      for (const std::string& name : sub_dags[sub_dag].operators) {
        const int position = index.Find(name);
        if (position < 0) {
          return absl::InvalidArgumentError(absl::StrCat(where, ": the graph has no operator '", name, "'"));
        }
        if (index.At(position).kind() == v1::Operator::VARIABLE) {
          return absl::InvalidArgumentError(
              absl::StrCat(where, ": '", name, "' is a variable, which goes with its first reader"));
        }
        if (places[position].stage >= 0) {
          return absl::InvalidArgumentError(absl::StrCat(where, ": operator '", name,
                                                         "' is already in stage ", places[position].stage,
                                                         ", sub-DAG ", places[position].sub_dag));
        }
        places[position] = {stage, sub_dag};
      }
    }
  }
  for (int i = 0; i < graph.operators_size(); ++i) {
    if (places[i].stage < 0 && graph.operators(i).kind() != v1::Operator::VARIABLE) {
      return absl::InvalidArgumentError(
          absl::StrCat("operator '", graph.operators(i).name(), "' is in no stage"));
    }
  }
  return places;
}

/// Fails with the cycle where sub-DAGs wait for each other, or where run orders make them.
absl::Status CheckOrder(const v1::Graph& graph, const GraphIndex& index, const Placement& placement,
                        const std::vector<Place>& places) {
  std::vector<int> first_node(placement.size());
  std::vector<Place> nodes;
  for (int stage = 0; stage < static_cast<int>(placement.size()); ++stage) {
    first_node[stage] = static_cast<int>(nodes.size());
    for (int k = 0; k < static_cast<int>(placement[stage].sub_dags.size()); ++k) nodes.push_back({stage, k});
  }
  const auto node_of = [&](const Place& place) { return first_node[place.stage] + place.sub_dag; };

  QuotientGraph quotient(static_cast<int>(nodes.size()));
  for (int i = 0; i < graph.operators_size(); ++i) {
    if (places[i].stage < 0) continue;
    ForEachRead(graph.operators(i), [&](const v1::ValueRef& ref) {
      const int producer = index.Find(ref.operator_());
      if (places[producer].stage < 0 || places[producer] == places[i]) return;
      quotient.AddArc(node_of(places[producer]), node_of(places[i]),
                      absl::StrCat("'", ref.operator_(), "' -> '", graph.operators(i).name(), "'"));
    });
  }
  const auto describe = [&](const std::vector<QuotientGraph::Arc>& cycle) {
    return absl::StrJoin(cycle, ", ", [&](std::string* out, const QuotientGraph::Arc& arc) {
      const Place& from = nodes[arc.from];
      const Place& to = nodes[arc.to];
      absl::StrAppend(out, "stage ", from.stage, " sub-DAG ", from.sub_dag, " before stage ", to.stage,
                      " sub-DAG ", to.sub_dag, " (", arc.reason, ")");
    });
  };
  if (const auto cycle = quotient.FindCycle(); !cycle.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("sub-DAGs wait for each other: ", describe(cycle)));
  }
  for (size_t node = 1; node < nodes.size(); ++node) {
    if (nodes[node].stage == nodes[node - 1].stage) {
      quotient.AddArc(static_cast<int>(node) - 1, static_cast<int>(node), "run order");
    }
  }
  if (const auto cycle = quotient.FindCycle(); !cycle.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the run order contradicts the graph: ", describe(cycle)));
  }
  return absl::OkStatus();
}

/// Readers of each value, by (producer, output index), ascending and each once.
using Readers = std::map<std::pair<int, int>, std::set<int>>;

Readers ReadersOf(const v1::Graph& graph, const GraphIndex& index) {
  Readers readers;
  for (int i = 0; i < graph.operators_size(); ++i) {
    ForEachRead(graph.operators(i), [&](const v1::ValueRef& ref) {
      readers[{index.Find(ref.operator_()), ref.index()}].insert(i);
    });
  }
  return readers;
}

class Slicer {
 public:
  Slicer(const v1::Graph& graph, const GraphIndex& index, std::vector<Place> places,
         const Placement& placement)
      : graph_(graph),
        readers_(ReadersOf(graph, index)),
        places_(std::move(places)),
        carries_gradient_(CarriesGradient(graph)),
        holds_images_(HoldsImages(graph)),
        programs_(placement.size()) {
    for (int stage = 0; stage < static_cast<int>(placement.size()); ++stage) {
      v1::StageProgram& program = programs_[stage];
      program.set_stage(stage);
      *program.mutable_loss() = graph.loss();
      for (const SubDagPlacement& sub_dag : placement[stage].sub_dags)
        program.add_sub_dags()->set_depth(sub_dag.depth);
    }
    const Place& loss = places_[index.Find(graph.loss().operator_())];
    programs_[loss.stage].set_computes_loss(true);
    loss_stage_ = loss.stage;
  }

  std::vector<v1::StageProgram> Run() {
    for (const auto& [value, readers] : readers_) {
      if (places_[value.first].stage < 0) {
        PlaceVariable(value.first, readers);
      } else {
        AddEdges(value.first, value.second, readers);
      }
    }
    AddOperators();
    AddDecisions();
    return std::move(programs_);
  }

 private:
  void AddEdges(int producer, int output, const std::set<int>& readers) {
    std::map<int, std::vector<int>> by_stage;
    for (const int reader : readers) by_stage[places_[reader].stage].push_back(reader);
    const Place& from = places_[producer];
    const v1::TensorSpec& spec = graph_.operators(producer).outputs(output);
    for (const auto& [stage, consumers] : by_stage) {
      if (stage == from.stage) continue;
      v1::Edge edge;
      edge.set_id(next_edge_++);
      edge.mutable_value()->set_operator_(graph_.operators(producer).name());
      edge.mutable_value()->set_index(output);
      *edge.mutable_spec() = spec;
      edge.set_from_stage(from.stage);
      edge.set_from_sub_dag(from.sub_dag);
      edge.set_to_stage(stage);
      std::set<int> sub_dags;
      for (const int consumer : consumers) {
        sub_dags.insert(places_[consumer].sub_dag);
        edge.add_consumers(graph_.operators(consumer).name());
        Name(stage, consumer);
      }
      edge.mutable_to_sub_dags()->Add(sub_dags.begin(), sub_dags.end());
      edge.set_differentiable(carries_gradient_[producer] && IsFloating(spec.dtype()));
      edge.set_per_sample(holds_images_[producer]);
      edge.set_cotangent_per_consumer(edge.differentiable() && !SumsFirst(readers, consumers));
      // The producer's stage sums over all consumers, wherever they are.
      Name(from.stage, producer);
      for (const int reader : readers) Name(from.stage, reader);
      Name(stage, producer);
      *programs_[from.stage].add_outgoing() = edge;
      *programs_[stage].add_incoming() = std::move(edge);
    }
  }

  /// Whether the consumers' cotangents may be summed before the others are added: floating addition from the
  /// last reader to the first begins with them, or there is one only.
  static bool SumsFirst(const std::set<int>& readers, const std::vector<int>& consumers) {
    return consumers.size() == 1 || std::equal(consumers.rbegin(), consumers.rend(), readers.rbegin());
  }

  void PlaceVariable(int variable, const std::set<int>& readers) {
    std::map<int, std::vector<int>> by_stage;
    for (const int reader : readers) by_stage[places_[reader].stage].push_back(reader);
    const int owner = places_[*readers.begin()].stage;
    if (graph_.operators(variable).variable().trainable()) ++parameters_[owner];
    for (const auto& [stage, consumers] : by_stage) {
      int first = places_[consumers.front()].sub_dag;
      for (const int consumer : consumers) first = std::min(first, places_[consumer].sub_dag);
      *programs_[stage].mutable_sub_dags(first)->add_operators() = graph_.operators(variable);
      Name(stage, variable);
      if (stage == owner) continue;
      v1::SharedVariable shared;
      shared.set_id(next_shared_++);
      shared.set_variable(graph_.operators(variable).name());
      shared.set_owner_stage(owner);
      shared.set_user_stage(stage);
      for (const int consumer : consumers) shared.add_consumers(graph_.operators(consumer).name());
      for (const int reader : readers) Name(owner, reader);
      *programs_[owner].add_lent() = shared;
      *programs_[stage].add_borrowed() = std::move(shared);
    }
  }

  /// After PlaceVariable: variables stand in front.
  void AddOperators() {
    for (int i = 0; i < graph_.operators_size(); ++i) {
      const Place& place = places_[i];
      if (place.stage < 0) continue;
      *programs_[place.stage].mutable_sub_dags(place.sub_dag)->add_operators() = graph_.operators(i);
      Name(place.stage, i);
    }
  }

  /// Stages that talk both ways, by stage.
  std::vector<std::set<int>> Neighbours() const {
    std::vector<std::set<int>> neighbours(programs_.size());
    const auto connect = [&neighbours](int a, int b) {
      neighbours[a].insert(b);
      neighbours[b].insert(a);
    };
    for (const v1::StageProgram& program : programs_) {
      for (const v1::Edge& edge : program.outgoing()) {
        if (edge.differentiable()) connect(edge.from_stage(), edge.to_stage());
      }
      for (const v1::SharedVariable& shared : program.lent())
        connect(shared.owner_stage(), shared.user_stage());
    }
    return neighbours;
  }

  /// A tree of fewest hops over the stages that are linked to the loss. Its root has the first operator that
  /// carries a gradient: its backward ends last and its next forward begins first, so nobody waits for the
  /// decision longer than for the next step's first value.
  void AddDecisions() {
    const std::vector<std::set<int>> neighbours = Neighbours();
    const std::vector<int> linked = BreadthFirst(neighbours, loss_stage_).first;
    int root = loss_stage_;
    for (int i = graph_.operators_size() - 1; i >= 0; --i) {
      const int stage = places_[i].stage;
      const bool counts = stage >= 0 && carries_gradient_[i];
      if (counts && std::find(linked.begin(), linked.end(), stage) != linked.end()) root = stage;
    }
    const auto [order, parents] = BreadthFirst(neighbours, root);
    for (auto stage = order.rbegin(); stage != order.rend(); ++stage) {  // children before parents
      v1::StepDecision& decision = *programs_[*stage].mutable_decision();
      std::sort(decision.mutable_children()->begin(), decision.mutable_children()->end(),
                [](const auto& a, const auto& b) { return a.stage() < b.stage(); });
      int parameters = parameters_[*stage];
      for (const v1::StepDecision::Child& child : decision.children()) parameters += child.parameters();
      decision.set_parameters(parameters);
      if (*stage == root) continue;
      decision.set_parent(parents.at(*stage));
      v1::StepDecision::Child& entry = *programs_[decision.parent()].mutable_decision()->add_children();
      entry.set_stage(*stage);
      entry.set_parameters(parameters);
    }
  }

  /// The stages reached from `root`, nearest first, and where each was reached from.
  static std::pair<std::vector<int>, std::map<int, int>> BreadthFirst(
      const std::vector<std::set<int>>& neighbours, int root) {
    std::vector<int> order = {root};
    std::map<int, int> parents = {{root, root}};
    for (size_t i = 0; i < order.size(); ++i) {
      for (const int next : neighbours[order[i]]) {
        if (parents.emplace(next, order[i]).second) order.push_back(next);
      }
    }
    return {order, parents};
  }

  void Name(int stage, int position) {
    (*programs_[stage].mutable_positions())[graph_.operators(position).name()] = position;
  }

  const v1::Graph& graph_;
  const Readers readers_;
  const std::vector<Place> places_;
  const std::vector<bool> carries_gradient_;
  const std::vector<bool> holds_images_;
  std::vector<v1::StageProgram> programs_;
  std::map<int, int> parameters_;  ///< trainable variables by owner
  int loss_stage_ = 0;
  int32_t next_edge_ = 0;
  int32_t next_shared_ = 0;
};

}  // namespace

Placement PlacementOf(const v1::Plan& plan) {
  Placement placement(plan.stages_size());
  for (int stage = 0; stage < plan.stages_size(); ++stage) {
    for (const v1::PlannedSubDag& sub_dag : plan.stages(stage).sub_dags()) {
      placement[stage].sub_dags.push_back(
          {.operators = {sub_dag.operators().begin(), sub_dag.operators().end()}, .depth = sub_dag.depth()});
    }
  }
  return placement;
}

absl::StatusOr<std::vector<v1::StageProgram>> Slice(const v1::Graph& graph, const Placement& placement) {
  const GraphIndex index(graph);
  auto places = PlaceOperators(graph, index, placement);
  if (!places.ok()) return places.status();
  if (auto status = CheckOrder(graph, index, placement, *places); !status.ok()) return status;
  return Slicer(graph, index, *std::move(places), placement).Run();
}

namespace {

/// Codecs of a link by their first step.
using CodecPhases = std::map<int64_t, std::string>;

CodecPhases PhasesOf(const v1::PlannedLink& link) {
  CodecPhases phases;
  for (const v1::PlannedLink::Phase& phase : link.phases()) phases[phase.from_step()] = phase.codec();
  if (phases.empty()) phases[1] = link.codec();
  for (auto& [step, codec] : phases) {
    if (codec.empty()) codec = kDenseCodec;
  }
  return phases;
}

/// The phases of both directions, where there are more than one.
void SetPhases(const CodecPhases& forward, const CodecPhases& backward, v1::Edge& edge) {
  std::set<int64_t> steps = {1};
  for (const CodecPhases* phases : {&forward, &backward}) {
    for (const auto& [step, codec] : *phases) steps.insert(step);
  }
  edge.clear_phases();
  bool dense = true;
  for (const int64_t step : steps) {
    v1::Edge::Phase& phase = *edge.add_phases();
    phase.set_from_step(step);
    const auto at = [step](const CodecPhases& phases) {
      const auto next = phases.upper_bound(step);
      return next == phases.begin() ? std::string(kDenseCodec) : std::prev(next)->second;
    };
    phase.set_forward_codec(at(forward));
    phase.set_backward_codec(at(backward));
    dense = dense && phase.forward_codec() == kDenseCodec && phase.backward_codec() == kDenseCodec;
  }
  edge.set_forward_codec(edge.phases().rbegin()->forward_codec());
  edge.set_backward_codec(edge.phases().rbegin()->backward_codec());
  if (steps.size() == 1) edge.clear_phases();
  if (!dense) edge.set_cotangent_per_consumer(false);
}

}  // namespace

absl::Status SetCodecs(const v1::Plan& plan, std::vector<v1::StageProgram>& programs) {
  using Key = std::tuple<int, int, int>;  // from, to, direction
  std::map<Key, CodecPhases> codecs;
  for (const v1::PlannedLink& link : plan.links()) {
    const auto [entry, added] =
        codecs.try_emplace(Key{link.from(), link.to(), link.direction()}, PhasesOf(link));
    if (!added && entry->second != PhasesOf(link)) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan has two codecs for the link from stage ", link.from(), " to ", link.to(), " (",
                       v1::PlannedLink::Direction_Name(link.direction()), "): '",
                       entry->second.rbegin()->second, "' and '", link.codec(), "'"));
    }
  }
  const auto codec_of = [&codecs](int from, int to, v1::PlannedLink::Direction direction) {
    const auto found = codecs.find(Key{from, to, direction});
    return found == codecs.end() ? CodecPhases{{1, kDenseCodec}} : found->second;
  };
  const auto set = [&](v1::Edge& edge) {
    if (!edge.differentiable()) {
      edge.set_forward_codec(kDenseCodec);
      edge.set_backward_codec(kDenseCodec);
      return;
    }
    SetPhases(codec_of(edge.from_stage(), edge.to_stage(), v1::PlannedLink::Forward),
              codec_of(edge.to_stage(), edge.from_stage(), v1::PlannedLink::Backward), edge);
  };
  for (v1::StageProgram& program : programs) {
    for (v1::Edge& edge : *program.mutable_incoming()) set(edge);
    for (v1::Edge& edge : *program.mutable_outgoing()) set(edge);
  }
  return absl::OkStatus();
}

}  // namespace fusion::graph
