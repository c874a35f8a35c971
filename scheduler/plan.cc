#include "scheduler/plan.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "scheduler/link_load.h"
#include "scheduler/quotient.h"

namespace fusion::scheduler {
namespace {

using graph::v1::Plan;
using graph::v1::PlannedLink;
using graph::v1::PlannedStage;

PlannedStage StageOf(const Problem& problem, const PlacedStage& placed, const SimulatedStage& simulated,
                     int64_t memory_bytes) {
  PlannedStage stage;
  const Node& node = problem.nodes[placed.node];
  stage.set_compnode(node.name);
  stage.set_cluster(node.cluster);
  std::vector<int> operators;
  for (const PlacedSubDag& sub_dag : placed.sub_dags) {
    graph::v1::PlannedSubDag& planned = *stage.add_sub_dags();
    planned.set_depth(sub_dag.depth);
    stage.set_depth(std::max(stage.depth(), sub_dag.depth));
    for (const int op : sub_dag.operators) planned.add_operators(problem.operators[op].name);
    operators.insert(operators.end(), sub_dag.operators.begin(), sub_dag.operators.end());
  }
  std::sort(operators.begin(), operators.end());
  double flops = 0;
  int64_t parameters = 0;
  for (const int op : operators) {
    stage.add_operators(problem.operators[op].name);
    flops += problem.operators[op].flops;
    parameters += problem.operators[op].parameters;
  }
  stage.set_parameters(parameters);
  stage.set_flops_per_step(flops * problem.micro_batches);
  stage.set_memory_bytes(memory_bytes);
  stage.set_memory_limit_bytes(node.memory_bytes == INT64_MAX ? 0 : node.memory_bytes);
  stage.set_forward_seconds(simulated.forward_seconds);
  stage.set_backward_seconds(simulated.backward_seconds);
  return stage;
}

PlannedLink LinkOf(const Partition& partition, const SimulatedLink& simulated) {
  PlannedLink link;
  link.set_from(simulated.from_stage);
  link.set_to(simulated.to_stage);
  link.set_direction(simulated.forward ? PlannedLink::Forward : PlannedLink::Backward);
  link.set_dense_bytes(simulated.dense_bytes);
  link.set_bytes(simulated.bytes);
  link.set_ratio(static_cast<double>(simulated.dense_bytes) / static_cast<double>(simulated.bytes));
  link.set_codec(codec::CodecName(simulated.forward
                                      ? CodecBetween(partition, simulated.from_stage, simulated.to_stage)
                                      : CodecBetween(partition, simulated.to_stage, simulated.from_stage)));
  link.set_seconds(simulated.seconds);
  return link;
}

absl::Status Invalid(absl::string_view path, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("plan: ", path, ": ", message));
}

template <typename Named>
std::map<std::string, int> IndexByName(const std::vector<Named>& items) {
  std::map<std::string, int> index;
  for (size_t i = 0; i < items.size(); ++i) index[items[i].name] = static_cast<int>(i);
  return index;
}

absl::StatusOr<PlacedStage> PlacedStageOf(const PlannedStage& planned, const std::string& path,
                                          const std::map<std::string, int>& nodes,
                                          const std::map<std::string, int>& operators) {
  PlacedStage stage;
  const auto node = nodes.find(planned.compnode());
  if (node == nodes.end()) {
    return Invalid(absl::StrCat(path, ".compnode"),
                   absl::StrCat("compnode ", planned.compnode(), " is not offered to the job"));
  }
  stage.node = node->second;
  for (int d = 0; d < planned.sub_dags_size(); ++d) {
    PlacedSubDag& sub_dag = stage.sub_dags.emplace_back();
    sub_dag.depth = planned.sub_dags(d).depth();
    for (const std::string& name : planned.sub_dags(d).operators()) {
      const auto op = operators.find(name);
      if (op == operators.end()) {
        return Invalid(absl::StrCat(path, ".subDags[", d, "].operators"),
                       absl::StrCat("the graph has no operator ", name));
      }
      sub_dag.operators.push_back(op->second);
    }
    std::sort(sub_dag.operators.begin(), sub_dag.operators.end());
  }
  return stage;
}

/// Compnodes that the plan uses: indexes in `compnodes`, and each stage's place among them.
struct UsedCompnodes {
  std::vector<int> indexes;
  std::vector<int> of_stage;
};

absl::StatusOr<UsedCompnodes> FindUsed(const std::vector<v1alpha1::Compnode>& compnodes, const Plan& plan) {
  UsedCompnodes used;
  for (int s = 0; s < plan.stages_size(); ++s) {
    const std::string& name = plan.stages(s).compnode();
    const auto compnode = std::find_if(compnodes.begin(), compnodes.end(), [&](const v1alpha1::Compnode& c) {
      return c.metadata().name() == name;
    });
    if (compnode == compnodes.end()) {
      return Invalid(absl::StrCat("stages[", s, "].compnode"), absl::StrCat("there is no compnode ", name));
    }
    const int index = static_cast<int>(compnode - compnodes.begin());
    const auto known = std::find(used.indexes.begin(), used.indexes.end(), index);
    used.of_stage.push_back(static_cast<int>(known - used.indexes.begin()));
    if (known == used.indexes.end()) used.indexes.push_back(index);
  }
  return used;
}

}  // namespace

Plan PlanOf(const Problem& problem, const Partition& partition, const Simulation& simulation,
            const Simulation& free_links) {
  Plan plan;
  plan.set_step_seconds(simulation.step_seconds);
  plan.set_bubble_fraction(simulation.bubble_fraction);
  plan.set_free_links_step_seconds(free_links.step_seconds);
  plan.set_rho(CommunicationToCompute(problem, partition));
  const std::vector<int64_t> memory = StageMemory(problem, partition);
  for (size_t s = 0; s < partition.stages.size(); ++s) {
    PlannedStage& stage = *plan.add_stages();
    stage = StageOf(problem, partition.stages[s], simulation.stages[s], memory[s]);
    stage.set_index(static_cast<int>(s));
  }
  for (const SimulatedLink& link : simulation.links) *plan.add_links() = LinkOf(partition, link);
  return plan;
}

absl::StatusOr<Partition> PartitionOf(const Problem& problem, const Plan& plan) {
  const std::map<std::string, int> nodes = IndexByName(problem.nodes);
  const std::map<std::string, int> operators = IndexByName(problem.operators);
  Partition partition;
  for (int s = 0; s < plan.stages_size(); ++s) {
    absl::StatusOr<PlacedStage> stage =
        PlacedStageOf(plan.stages(s), absl::StrCat("stages[", s, "]"), nodes, operators);
    if (!stage.ok()) return stage.status();
    partition.stages.push_back(*std::move(stage));
  }
  for (int l = 0; l < plan.links_size(); ++l) {
    const PlannedLink& link = plan.links(l);
    if (link.direction() != PlannedLink::Forward) continue;
    const std::string path = absl::StrCat("links[", l, "]");
    const absl::StatusOr<codec::Codec> codec = codec::ParseCodec(link.codec());
    if (!codec.ok()) return Invalid(absl::StrCat(path, ".codec"), codec.status().message());
    for (const int stage : {link.from(), link.to()}) {
      if (stage < 0 || stage >= plan.stages_size()) {
        return Invalid(path, absl::StrCat("stage ", stage, " of ", plan.stages_size()));
      }
    }
    if (*codec != codec::Codec()) partition.codecs.push_back({link.from(), link.to(), *codec});
  }
  return partition;
}

double CommunicationToCompute(const Problem& problem, const Partition& partition) {
  Partition dense = partition;
  dense.codecs.clear();
  double communication = 0;
  for (const double seconds : ResourceSeconds(problem, dense, MakeQuotient(problem, dense))) {
    communication = std::max(communication, seconds);
  }
  double flops = 0;
  for (const OperatorWork& work : problem.operators) flops += work.flops * problem.micro_batches;
  double speed = 0;
  for (const Node& node : problem.nodes) speed += node.flops;
  return flops > 0 ? communication / (flops / speed) : 0;
}

absl::StatusOr<std::vector<std::vector<wire::v1::EmulatedLink>>> EmulatedLinksOf(
    const std::vector<v1alpha1::Compnode>& compnodes, const Plan& plan) {
  std::vector<std::vector<wire::v1::EmulatedLink>> links(plan.stages_size());
  const absl::StatusOr<UsedCompnodes> used = FindUsed(compnodes, plan);
  if (!used.ok()) return used.status();
  if (used->indexes.empty()) return links;
  const absl::StatusOr<Network> network = MakeNetwork(compnodes, used->indexes);
  if (!network.ok()) return network.status();
  for (int from = 0; from < plan.stages_size(); ++from) {
    const int node = used->of_stage[from];
    if (!compnodes[used->indexes[node]].spec().emulation().links()) continue;
    for (int to = 0; to < plan.stages_size(); ++to) {
      if (to == from) continue;
      const Way way = network->Between(node, used->of_stage[to]);
      wire::v1::EmulatedLink& link = links[from].emplace_back();
      link.set_to_stage(to);
      link.set_latency_seconds(way.latency_seconds);
      for (const int index : way.resources) {
        wire::v1::EmulatedLink::Resource& resource = *link.add_resources();
        resource.set_name(network->resources[index].name);
        resource.set_bits_per_second(network->resources[index].bytes_per_second * 8);
      }
    }
  }
  return links;
}

}  // namespace fusion::scheduler
