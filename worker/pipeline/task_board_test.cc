#include "worker/pipeline/task_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace fusion::worker {
namespace {

using ::testing::HasSubstr;

/// One sub-DAG of depth 1: reads edge 0, provides edge 1, both differentiable.
graph::v1::StageProgram Program() {
  graph::v1::StageProgram program;
  program.set_stage(1);
  program.add_sub_dags()->set_depth(1);
  auto* in = program.add_incoming();
  in->set_id(0);
  in->add_to_sub_dags(0);
  in->set_differentiable(true);
  auto* out = program.add_outgoing();
  out->set_id(1);
  out->set_to_stage(2);
  out->set_differentiable(true);
  return program;
}

TensorKey Value(int64_t step, int32_t micro_batch) {
  return {
      .step = step, .micro_batch = micro_batch, .edge = 0, .direction = wire::v1::FORWARD, .consumer = -1};
}
TensorKey Gradient(int64_t step, int32_t micro_batch) {
  return {
      .step = step, .micro_batch = micro_batch, .edge = 1, .direction = wire::v1::BACKWARD, .consumer = -1};
}

class TaskBoardTest : public ::testing::Test {
 protected:
  void Arrive(const TensorKey& key) {
    ASSERT_TRUE(board_.Admit(key).ok()) << board_.Admit(key);
    board_.Deliver(key, Tensor());
  }
  Task Next() {
    double waited = 0;
    const auto task = board_.AwaitTask(waited);
    EXPECT_TRUE(task.ok()) << task.status();
    return task.value_or(Task());
  }

  const graph::v1::StageProgram program_ = Program();
  const StageSchedule schedule_ = *MakeSchedule(program_, PipelineOrder::kOneForwardOneBackward, 2);
  const MessageTable table_ = *MessageTable::Make(program_, 1);
  TaskBoard board_{schedule_, table_};
};

TEST_F(TaskBoardTest, WhatCameBeforeItsStepCounts) {
  Arrive(Value(1, 0));
  Arrive(Value(1, 1));
  Arrive(Value(2, 0));
  board_.Begin(StartStep(schedule_), 1, 0);
  const Task task = Next();
  EXPECT_EQ(task.kind, TaskKind::kForward);
  EXPECT_TRUE(board_.Take(Value(1, 0)).has_value());
  board_.Complete(task);
  EXPECT_EQ(board_.tensors_held(), 2) << "those of micro-batch 1 and of step 2 wait";
}

TEST_F(TaskBoardTest, AnArrivalWakesTheComputeThread) {
  board_.Begin(StartStep(schedule_), 1, 0);
  std::thread peer([this] { Arrive(Value(1, 0)); });
  EXPECT_EQ(Next().kind, TaskKind::kForward);
  peer.join();
}

TEST_F(TaskBoardTest, RefusesWhatComesTwiceOrOutOfOrder) {
  board_.Begin(StartStep(schedule_), 1, 0);
  Arrive(Value(1, 1));
  EXPECT_THAT(std::string(board_.Admit(Value(1, 1)).message()),
              HasSubstr("after that of step 1, micro-batch 1"));
  EXPECT_THAT(std::string(board_.Admit(Value(1, 0)).message()),
              HasSubstr("after that of step 1, micro-batch 1"));
}

TEST_F(TaskBoardTest, RefusesWhatIsOfAnEarlierStep) {
  board_.Begin(StartStep(schedule_), 5, 0);
  EXPECT_THAT(std::string(board_.Admit(Value(4, 0)).message()), HasSubstr("step 5 is running"));
}

TEST_F(TaskBoardTest, RefusesAGradientWhoseValueWasNotSent) {
  EXPECT_THAT(std::string(board_.Admit(Gradient(1, 0)).message()), HasSubstr("its value has not been sent"));
  board_.Begin(StartStep(schedule_), 1, 0);
  Arrive(Value(1, 0));
  board_.Complete(Next());
  EXPECT_THAT(std::string(board_.Admit(Gradient(1, 1)).message()), HasSubstr("its value has not been sent"));
  EXPECT_THAT(std::string(board_.Admit(Gradient(2, 0)).message()), HasSubstr("its value has not been sent"));
}

TEST_F(TaskBoardTest, MoreGrantsThanTensorsAreAFailure) {
  board_.Begin(StartStep(schedule_), 1, 0);
  board_.CountSent(1);
  board_.CountGranted(1);
  board_.CountGranted(1);
  double waited = 0;
  EXPECT_THAT(std::string(board_.AwaitTask(waited).status().message()), HasSubstr("more grants of edge 1"));
}

TEST_F(TaskBoardTest, TheFirstFailureStays) {
  board_.Fail(absl::DataLossError("first"));
  board_.Fail(absl::CancelledError("second"));
  double waited = 0;
  EXPECT_EQ(board_.AwaitTask(waited).status(), absl::DataLossError("first"));
}

}  // namespace
}  // namespace fusion::worker
