#include "worker/pipeline/schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

using graph::v1::Argument;
using graph::v1::Edge;
using graph::v1::Operator;
using graph::v1::StageProgram;

bool IsFloating(graph::v1::DataType dtype) {
  return dtype == graph::v1::FLOAT32 || dtype == graph::v1::FLOAT16 || dtype == graph::v1::BFLOAT16 ||
         dtype == graph::v1::FLOAT64;
}

void AddSorted(std::vector<int>& list, int item) {
  const auto place = std::lower_bound(list.begin(), list.end(), item);
  if (place == list.end() || *place != item) {
    list.insert(place, item);
  }
}

template <typename Visit>
void ForEachRead(const Operator& op, Visit visit) {
  const auto of_argument = [&visit](const Argument& argument) {
    if (argument.has_value()) {
      visit(argument.value().operator_());
    }
    for (const graph::v1::ValueRef& ref : argument.values().items()) {
      visit(ref.operator_());
    }
  };
  for (const Argument& argument : op.args()) {
    of_argument(argument);
  }
  for (const graph::v1::NamedArgument& named : op.kwargs()) {
    of_argument(named.argument());
  }
}

// Finds what the sub-DAGs of one stage give each other, and which of their values need a gradient.
class LocalReads {
 public:
  LocalReads(const StageProgram& program, std::vector<SubDagRule>& rules) : rules_(rules) {
    for (const Edge& edge : program.incoming()) {
      if (edge.differentiable()) {
        needs_gradient_.insert(edge.value().operator_());
      }
    }
    for (int i = 0; i < program.sub_dags_size(); ++i) {
      for (const Operator& op : program.sub_dags(i).operators()) {
        Visit(op, i);
      }
    }
  }

 private:
  void Visit(const Operator& op, int sub_dag) {
    home_[op.name()] = op.kind() == Operator::VARIABLE ? kEverywhere : sub_dag;
    bool reads_differentiable = op.kind() == Operator::VARIABLE && op.variable().trainable();
    ForEachRead(op, [&](const std::string& name) {
      const bool differentiable = needs_gradient_.count(name) > 0;
      reads_differentiable |= differentiable;
      const auto home = home_.find(name);
      if (home == home_.end() || home->second == kEverywhere || home->second == sub_dag) {
        return;
      }
      AddSorted(rules_[sub_dag].forward_after, home->second);
      AddSorted(rules_[home->second].readers, sub_dag);
      if (differentiable) {
        rules_[home->second].has_backward = true;
        rules_[sub_dag].has_backward = true;
        AddSorted(rules_[home->second].backward_after, sub_dag);
      }
    });
    const bool floating = std::any_of(op.outputs().begin(), op.outputs().end(),
                                      [](const auto& spec) { return IsFloating(spec.dtype()); });
    if (reads_differentiable && floating) {
      needs_gradient_.insert(op.name());
    }
  }

  static constexpr int kEverywhere = -1;  // a variable: no pass computes it

  std::vector<SubDagRule>& rules_;
  std::map<std::string, int> home_;
  std::set<std::string> needs_gradient_;
};

absl::Status AddEdges(const StageProgram& program, std::vector<SubDagRule>& rules) {
  const int count = static_cast<int>(rules.size());
  for (const Edge& edge : program.incoming()) {
    if (edge.to_sub_dags().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("edge ", edge.id(), " has no reader in stage ", program.stage()));
    }
    for (const int reader : edge.to_sub_dags()) {
      if (reader < 0 || reader >= count) {
        return absl::InvalidArgumentError(
            absl::StrCat("edge ", edge.id(), " goes to sub-DAG ", reader, " of ", count));
      }
      ++rules[reader].values;
      if (edge.differentiable()) {
        rules[reader].has_backward = true;
        if (reader != edge.to_sub_dags(0)) {
          // The first reader's backward returns the sum over all of them.
          AddSorted(rules[edge.to_sub_dags(0)].backward_after, reader);
        }
      }
    }
  }
  for (const Edge& edge : program.outgoing()) {
    if (edge.from_sub_dag() < 0 || edge.from_sub_dag() >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("edge ", edge.id(), " comes from sub-DAG ", edge.from_sub_dag(), " of ", count));
    }
    SubDagRule& rule = rules[edge.from_sub_dag()];
    if (edge.differentiable()) {
      rule.has_backward = true;
      rule.gradients += edge.cotangent_per_consumer() ? edge.consumers_size() : 1;
    }
  }
  return absl::OkStatus();
}

bool Done(const StepState& state) {
  return std::all_of(state.sub_dags.begin(), state.sub_dags.end(), [&](const SubDagState& sub_dag) {
    return sub_dag.forwards == state.micro_batches && sub_dag.backwards == state.micro_batches;
  });
}

bool ForwardReady(const StageSchedule& schedule, const StepState& state, int index) {
  const SubDagRule& rule = schedule.sub_dags[index];
  const SubDagState& sub_dag = state.sub_dags[index];
  const int m = sub_dag.forwards;
  if (m == state.micro_batches || sub_dag.missing_values[m] > 0) {
    return false;
  }
  for (const int before : rule.forward_after) {
    if (state.sub_dags[before].forwards <= m) {
      return false;
    }
  }
  if (state.training && rule.has_backward) {
    return m - sub_dag.backwards < rule.depth;
  }
  for (const int reader : rule.readers) {
    if (m - state.sub_dags[reader].forwards >= rule.depth) {
      return false;
    }
  }
  return sub_dag.not_granted < rule.depth;
}

bool BackwardReady(const StageSchedule& schedule, const StepState& state, int index) {
  const SubDagRule& rule = schedule.sub_dags[index];
  const SubDagState& sub_dag = state.sub_dags[index];
  const int m = sub_dag.backwards;
  if (m >= sub_dag.forwards || sub_dag.missing_gradients[m] > 0) {
    return false;
  }
  if (schedule.order == PipelineOrder::kGPipe &&
      std::any_of(state.sub_dags.begin(), state.sub_dags.end(),
                  [&](const SubDagState& other) { return other.forwards < state.micro_batches; })) {
    return false;
  }
  return std::all_of(rule.backward_after.begin(), rule.backward_after.end(),
                     [&](int before) { return state.sub_dags[before].backwards > m; });
}

StepState Start(const StageSchedule& schedule, bool training, int micro_batches) {
  StepState state;
  state.training = training;
  state.micro_batches = micro_batches;
  for (const SubDagRule& rule : schedule.sub_dags) {
    SubDagState sub_dag;
    sub_dag.missing_values.assign(micro_batches, rule.values);
    sub_dag.missing_gradients.assign(micro_batches, rule.gradients);
    sub_dag.backwards = training && rule.has_backward ? 0 : micro_batches;
    state.sub_dags.push_back(std::move(sub_dag));
  }
  state.missing_lent_gradients = schedule.lent_gradients;
  state.missing_borrowed_values = schedule.borrowed_values;
  state.missing_norms = schedule.norms;
  state.missing_decisions = schedule.decisions;
  return state;
}

}  // namespace

absl::StatusOr<StageSchedule> MakeSchedule(const StageProgram& program, PipelineOrder order,
                                           int micro_batches) {
  StageSchedule schedule;
  schedule.order = order;
  schedule.micro_batches = micro_batches;
  schedule.sub_dags.resize(program.sub_dags_size());
  for (int i = 0; i < program.sub_dags_size(); ++i) {
    const int depth = program.sub_dags(i).depth();
    if (depth < 1) {
      return absl::InvalidArgumentError(absl::StrCat("sub-DAG ", i, " of stage ", program.stage(),
                                                     " has depth ", depth, ", not at least 1"));
    }
    SubDagRule& rule = schedule.sub_dags[i];
    // All forwards come before the first backward: less would never end.
    rule.depth = order == PipelineOrder::kGPipe ? micro_batches : depth;
    for (const Operator& op : program.sub_dags(i).operators()) {
      rule.has_backward |= program.computes_loss() && op.name() == program.loss().operator_();
    }
  }
  if (const absl::Status status = AddEdges(program, schedule.sub_dags); !status.ok()) {
    return status;
  }
  LocalReads(program, schedule.sub_dags);
  for (const graph::v1::SharedVariable& lent : program.lent()) {
    schedule.lent_gradients += lent.consumers_size();
  }
  schedule.borrowed_values = program.borrowed_size();
  schedule.norms = program.decision().children_size();
  schedule.decisions = program.decision().has_parent() ? 1 : 0;
  return schedule;
}

StepState StartStep(const StageSchedule& schedule) { return Start(schedule, true, schedule.micro_batches); }

StepState StartValidation(const StageSchedule& schedule, int passes) {
  return Start(schedule, false, passes);
}

const char* TaskName(TaskKind kind) {
  switch (kind) {
    case TaskKind::kForward:
      return "forward";
    case TaskKind::kBackward:
      return "backward";
    case TaskKind::kReturnGradients:
      return "return of gradients";
    case TaskKind::kDecide:
      return "decision";
    case TaskKind::kUpdate:
      return "update";
    case TaskKind::kTakeVariables:
      return "taking of variables";
    default:
      return "wait";
  }
}

Task NextTask(const StageSchedule& schedule, const StepState& state) {
  switch (state.phase) {
    case StepPhase::kPasses:
      break;
    case StepPhase::kReturnGradients:
      return {.kind = TaskKind::kReturnGradients};
    case StepPhase::kDecide:
      return {.kind = state.missing_lent_gradients > 0 || state.missing_norms > 0 ? TaskKind::kWait
                                                                                  : TaskKind::kDecide};
    case StepPhase::kUpdate:
      return {.kind = state.missing_decisions > 0 ? TaskKind::kWait : TaskKind::kUpdate};
    case StepPhase::kTakeVariables:
      return {.kind = state.missing_borrowed_values > 0 ? TaskKind::kWait : TaskKind::kTakeVariables};
    case StepPhase::kFinished:
      return {.kind = TaskKind::kFinished};
  }
  Task best;
  const int count = static_cast<int>(state.sub_dags.size());
  for (int i = count - 1; i >= 0; --i) {
    const int m = state.sub_dags[i].backwards;
    if (BackwardReady(schedule, state, i) && (best.kind == TaskKind::kWait || m < best.micro_batch)) {
      best = {.kind = TaskKind::kBackward, .sub_dag = i, .micro_batch = m};
    }
  }
  if (best.kind == TaskKind::kBackward) {
    return best;
  }
  for (int i = 0; i < count; ++i) {
    const int m = state.sub_dags[i].forwards;
    if (ForwardReady(schedule, state, i) && (best.kind == TaskKind::kWait || m < best.micro_batch)) {
      best = {.kind = TaskKind::kForward, .sub_dag = i, .micro_batch = m};
    }
  }
  return best;
}

void CompleteTask(const Task& task, StepState& state) {
  switch (task.kind) {
    case TaskKind::kForward:
      ++state.sub_dags[task.sub_dag].forwards;
      break;
    case TaskKind::kBackward:
      ++state.sub_dags[task.sub_dag].backwards;
      break;
    case TaskKind::kReturnGradients:
      state.phase = StepPhase::kDecide;
      return;
    case TaskKind::kDecide:
      state.phase = StepPhase::kUpdate;
      return;
    case TaskKind::kUpdate:
      state.phase = StepPhase::kTakeVariables;
      return;
    case TaskKind::kTakeVariables:
      state.phase = StepPhase::kFinished;
      return;
    case TaskKind::kWait:
    case TaskKind::kFinished:
      return;
  }
  if (Done(state)) {
    state.phase = state.training ? StepPhase::kReturnGradients : StepPhase::kFinished;
  }
}

}  // namespace fusion::worker
