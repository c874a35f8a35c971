// Properties of slicing over random graphs and placements.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "graph/graph_index.h"
#include "graph/random_graph_for_test.h"
#include "graph/registry.h"
#include "graph/slicing.h"

namespace fusion::graph {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using Relation = std::vector<std::vector<bool>>;

/// Transitive closure by Warshall's algorithm, to check the depth-first search against.
bool HasCycle(Relation before) {
  const size_t n = before.size();
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) before[i][j] = before[i][j] || (before[i][k] && before[k][j]);
    }
  }
  for (size_t i = 0; i < n; ++i) {
    if (before[i][i]) return true;
  }
  return false;
}

struct Blocks {
  Relation reads;      ///< [a][b]: b reads a value of a
  Relation run_order;  ///< [a][b]: b follows a in their stage
};

Blocks BlocksOf(const v1::Graph& graph, const Placement& placement) {
  std::map<std::string, int> block_of;
  std::vector<int> stage_of;
  for (size_t stage = 0; stage < placement.size(); ++stage) {
    for (const SubDagPlacement& sub_dag : placement[stage].sub_dags) {
      for (const std::string& name : sub_dag.operators) block_of[name] = static_cast<int>(stage_of.size());
      stage_of.push_back(static_cast<int>(stage));
    }
  }
  const size_t n = stage_of.size();
  Blocks blocks{Relation(n, std::vector<bool>(n)), Relation(n, std::vector<bool>(n))};
  for (const v1::Operator& op : graph.operators()) {
    ForEachRead(op, [&](const v1::ValueRef& ref) {
      if (block_of.count(ref.operator_()) == 0) return;
      const int from = block_of[ref.operator_()];
      const int to = block_of[op.name()];
      if (from != to) blocks.reads[from][to] = true;
    });
  }
  for (size_t i = 1; i < n; ++i) {
    if (stage_of[i] == stage_of[i - 1]) blocks.run_order[i - 1][i] = true;
  }
  return blocks;
}

Relation Union(Relation a, const Relation& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a.size(); ++j) a[i][j] = a[i][j] || b[i][j];
  }
  return a;
}

/// A random graph with a placement that slices; discards the others.
struct Sliced {
  v1::Graph graph;
  Placement placement;
  std::vector<v1::StageProgram> programs;
};

Sliced RandomSliced() {
  Sliced sliced;
  sliced.graph = RandomGraph();
  RC_ASSERT(ValidateGraph(sliced.graph).ok());
  sliced.placement = RandomPlacement(sliced.graph);
  auto programs = Slice(sliced.graph, sliced.placement);
  RC_PRE(programs.ok());
  sliced.programs = *std::move(programs);
  return sliced;
}

std::string Key(const v1::ValueRef& ref) { return absl::StrCat(ref.operator_(), ":", ref.index()); }

RC_GTEST_PROP(Slice, AcceptsExactlyWhatCanRun, ()) {
  const v1::Graph graph = RandomGraph();
  const Placement placement = RandomPlacement(graph);
  const Blocks blocks = BlocksOf(graph, placement);
  const bool crossed = HasCycle(blocks.reads);
  const bool disordered = HasCycle(Union(blocks.reads, blocks.run_order));
  RC_CLASSIFY(crossed);
  RC_CLASSIFY(disordered && !crossed);
  RC_CLASSIFY(!disordered);
  const auto programs = Slice(graph, placement);
  RC_ASSERT(programs.ok() == !disordered);
  if (crossed) RC_ASSERT(programs.status().message().find("wait for each other") != std::string::npos);
  if (disordered && !crossed) RC_ASSERT(programs.status().message().find("run order") != std::string::npos);
}

RC_GTEST_PROP(Slice, ProgramsJoinedAreTheGraph, ()) {
  const Sliced sliced = RandomSliced();
  std::map<int, v1::Operator> joined;
  for (const v1::StageProgram& program : sliced.programs) {
    std::set<std::string> borrowed;
    for (const v1::SharedVariable& shared : program.borrowed()) borrowed.insert(shared.variable());
    for (const v1::SubDag& sub_dag : program.sub_dags()) {
      for (const v1::Operator& op : sub_dag.operators()) {
        if (borrowed.count(op.name()) > 0) continue;
        RC_ASSERT(joined.emplace(program.positions().at(op.name()), op).second);
      }
    }
  }
  RC_ASSERT(static_cast<int>(joined.size()) == sliced.graph.operators_size());
  for (const auto& [position, op] : joined) {
    RC_ASSERT(MessageDifferencer::Equals(op, sliced.graph.operators(position)));
  }
}

/// Runs the programs as workers do: a sub-DAG starts when the one before it is done and its edges have
/// arrived; inside it, an operator finds each value once, in the stage's table.
RC_GTEST_PROP(Slice, ProgramsRunToTheEnd, ()) {
  const Sliced sliced = RandomSliced();
  const size_t stages = sliced.programs.size();
  std::vector<int> next(stages);
  std::vector<std::set<std::string>> table(stages);
  std::set<int> sent;
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t stage = 0; stage < stages; ++stage) {
      const v1::StageProgram& program = sliced.programs[stage];
      if (next[stage] == program.sub_dags_size()) continue;
      bool ready = true;
      std::vector<std::string> arriving;
      for (const v1::Edge& edge : program.incoming()) {
        if (edge.to_sub_dags(0) != next[stage]) continue;
        ready = ready && sent.count(edge.id()) > 0;
        arriving.push_back(Key(edge.value()));
      }
      if (!ready) continue;
      for (const std::string& value : arriving) RC_ASSERT(table[stage].insert(value).second);
      for (const v1::Operator& op : program.sub_dags(next[stage]).operators()) {
        ForEachRead(op, [&](const v1::ValueRef& ref) { RC_ASSERT(table[stage].count(Key(ref)) == 1); });
        for (int i = 0; i < op.outputs_size(); ++i) {
          RC_ASSERT(table[stage].insert(absl::StrCat(op.name(), ":", i)).second);
        }
      }
      for (const v1::Edge& edge : program.outgoing()) {
        if (edge.from_sub_dag() == next[stage]) RC_ASSERT(sent.insert(edge.id()).second);
      }
      ++next[stage];
      moved = true;
    }
  }
  for (size_t stage = 0; stage < stages; ++stage)
    RC_ASSERT(next[stage] == sliced.programs[stage].sub_dags_size());
}

RC_GTEST_PROP(Slice, EdgesAreTheSameAtBothEnds, ()) {
  const Sliced sliced = RandomSliced();
  std::map<int, v1::Edge> outgoing;
  for (const v1::StageProgram& program : sliced.programs) {
    int last = -1;
    for (const v1::Edge& edge : program.outgoing()) {
      RC_ASSERT(edge.from_stage() == program.stage());
      RC_ASSERT(edge.id() > last);
      last = edge.id();
      RC_ASSERT(outgoing.emplace(edge.id(), edge).second);
    }
  }
  size_t incoming = 0;
  for (const v1::StageProgram& program : sliced.programs) {
    std::set<std::string> values;
    for (const v1::Edge& edge : program.incoming()) {
      RC_ASSERT(edge.to_stage() == program.stage());
      RC_ASSERT(values.insert(Key(edge.value())).second);
      RC_ASSERT(MessageDifferencer::Equals(edge, outgoing.at(edge.id())));
      ++incoming;
    }
  }
  RC_ASSERT(incoming == outgoing.size());
}

/// f, and a chain of readers of it, each of them a sub-DAG of its own in any stage.
Sliced RandomReaders() {
  const int readers = *rc::gen::inRange(2, 9);
  const int stages = *rc::gen::inRange(2, 5);
  GraphBuilder builder("readers");
  const v1::ValueRef input = builder.Placeholder("input", v1::FLOAT32, {Batch(), 4});
  const v1::ValueRef weight = builder.Variable("w", {4}, Ones());
  const v1::ValueRef f = builder.Add("f", "aten.mul.Tensor", {Read(input), Read(weight)});
  v1::ValueRef last = f;
  Sliced sliced;
  sliced.placement.resize(stages);
  sliced.placement[0].sub_dags.push_back({.operators = {"input", "f"}});
  for (int i = 0; i < readers; ++i) {
    const std::string name = absl::StrCat("reader", i);
    last = builder.Add(name, "aten.mul.Tensor", {Read(last), Read(f)});
    sliced.placement[*rc::gen::inRange(0, stages)].sub_dags.push_back({.operators = {name}});
  }
  const v1::ValueRef label = builder.Placeholder("label", v1::FLOAT32, {Batch(), 4});
  auto graph = builder.Finish(builder.Add("loss", "aten.mse_loss", {Read(last), Read(label)}));
  RC_ASSERT(graph.ok());
  sliced.placement[0].sub_dags.push_back({.operators = {"label", "loss"}});
  std::erase_if(sliced.placement, [](const StagePlacement& stage) { return stage.sub_dags.empty(); });
  sliced.graph = *std::move(graph);
  auto programs = Slice(sliced.graph, sliced.placement);
  RC_ASSERT(programs.ok());
  sliced.programs = *std::move(programs);
  return sliced;
}

/// Terms by the reader's position, added from the last to the first.
float DescendingSum(const std::map<int, float>& terms) {
  float total = terms.rbegin()->second;
  for (auto term = std::next(terms.rbegin()); term != terms.rend(); ++term) total += term->second;
  return total;
}

/// Sums random cotangents of f in one process and over the edges, in the order that graph.proto gives.
RC_GTEST_PROP(Slice, CotangentSumsAreThoseOfOneProcess, ()) {
  const Sliced sliced = RandomReaders();
  const GraphIndex index(sliced.graph);
  const auto mantissas =
      *rc::gen::container<std::vector<int>>(64, rc::gen::resize(100, rc::gen::inRange(1, 1 << 24)));
  for (int draw = 0; draw < 8; ++draw) {
    std::map<int, float> all;
    for (int i = 0; i < sliced.graph.operators_size(); ++i) {
      ForEachRead(sliced.graph.operators(i), [&](const v1::ValueRef& ref) {
        if (ref.operator_() == "f")
          all.try_emplace(i, static_cast<float>(mantissas[(draw * 8 + i) % 64]) / 3);
      });
    }
    std::map<int, float> terms = all;  // those of readers in the producer's stage stay as they are
    for (const v1::StageProgram& program : sliced.programs) {
      for (const v1::Edge& edge : program.incoming()) {
        if (edge.value().operator_() != "f" || edge.cotangent_per_consumer()) continue;
        std::map<int, float> summed;
        for (const std::string& consumer : edge.consumers()) {
          summed.insert(*all.find(index.Find(consumer)));
          terms.erase(index.Find(consumer));
        }
        terms[index.Find(edge.consumers(0))] = DescendingSum(summed);
      }
    }
    RC_ASSERT(DescendingSum(terms) == DescendingSum(all));
  }
}

/// The twin graph reads through its codec operators exactly what crosses, and is a valid graph.
RC_GTEST_PROP(InsertCodecs, StandsForEveryCompressedEdge, ()) {
  Sliced sliced = RandomSliced();
  v1::Plan plan;
  for (int from = 0; from < static_cast<int>(sliced.programs.size()); ++from) {
    for (int to = 0; to < static_cast<int>(sliced.programs.size()); ++to) {
      const std::string codec = (from + to) % 2 == 0 ? "fp32" : "int8";
      for (const auto direction : {v1::PlannedLink::Forward, v1::PlannedLink::Backward}) {
        v1::PlannedLink* link = plan.add_links();
        link->set_from(from);
        link->set_to(to);
        link->set_direction(direction);
        link->set_codec(codec);
      }
    }
  }
  RC_ASSERT(SetCodecs(plan, sliced.programs).ok());
  const auto twin = InsertCodecs(sliced.graph, sliced.programs);
  RC_ASSERT(twin.ok());
  int expected = sliced.graph.operators_size();
  const GraphIndex index(*twin);
  for (const v1::StageProgram& program : sliced.programs) {
    for (const v1::Edge& edge : program.incoming()) {
      if (edge.forward_codec() == kDenseCodec) continue;
      ++expected;
      for (const std::string& consumer : edge.consumers()) {
        ForEachRead(index.At(index.Find(consumer)),
                    [&](const v1::ValueRef& ref) { RC_ASSERT(Key(ref) != Key(edge.value())); });
      }
    }
  }
  RC_ASSERT(twin->operators_size() == expected);
}

}  // namespace
}  // namespace fusion::graph
