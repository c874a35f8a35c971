// Random graphs and placements for property tests.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fusion/graph/v1/graph.pb.h"
#include "graph/builder.h"
#include "graph/slicing.h"

namespace fusion::graph {

/// A graph with skip edges, shared variables, operators with two outputs, integer values and a path without
/// gradient.
inline v1::Graph RandomGraph() {
  v1::Graph graph;
  graph.set_name("random");
  const int variables = *rc::gen::inRange(1, 4);
  const int operators = *rc::gen::inRange(2, 14);
  struct Output {
    v1::ValueRef ref;
    bool variable = false;
  };
  std::vector<Output> values;
  const auto publish = [&](const v1::Operator& op) {
    for (int i = 0; i < op.outputs_size(); ++i) {
      Output output{.ref = {}, .variable = op.kind() == v1::Operator::VARIABLE};
      output.ref.set_operator_(op.name());
      output.ref.set_index(i);
      values.push_back(output);
    }
    *graph.add_operators() = op;
  };
  const auto compute = [&](const std::string& name, const Shape& shape, const std::vector<int>& reads) {
    v1::Operator op;
    op.set_name(name);
    op.set_type("test.mix");
    op.set_kind(v1::Operator::NON_PARAMETRIC);
    op.mutable_flops()->set_forward(1);
    v1::Argument::Values* list = op.add_args()->mutable_values();
    for (const int read : reads) {
      *list->add_items() = values[read].ref;
      if (values[read].variable) op.set_kind(v1::Operator::PARAMETRIC);
    }
    const int outputs = shape.empty() ? 1 : *rc::gen::inRange(1, 3);
    for (int i = 0; i < outputs; ++i) {
      const bool integer = i > 0 && *rc::gen::arbitrary<bool>();
      *op.add_outputs() = MakeSpec(integer ? v1::INT64 : v1::FLOAT32, shape);
    }
    publish(op);
  };

  v1::Operator input;
  input.set_name("input");
  input.set_kind(v1::Operator::PLACEHOLDER);
  *input.add_outputs() = MakeSpec(v1::FLOAT32, {Batch(), 4});
  publish(input);
  for (int i = 0; i < variables; ++i) {
    v1::Operator op;
    op.set_name(absl::StrCat("w", i));
    op.set_kind(v1::Operator::VARIABLE);
    op.mutable_variable()->set_tensor_name(op.name());
    op.mutable_variable()->set_trainable(*rc::gen::inRange(0, 4) != 0);
    *op.mutable_variable()->mutable_init() = Zeros();
    *op.add_outputs() = MakeSpec(v1::FLOAT32, {4});
    publish(op);
  }
  // The first computed value is read often.
  const int popular = static_cast<int>(values.size());
  compute("f", {Batch(), 4}, {0, 1});
  for (int i = 0; i < operators; ++i) {
    std::vector<int> reads = *rc::gen::container<std::vector<int>>(
        *rc::gen::inRange(1, 4), rc::gen::inRange(0, static_cast<int>(values.size())));
    if (*rc::gen::arbitrary<bool>()) reads.push_back(popular);
    if (i < variables) reads.push_back(1 + i);  // so that every variable has a reader
    compute(absl::StrCat("f", i), {Batch(), 4}, reads);
  }
  for (int i = operators; i < variables; ++i) compute(absl::StrCat("f", i), {Batch(), 4}, {1 + i});
  compute("loss", {}, {static_cast<int>(values.size()) - 1});
  graph.mutable_loss()->set_operator_("loss");
  return graph;
}

/// Any assignment of the operators, often but not always a valid one: a cut of the order, then a few
/// operators moved.
inline Placement RandomPlacement(const v1::Graph& graph) {
  std::vector<std::string> names;
  for (const v1::Operator& op : graph.operators()) {
    if (op.kind() != v1::Operator::VARIABLE) names.push_back(op.name());
  }
  const int parts = *rc::gen::inRange(1, 7);
  auto cuts = *rc::gen::container<std::vector<int>>(names.size(), rc::gen::inRange(0, parts));
  std::sort(cuts.begin(), cuts.end());
  const int moves = *rc::gen::inRange(0, 12);
  for (int i = 0; i < moves; ++i) {
    cuts[*rc::gen::inRange(0, static_cast<int>(cuts.size()))] = *rc::gen::inRange(0, parts);
  }
  std::vector<SubDagPlacement> sub_dags(parts);
  for (size_t i = 0; i < names.size(); ++i) sub_dags[cuts[i]].operators.push_back(names[i]);
  const int stages = *rc::gen::inRange(1, parts + 1);
  Placement placement(stages);
  for (SubDagPlacement& sub_dag : sub_dags) {
    if (sub_dag.operators.empty()) continue;
    StagePlacement& stage = placement[*rc::gen::inRange(0, stages)];
    const bool in_front = *rc::gen::inRange(0, 4) == 0;
    stage.sub_dags.insert(in_front ? stage.sub_dags.begin() : stage.sub_dags.end(), std::move(sub_dag));
  }
  std::erase_if(placement, [](const StagePlacement& stage) { return stage.sub_dags.empty(); });
  return placement;
}

}  // namespace fusion::graph
