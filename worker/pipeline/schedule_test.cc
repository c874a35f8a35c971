#include "worker/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "worker/testing/fake_model.h"

namespace fusion::worker {
namespace {

using graph::v1::Edge;
using graph::v1::StageProgram;

Task ForwardOf(int sub_dag, int m) {
  return {.kind = TaskKind::kForward, .sub_dag = sub_dag, .micro_batch = m};
}
Task BackwardOf(int sub_dag, int m) {
  return {.kind = TaskKind::kBackward, .sub_dag = sub_dag, .micro_batch = m};
}
constexpr Task kWaits{.kind = TaskKind::kWait};

/// A middle stage of a chain: one value in, one gradient out.
StageSchedule Chain(int depth, int micro_batches,
                    PipelineOrder order = PipelineOrder::kOneForwardOneBackward) {
  StageSchedule schedule;
  schedule.order = order;
  schedule.micro_batches = micro_batches;
  schedule.sub_dags = {{.depth = depth,
                        .has_backward = true,
                        .forward_after = {},
                        .backward_after = {},
                        .readers = {},
                        .values = 1,
                        .gradients = 1}};
  return schedule;
}

struct Ready {
  std::string name;
  std::vector<int> forwards, backwards;  ///< done, by sub-DAG
  std::vector<int> values, gradients;    ///< arrived for so many micro-batches, by sub-DAG
  Task expected;
};

class TaskOrder : public ::testing::TestWithParam<Ready> {};

// Two independent sub-DAGs of depth 2, three micro-batches.
TEST_P(TaskOrder, IsBackwardFirstThenLowestMicroBatch) {
  StageSchedule schedule = Chain(2, 3);
  schedule.sub_dags.push_back(schedule.sub_dags[0]);
  StepState state = StartStep(schedule);
  for (int i = 0; i < 2; ++i) {
    state.sub_dags[i].forwards = GetParam().forwards[i];
    state.sub_dags[i].backwards = GetParam().backwards[i];
    for (int m = 0; m < 3; ++m) {
      state.sub_dags[i].missing_values[m] = m < GetParam().values[i] ? 0 : 1;
      state.sub_dags[i].missing_gradients[m] = m < GetParam().gradients[i] ? 0 : 1;
    }
  }
  const Task task = NextTask(schedule, state);
  EXPECT_EQ(task.kind, GetParam().expected.kind);
  EXPECT_EQ(task.sub_dag, GetParam().expected.sub_dag);
  EXPECT_EQ(task.micro_batch, GetParam().expected.micro_batch);
}

INSTANTIATE_TEST_SUITE_P(
    Table, TaskOrder,
    ::testing::Values(
        Ready{"NothingArrived", {0, 0}, {0, 0}, {0, 0}, {0, 0}, kWaits},
        Ready{"EarlierSubDagFirst", {0, 0}, {0, 0}, {1, 1}, {0, 0}, ForwardOf(0, 0)},
        Ready{"LowerMicroBatchBeforeEarlierSubDag", {1, 0}, {0, 0}, {3, 1}, {0, 0}, ForwardOf(1, 0)},
        Ready{"TheOneThatIsThere", {1, 0}, {0, 0}, {3, 0}, {0, 0}, ForwardOf(0, 1)},
        Ready{"DepthReached", {2, 2}, {0, 0}, {3, 3}, {0, 0}, kWaits},
        Ready{"DepthOfOneReached", {2, 1}, {0, 0}, {3, 3}, {0, 0}, ForwardOf(1, 1)},
        Ready{"BackwardBeforeForward", {1, 0}, {0, 0}, {3, 3}, {1, 0}, BackwardOf(0, 0)},
        Ready{"LaterSubDagsBackwardFirst", {1, 1}, {0, 0}, {3, 3}, {1, 1}, BackwardOf(1, 0)},
        Ready{"LowerMicroBatchsBackwardFirst", {2, 2}, {0, 1}, {3, 3}, {2, 2}, BackwardOf(0, 0)},
        Ready{"GradientsOutOfTurnWait", {2, 2}, {0, 0}, {2, 2}, {0, 0}, kWaits},
        Ready{"AllForwardsDone", {3, 3}, {2, 3}, {3, 3}, {3, 3}, BackwardOf(0, 2)}),
    [](const auto& info) { return info.param.name; });

TEST(NextTask, GPipeHoldsBackwardsUntilAllForwardsAreDone) {
  const StageSchedule schedule = Chain(3, 3, PipelineOrder::kGPipe);
  StepState state = StartStep(schedule);
  state.sub_dags[0].missing_values = {0, 0, 1};
  state.sub_dags[0].missing_gradients = {0, 0, 0};
  state.sub_dags[0].forwards = 2;
  EXPECT_EQ(NextTask(schedule, state), kWaits);
  state.sub_dags[0].missing_values[2] = 0;
  EXPECT_EQ(NextTask(schedule, state), ForwardOf(0, 2));
  state.sub_dags[0].forwards = 3;
  EXPECT_EQ(NextTask(schedule, state), BackwardOf(0, 0));
}

TEST(NextTask, WithoutABackwardGrantsBoundWhatIsInFlight) {
  StageSchedule schedule = Chain(2, 4);
  schedule.sub_dags[0].has_backward = false;
  schedule.sub_dags[0].gradients = 0;
  StepState state = StartStep(schedule);
  state.sub_dags[0].missing_values.assign(4, 0);
  state.sub_dags[0].forwards = 3;
  state.sub_dags[0].not_granted = 2;
  EXPECT_EQ(NextTask(schedule, state), kWaits);
  state.sub_dags[0].not_granted = 1;
  EXPECT_EQ(NextTask(schedule, state), ForwardOf(0, 3));
}

TEST(NextTask, AValidationHasNoBackwards) {
  const StageSchedule schedule = Chain(2, 1);
  StepState state = StartValidation(schedule, 3);
  state.sub_dags[0].missing_values.assign(3, 0);
  for (int m = 0; m < 3; ++m) {
    EXPECT_EQ(NextTask(schedule, state), ForwardOf(0, m));
    CompleteTask(ForwardOf(0, m), state);
  }
  EXPECT_EQ(NextTask(schedule, state).kind, TaskKind::kFinished);
}

TEST(NextTask, VariablesAreExchangedAroundTheUpdate) {
  StageSchedule schedule = Chain(1, 1);
  schedule.lent_gradients = 2;
  schedule.borrowed_values = 1;
  schedule.norms = 1;
  schedule.decisions = 1;
  StepState state = StartStep(schedule);
  state.sub_dags[0].missing_values = {0};
  state.sub_dags[0].missing_gradients = {0};
  CompleteTask(NextTask(schedule, state), state);
  CompleteTask(NextTask(schedule, state), state);
  EXPECT_EQ(NextTask(schedule, state).kind, TaskKind::kReturnGradients);
  CompleteTask(NextTask(schedule, state), state);
  EXPECT_EQ(NextTask(schedule, state), kWaits);
  state.missing_lent_gradients = 0;
  EXPECT_EQ(NextTask(schedule, state), kWaits);
  state.missing_norms = 0;
  EXPECT_EQ(NextTask(schedule, state).kind, TaskKind::kDecide);
  CompleteTask(NextTask(schedule, state), state);
  EXPECT_EQ(NextTask(schedule, state), kWaits);
  state.missing_decisions = 0;
  EXPECT_EQ(NextTask(schedule, state).kind, TaskKind::kUpdate);
  CompleteTask(NextTask(schedule, state), state);
  EXPECT_EQ(NextTask(schedule, state), kWaits);
  state.missing_borrowed_values = 0;
  EXPECT_EQ(NextTask(schedule, state).kind, TaskKind::kTakeVariables);
  CompleteTask(NextTask(schedule, state), state);
  EXPECT_EQ(NextTask(schedule, state).kind, TaskKind::kFinished);
}

TEST(MakeSchedule, RefusesADepthBelowOne) {
  StageProgram program;
  program.add_sub_dags();
  EXPECT_EQ(MakeSchedule(program, PipelineOrder::kOneForwardOneBackward, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

/// Stages that follow NextTask, and messages that arrive after any time but in order per edge. Runs steps,
/// then validations, in any interleaving, and checks what must hold.
class World {
 public:
  World(const std::vector<StageProgram>& programs, PipelineOrder order, int micro_batches, int steps,
        int passes, uint64_t seed)
      : programs_(programs), passes_(passes), random_(seed) {
    for (const StageProgram& program : programs) {
      Stage stage;
      stage.schedule = *MakeSchedule(program, order, micro_batches);
      stage.state = StartStep(stage.schedule);
      stages_.push_back(stage);
    }
    phases_ = 2 * steps;  // step, validation, step, …
  }

  /// False where nothing can happen before all is done.
  bool Run() {
    while (!Finished()) {
      const int choices = static_cast<int>(stages_.size() + lanes_.size());
      bool acted = false;
      const int first = static_cast<int>(random_() % static_cast<uint64_t>(choices));
      for (int i = 0; i < choices && !acted; ++i) {
        const int choice = (first + i) % choices;
        acted = choice < static_cast<int>(stages_.size()) ? RunTask(choice)
                                                          : Arrive(choice - static_cast<int>(stages_.size()));
      }
      if (!acted) {
        return false;
      }
    }
    return true;
  }

  bool depths_held() const { return depths_held_; }

 private:
  struct Stage {
    StageSchedule schedule;
    StepState state;
    std::map<int32_t, int> not_granted;
    int phase = 0;
    std::map<int, std::vector<std::function<void(Stage&)>>>
        early;  ///< arrivals by the phase that they are for
  };
  struct Message {
    int to_stage;
    int phase;
    std::function<void(Stage&)> effect;
  };
  enum class Lane { kValue, kGradient, kGrant, kVariableGradient, kVariableValue, kNorms, kDecision };

  bool Finished() const {
    return std::all_of(stages_.begin(), stages_.end(),
                       [&](const Stage& stage) { return stage.phase == phases_; });
  }

  void Send(Lane lane, int32_t id, int copy, Message message) {
    lanes_[{lane, id, copy}].push_back(std::move(message));
  }

  bool Arrive(int index) {
    auto lane = std::next(lanes_.begin(), index);
    if (lane->second.empty()) {
      return false;
    }
    const Message message = lane->second.front();
    lane->second.pop_front();
    Stage& stage = stages_[message.to_stage];
    if (message.phase < 0 || message.phase == stage.phase) {
      message.effect(stage);
    } else {
      stage.early[message.phase].push_back(message.effect);
    }
    return true;
  }

  bool RunTask(int index) {
    Stage& stage = stages_[index];
    if (stage.phase == phases_) {
      return false;
    }
    const Task task = NextTask(stage.schedule, stage.state);
    switch (task.kind) {
      case TaskKind::kWait:
        return false;
      case TaskKind::kForward:
        CompleteTask(task, stage.state);
        AfterForward(index, task);
        break;
      case TaskKind::kBackward:
        CompleteTask(task, stage.state);
        AfterBackward(index, task);
        break;
      case TaskKind::kReturnGradients:
        for (const auto& shared : programs_[index].borrowed()) {
          for (int i = 0; i < shared.consumers_size(); ++i) {
            Send(Lane::kVariableGradient, shared.id(), i,
                 {shared.owner_stage(), stage.phase, [](Stage& s) { --s.state.missing_lent_gradients; }});
          }
        }
        CompleteTask(task, stage.state);
        break;
      case TaskKind::kDecide:
        if (programs_[index].decision().has_parent()) {
          Send(Lane::kNorms, index, 0, {programs_[index].decision().parent(), stage.phase, [](Stage& s) {
                                          --s.state.missing_norms;
                                        }});
        }
        CompleteTask(task, stage.state);
        break;
      case TaskKind::kUpdate:
        for (const auto& child : programs_[index].decision().children()) {
          Send(Lane::kDecision, child.stage(), 0,
               {child.stage(), stage.phase, [](Stage& s) { --s.state.missing_decisions; }});
        }
        for (const auto& shared : programs_[index].lent()) {
          Send(Lane::kVariableValue, shared.id(), 0,
               {shared.user_stage(), stage.phase, [](Stage& s) { --s.state.missing_borrowed_values; }});
        }
        CompleteTask(task, stage.state);
        break;
      case TaskKind::kTakeVariables:
        CompleteTask(task, stage.state);
        break;
      case TaskKind::kFinished:
        NextPhase(stage);
        break;
    }
    CheckDepths(stage);
    return true;
  }

  void AfterForward(int index, const Task& task) {
    Stage& stage = stages_[index];
    for (const Edge& edge : programs_[index].outgoing()) {
      if (edge.from_sub_dag() == task.sub_dag) {
        ++stage.not_granted[edge.id()];
        Send(Lane::kValue, edge.id(), 0,
             {edge.to_stage(), stage.phase, [&edge, m = task.micro_batch](Stage& s) {
                for (const int reader : edge.to_sub_dags()) {
                  --s.state.sub_dags[reader].missing_values[m];
                }
              }});
      }
    }
    UpdateNotGranted(index);
    for (const Edge& edge : programs_[index].incoming()) {
      bool reads = false;
      bool done = true;
      for (const int reader : edge.to_sub_dags()) {
        reads |= reader == task.sub_dag;
        done &= stage.state.sub_dags[reader].forwards > task.micro_batch;
      }
      if (reads && done) {
        Send(Lane::kGrant, edge.id(), 0, {edge.from_stage(), -1, [this, &edge](Stage& s) {
                                            --s.not_granted[edge.id()];
                                            UpdateNotGranted(edge.from_stage());
                                          }});
      }
    }
  }

  void AfterBackward(int index, const Task& task) {
    for (const Edge& edge : programs_[index].incoming()) {
      if (edge.differentiable() && edge.to_sub_dags(0) == task.sub_dag) {
        for (int i = 0; i < (edge.cotangent_per_consumer() ? edge.consumers_size() : 1); ++i) {
          Send(Lane::kGradient, edge.id(), i,
               {edge.from_stage(), stages_[index].phase, [&edge, m = task.micro_batch](Stage& s) {
                  --s.state.sub_dags[edge.from_sub_dag()].missing_gradients[m];
                }});
        }
      }
    }
  }

  void UpdateNotGranted(int index) {
    Stage& stage = stages_[index];
    for (SubDagState& sub_dag : stage.state.sub_dags) {
      sub_dag.not_granted = 0;
    }
    for (const Edge& edge : programs_[index].outgoing()) {
      int& most = stage.state.sub_dags[edge.from_sub_dag()].not_granted;
      most = std::max(most, stage.not_granted[edge.id()]);
    }
  }

  void NextPhase(Stage& stage) {
    ++stage.phase;
    stage.state = stage.phase % 2 == 0 ? StartStep(stage.schedule) : StartValidation(stage.schedule, passes_);
    UpdateNotGranted(static_cast<int>(&stage - stages_.data()));
    for (const auto& effect : stage.early[stage.phase]) {
      effect(stage);
    }
  }

  void CheckDepths(const Stage& stage) {
    for (size_t i = 0; i < stage.state.sub_dags.size(); ++i) {
      const SubDagRule& rule = stage.schedule.sub_dags[i];
      const SubDagState& state = stage.state.sub_dags[i];
      if (stage.state.training && rule.has_backward) {
        depths_held_ &= state.forwards - state.backwards <= rule.depth;
      } else if (!rule.has_backward) {
        depths_held_ &= state.not_granted <= rule.depth;
      }
    }
  }

  const std::vector<StageProgram>& programs_;
  const int passes_;
  std::mt19937_64 random_;
  int phases_ = 0;
  std::vector<Stage> stages_;
  std::map<std::tuple<Lane, int32_t, int>, std::deque<Message>> lanes_;
  bool depths_held_ = true;
};

RC_GTEST_PROP(NextTask, NeverDeadlocksAndNeverExceedsDepth, ()) {
  FakeModelOptions options;
  options.seed = *rc::gen::arbitrary<uint64_t>();
  options.layers = *rc::gen::inRange(1, 8);
  options.stages = *rc::gen::inRange(1, 6);
  options.sub_dags = *rc::gen::inRange(1, 10);
  options.max_depth = *rc::gen::inRange(1, 5);
  const FakeModel model = MakeFakeModel(options);
  const auto order = *rc::gen::element(PipelineOrder::kOneForwardOneBackward, PipelineOrder::kGPipe);
  const int micro_batches = *rc::gen::inRange(1, 6);
  World world(model.programs, order, micro_batches, /*steps=*/2, /*passes=*/*rc::gen::inRange(1, 9),
              *rc::gen::arbitrary<uint64_t>());
  RC_ASSERT(world.Run());
  RC_ASSERT(world.depths_held());
}

}  // namespace
}  // namespace fusion::worker
