#include "worker/engine/torch/stage_graph.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "graph/registry.h"

namespace fusion::worker::engine {
namespace {

using graph::v1::Edge;
using graph::v1::Operator;
using graph::v1::SharedVariable;
using graph::v1::TensorSpec;
using graph::v1::ValueRef;

using ValueKey = std::pair<std::string, int32_t>;

std::string ValueName(const ValueRef& ref) { return absl::StrCat(ref.operator_(), "[", ref.index(), "]"); }

bool IsFloating(const TensorSpec& spec) {
  switch (spec.dtype()) {
    case graph::v1::FLOAT32:
    case graph::v1::FLOAT16:
    case graph::v1::BFLOAT16:
    case graph::v1::FLOAT64:
      return true;
    default:
      return false;
  }
}

class Resolver {
 public:
  explicit Resolver(StageGraph& stage) : stage_(stage), program_(stage.program) {}

  absl::Status Run() {
    for (const SharedVariable& shared : program_.borrowed()) {
      borrowed_.insert(shared.variable());
    }
    for (const Edge& edge : program_.incoming()) {
      absl::StatusOr<StageEdge> resolved =
          Resolve(edge, AddSlot(edge.value(), edge.spec(), edge.differentiable()));
      if (!resolved.ok()) {
        return resolved.status();
      }
      stage_.incoming.push_back(*std::move(resolved));
    }
    for (const graph::v1::SubDag& sub_dag : program_.sub_dags()) {
      for (const Operator& op : sub_dag.operators()) {
        AddVariable(op);
      }
    }
    for (const graph::v1::SubDag& sub_dag : program_.sub_dags()) {
      stage_.sub_dags.emplace_back();
      for (const Operator& op : sub_dag.operators()) {
        if (op.kind() == Operator::VARIABLE) {
          continue;
        }
        if (absl::Status status = AddOperator(op); !status.ok()) {
          return status;
        }
      }
    }
    for (StageSubDag& sub_dag : stage_.sub_dags) {
      FindOuterInputs(sub_dag);
    }
    if (absl::Status status = AddEdges(); !status.ok()) {
      return status;
    }
    if (absl::Status status = NumberUses(); !status.ok()) {
      return status;
    }
    return FindLoss();
  }

 private:
  int AddSlot(const ValueRef& ref, const TensorSpec& spec, bool differentiable) {
    const int slot = static_cast<int>(stage_.slots.size());
    stage_.slots.push_back({.name = ValueName(ref), .spec = spec, .differentiable = differentiable});
    slot_of_[{ref.operator_(), ref.index()}] = slot;
    return slot;
  }

  void AddVariable(const Operator& op) {
    if (op.kind() != Operator::VARIABLE || variable_of_.contains(op.name())) {
      return;
    }
    variable_of_[op.name()] = static_cast<int>(stage_.variables.size());
    stage_.variables.push_back({.op = &op, .borrowed = borrowed_.contains(op.name()), .uses = {}});
  }

  absl::StatusOr<int32_t> PositionOf(const std::string& name) const {
    const auto position = program_.positions().find(name);
    if (position == program_.positions().end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stage ", program_.stage(), ": the program gives no position for operator '", name, "'"));
    }
    return position->second;
  }

  absl::StatusOr<StageEdge> Resolve(const Edge& edge, int slot) const {
    StageEdge resolved{.edge = &edge, .slot = slot, .positions = {}};
    for (const std::string& consumer : edge.consumers()) {
      const absl::StatusOr<int32_t> position = PositionOf(consumer);
      if (!position.ok()) {
        return position.status();
      }
      resolved.positions.push_back(*position);
    }
    if (resolved.positions.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("edge ", edge.id(), " has no consumer"));
    }
    return resolved;
  }

  absl::Status AddOperator(const Operator& op) {
    StageOperator resolved;
    resolved.op = &op;
    resolved.what = DescribeOperator(op);
    const absl::StatusOr<int32_t> position = PositionOf(op.name());
    if (!position.ok()) {
      return position.status();
    }
    resolved.position = *position;
    if (op.kind() != Operator::PLACEHOLDER) {
      absl::StatusOr<OperatorCall> call = OperatorCall::Bind(op);
      if (!call.ok()) {
        return call.status();
      }
      resolved.call = *std::move(call);
      for (const ValueRef& ref : resolved.call->inputs()) {
        absl::StatusOr<StageInput> input = Read(ref, resolved);
        if (!input.ok()) {
          return input.status();
        }
        resolved.differentiable |= input->differentiable;
        resolved.inputs.push_back(*input);
      }
      if (absl::Status status = MarkWrites(resolved); !status.ok()) {
        return status;
      }
    }
    for (int i = 0; i < op.outputs_size(); ++i) {
      ValueRef ref;
      ref.set_operator_(op.name());
      ref.set_index(i);
      resolved.outputs.push_back(
          AddSlot(ref, op.outputs(i), resolved.differentiable && IsFloating(op.outputs(i))));
    }
    stage_.sub_dags.back().operators.push_back(std::move(resolved));
    return absl::OkStatus();
  }

  // What graph::ValidateGraph has checked in the whole graph is checked here for what this stage would
  // change.
  absl::Status MarkWrites(StageOperator& op) {
    const std::vector<ValueRef> written = graph::WrittenVariables(*op.op);
    for (const ValueRef& ref : written) {
      const auto variable = variable_of_.find(ref.operator_());
      if (variable == variable_of_.end() ||
          stage_.variables[static_cast<size_t>(variable->second)].op->variable().trainable()) {
        return absl::InvalidArgumentError(absl::StrCat(op.what, " writes to ", ValueName(ref),
                                                       ", which is no variable with trainable false"));
      }
      stage_.written.push_back(variable->second);
      for (StageInput& input : op.inputs) {
        input.written |= input.is_variable && input.index == variable->second;
      }
    }
    for (const ValueRef& counter : op.op->counters()) {
      const int variable = variable_of_.at(counter.operator_());
      if (stage_.variables[static_cast<size_t>(variable)].op->outputs(0).dtype() != graph::v1::INT64) {
        return absl::InvalidArgumentError(
            absl::StrCat(op.what, " counts in ", ValueName(counter), ", which is not INT64"));
      }
      op.counters.push_back(variable);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StageInput> Read(const ValueRef& ref, const StageOperator& reader) {
    if (const auto variable = variable_of_.find(ref.operator_()); variable != variable_of_.end()) {
      StageVariable& read = stage_.variables[static_cast<size_t>(variable->second)];
      read.uses.emplace_back(reader.position, reader.op->name());
      return StageInput{.is_variable = true,
                        .index = variable->second,
                        .use = 0,
                        .differentiable = read.op->variable().trainable()};
    }
    const auto slot = slot_of_.find({ref.operator_(), ref.index()});
    if (slot == slot_of_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(reader.what, " reads ", ValueName(ref),
                                                     ", which neither stage ", program_.stage(),
                                                     " computes before it nor an edge brings"));
    }
    Slot& value = stage_.slots[static_cast<size_t>(slot->second)];
    ++value.reads;
    value.cotangents += value.differentiable ? 1 : 0;
    return StageInput{
        .is_variable = false, .index = slot->second, .use = 0, .differentiable = value.differentiable};
  }

  static void FindOuterInputs(StageSubDag& sub_dag) {
    std::set<int> computed;
    std::set<int> outer;
    for (const StageOperator& op : sub_dag.operators) {
      (op.call.has_value() ? computed : outer).insert(op.outputs.begin(), op.outputs.end());
      for (const StageInput& input : op.inputs) {
        if (!input.is_variable && !computed.contains(input.index)) {
          outer.insert(input.index);
        }
      }
    }
    sub_dag.outer_inputs.assign(outer.begin(), outer.end());
  }

  absl::Status AddEdges() {
    const auto sub_dags = static_cast<int32_t>(stage_.sub_dags.size());
    for (const Edge& edge : program_.outgoing()) {
      const auto slot = slot_of_.find({edge.value().operator_(), edge.value().index()});
      if (slot == slot_of_.end() || edge.from_sub_dag() < 0 || edge.from_sub_dag() >= sub_dags) {
        return absl::InvalidArgumentError(absl::StrCat("edge ", edge.id(), " leaves stage ", program_.stage(),
                                                       " with ", ValueName(edge.value()),
                                                       ", which is not computed there"));
      }
      absl::StatusOr<StageEdge> resolved = Resolve(edge, slot->second);
      if (!resolved.ok()) {
        return resolved.status();
      }
      Slot& value = stage_.slots[static_cast<size_t>(slot->second)];
      ++value.reads;
      if (edge.differentiable()) {
        value.cotangents += edge.cotangent_per_consumer() ? edge.consumers_size() : 1;
      }
      stage_.sub_dags[static_cast<size_t>(edge.from_sub_dag())].outgoing.push_back(*std::move(resolved));
    }
    for (const StageEdge& incoming : stage_.incoming) {
      if (!incoming.edge->differentiable()) {
        continue;
      }
      if (incoming.edge->to_sub_dags_size() == 0 || incoming.edge->to_sub_dags(0) < 0 ||
          incoming.edge->to_sub_dags(0) >= sub_dags) {
        return absl::InvalidArgumentError(absl::StrCat(
            "edge ", incoming.edge->id(), " names no sub-DAG of stage ", program_.stage(), " that reads it"));
      }
      stage_.sub_dags[static_cast<size_t>(incoming.edge->to_sub_dags(0))].returned.push_back(incoming);
    }
    return absl::OkStatus();
  }

  // A lent variable has uses on other stages too; with all of them known, each gets its place in the sum.
  absl::Status NumberUses() {
    for (const SharedVariable& shared : program_.lent()) {
      const auto variable = variable_of_.find(shared.variable());
      if (variable == variable_of_.end()) {
        return absl::InvalidArgumentError(absl::StrCat("stage ", program_.stage(), " lends variable '",
                                                       shared.variable(), "', which it does not have"));
      }
      for (const std::string& consumer : shared.consumers()) {
        const absl::StatusOr<int32_t> position = PositionOf(consumer);
        if (!position.ok()) {
          return position.status();
        }
        stage_.variables[static_cast<size_t>(variable->second)].uses.emplace_back(*position, consumer);
      }
    }
    for (StageVariable& variable : stage_.variables) {
      std::sort(variable.uses.begin(), variable.uses.end());
    }
    for (StageSubDag& sub_dag : stage_.sub_dags) {
      for (StageOperator& op : sub_dag.operators) {
        for (StageInput& input : op.inputs) {
          if (input.is_variable) {
            const auto& uses = stage_.variables[static_cast<size_t>(input.index)].uses;
            input.use = static_cast<int>(
                std::find(uses.begin(), uses.end(), std::pair(op.position, op.op->name())) - uses.begin());
          }
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status FindLoss() {
    if (!program_.computes_loss()) {
      return absl::OkStatus();
    }
    const auto slot = slot_of_.find({program_.loss().operator_(), program_.loss().index()});
    if (slot == slot_of_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", program_.stage(), " computes the loss ",
                                                     ValueName(program_.loss()), ", but has no such value"));
    }
    stage_.loss_slot = slot->second;
    Slot& loss = stage_.slots[static_cast<size_t>(slot->second)];
    ++loss.reads;
    loss.cotangents += loss.differentiable ? 1 : 0;  // the seed
    FindClasses();
    return absl::OkStatus();
  }

  void FindClasses() {
    for (const StageSubDag& sub_dag : stage_.sub_dags) {
      for (const StageOperator& op : sub_dag.operators) {
        if (op.op->name() != program_.loss().operator_() || op.op->type() != "aten.cross_entropy_loss" ||
            op.inputs.size() < 2 || op.inputs[0].is_variable || op.inputs[1].is_variable) {
          continue;
        }
        Slot& scores = stage_.slots[static_cast<size_t>(op.inputs[0].index)];
        Slot& classes = stage_.slots[static_cast<size_t>(op.inputs[1].index)];
        if (scores.spec.shape_size() == 2 && classes.spec.dtype() == graph::v1::INT64 &&
            classes.spec.shape_size() == 1 && classes.spec.shape(0) == -1) {
          stage_.scores_slot = op.inputs[0].index;
          stage_.classes_slot = op.inputs[1].index;
          ++scores.reads;
          ++classes.reads;
        }
      }
    }
  }

  StageGraph& stage_;
  const graph::v1::StageProgram& program_;
  std::set<std::string> borrowed_;
  std::map<ValueKey, int> slot_of_;
  std::map<std::string, int> variable_of_;
};

}  // namespace

const StageEdge* StageGraph::FindIncoming(int32_t edge) const {
  for (const StageEdge& candidate : incoming) {
    if (candidate.edge->id() == edge) {
      return &candidate;
    }
  }
  return nullptr;
}

const StageEdge* StageGraph::FindOutgoing(int32_t edge) const {
  for (const StageSubDag& sub_dag : sub_dags) {
    for (const StageEdge& candidate : sub_dag.outgoing) {
      if (candidate.edge->id() == edge) {
        return &candidate;
      }
    }
  }
  return nullptr;
}

absl::StatusOr<std::unique_ptr<const StageGraph>> ResolveStage(const graph::v1::StageProgram& program) {
  auto stage = std::make_unique<StageGraph>();
  stage->program = program;
  if (absl::Status status = Resolver(*stage).Run(); !status.ok()) {
    return status;
  }
  return stage;
}

}  // namespace fusion::worker::engine
