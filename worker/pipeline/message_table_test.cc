#include "worker/pipeline/message_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace fusion::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kSamples = 2;

void SetSpec(graph::v1::TensorSpec& spec, graph::v1::DataType dtype, std::vector<int64_t> shape) {
  spec.set_dtype(dtype);
  spec.mutable_shape()->Add(shape.begin(), shape.end());
}

/// Stage 1: value "a" comes from stage 0, "b" goes to stage 2, variable "w" is lent to stage 3.
graph::v1::StageProgram Program() {
  graph::v1::StageProgram program;
  program.set_stage(1);
  auto* sub_dag = program.add_sub_dags();
  sub_dag->set_depth(1);
  auto* variable = sub_dag->add_operators();
  variable->set_name("w");
  variable->set_kind(graph::v1::Operator::VARIABLE);
  SetSpec(*variable->add_outputs(), graph::v1::FLOAT32, {5});
  auto* in = program.add_incoming();
  in->set_id(1);
  in->mutable_value()->set_operator_("a");
  SetSpec(*in->mutable_spec(), graph::v1::FLOAT32, {-1, 4});
  in->set_from_stage(0);
  in->add_to_sub_dags(0);
  in->set_differentiable(true);
  auto* out = program.add_outgoing();
  out->set_id(2);
  out->mutable_value()->set_operator_("b");
  SetSpec(*out->mutable_spec(), graph::v1::FLOAT32, {-8});
  out->set_to_stage(2);
  out->set_differentiable(true);
  out->set_cotangent_per_consumer(true);
  out->add_consumers("c");
  out->add_consumers("d");
  auto* lent = program.add_lent();
  lent->set_id(1);
  lent->set_variable("w");
  lent->set_user_stage(3);
  lent->add_consumers("e");
  program.mutable_decision()->set_parent(0);
  program.mutable_decision()->set_parameters(4);
  auto* child = program.mutable_decision()->add_children();
  child->set_stage(2);
  child->set_parameters(3);
  return program;
}

EncodedTensor Value() {
  return {.key = {.step = 3, .micro_batch = 1, .edge = 1, .direction = wire::v1::FORWARD, .consumer = -1},
          .codec = "fp32",
          .dtype = graph::v1::FLOAT32,
          .shape = {kSamples, 4},
          .absent = false,
          .data = nullptr,
          .bytes = 32};
}

EncodedTensor Gradient() {
  return {.key = {.step = 3, .micro_batch = 1, .edge = 2, .direction = wire::v1::BACKWARD, .consumer = 1},
          .codec = "fp32",
          .dtype = graph::v1::FLOAT32,
          .shape = {16},
          .absent = false,
          .data = nullptr,
          .bytes = 64};
}

EncodedTensor Decision(wire::v1::Direction direction) {
  EncodedTensor message = Value();
  message.key = {.step = 3, .edge = 1, .direction = direction, .consumer = -1};
  message.dtype = graph::v1::FLOAT64;
  message.shape = {1};
  message.bytes = 8;
  return message;
}

class MessageTableTest : public ::testing::Test {
 protected:
  const graph::v1::StageProgram program_ = Program();
  const MessageTable table_ = *MessageTable::Make(program_, kSamples);
};

TEST_F(MessageTableTest, TakesWhatTheProgramSays) {
  EXPECT_TRUE(table_.Check(0, Value()).ok()) << table_.Check(0, Value());
  EXPECT_TRUE(table_.Check(2, Gradient()).ok()) << table_.Check(2, Gradient());
  EncodedTensor absent = Gradient();
  absent.absent = true;
  absent.shape.clear();
  EXPECT_TRUE(table_.Check(2, absent).ok());
  EncodedTensor variable = Value();
  variable.key = {
      .step = 3, .micro_batch = 0, .edge = 1, .direction = wire::v1::VARIABLE_GRADIENT, .consumer = 0};
  variable.shape = {5};
  variable.bytes = 20;
  EXPECT_TRUE(table_.Check(3, variable).ok()) << table_.Check(3, variable);
  const EncodedTensor decision = Decision(wire::v1::STEP_DECISION);
  EXPECT_TRUE(table_.Check(0, decision).ok()) << table_.Check(0, decision);
  EncodedTensor norms = Decision(wire::v1::STEP_NORMS);
  norms.key.edge = 2;
  norms.shape = {3, 2};
  norms.bytes = 48;
  EXPECT_TRUE(table_.Check(2, norms).ok()) << table_.Check(2, norms);
}

TEST_F(MessageTableTest, SendsToAllThatItFeedsOrAnswers) {
  EXPECT_THAT(table_.Receivers(), ElementsAre(0, 2, 3));
}

struct Wrong {
  std::string name;
  int from_stage;
  std::function<void(EncodedTensor&)> change;  ///< of Value
  std::string message;
};

class RefusedMessages : public MessageTableTest, public ::testing::WithParamInterface<Wrong> {};

TEST_P(RefusedMessages, NamePeerAndEdge) {
  EncodedTensor message = Value();
  GetParam().change(message);
  const absl::Status status = table_.Check(GetParam().from_stage, message);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("stage 1 cannot take what stage ", GetParam().from_stage, " sent, ")));
}

INSTANTIATE_TEST_SUITE_P(
    Table, RefusedMessages,
    ::testing::Values(
        Wrong{"UnknownEdge", 0, [](EncodedTensor& m) { m.key.edge = 9; }, "edge 9 (unknown here), forward"},
        Wrong{"WrongPeer", 2, [](EncodedTensor&) {},
              "edge 1 ('a'), forward, step 3, micro-batch 1: it comes from stage 0"},
        Wrong{"WrongShape", 0,
              [](EncodedTensor& m) {
                m.shape = {3, 4};
              },
              "it is FLOAT32[3, 4], expected FLOAT32[2, 4]"},
        Wrong{"WrongDtype", 0, [](EncodedTensor& m) { m.dtype = graph::v1::INT32; }, "it is INT32[2, 4]"},
        Wrong{"WrongCodec", 0, [](EncodedTensor& m) { m.codec = "int8"; },
              "its codec is 'int8', expected 'fp32'"},
        Wrong{"WrongSize", 0, [](EncodedTensor& m) { m.bytes = 31; }, "it has 31 bytes, expected 32"},
        Wrong{"ConsumerOfAValue", 0, [](EncodedTensor& m) { m.key.consumer = 0; },
              "0 consumers to tell apart"},
        Wrong{"ConsumerOutOfRange", 2,
              [](EncodedTensor& m) {
                m = Gradient();
                m.key.consumer = 2;
              },
              "there are 2 consumers"},
        Wrong{"AbsentValue", 0, [](EncodedTensor& m) { m.absent = true; }, "a value cannot be absent"},
        Wrong{"NegativeMicroBatch", 0, [](EncodedTensor& m) { m.key.micro_batch = -1; },
              "negative micro-batch"},
        Wrong{"GradientOfAnIncomingEdge", 0, [](EncodedTensor& m) { m.key.direction = wire::v1::BACKWARD; },
              "no such edge"},
        Wrong{"NoDirection", 0, [](EncodedTensor& m) { m.key.direction = wire::v1::DIRECTION_UNSPECIFIED; },
              "no such edge"},
        Wrong{"DecisionFromAChild", 2, [](EncodedTensor& m) { m = Decision(wire::v1::STEP_DECISION); },
              "it comes from stage 0"},
        Wrong{"DecisionOfAnother", 0,
              [](EncodedTensor& m) {
                m = Decision(wire::v1::STEP_DECISION);
                m.key.edge = 2;
              },
              "update of stage 2, decision, step 3: it is not this stage's"},
        Wrong{"TooManyNorms", 2,
              [](EncodedTensor& m) {
                m = Decision(wire::v1::STEP_NORMS);
                m.key.edge = 2;
                m.shape = {4, 2};
                m.bytes = 64;
              },
              "it is FLOAT64[4, 2], expected FLOAT64[3, 2]"},
        Wrong{"UnknownVariable", 3, [](EncodedTensor& m) { m.key.direction = wire::v1::VARIABLE_VALUE; },
              "shared variable 1 (unknown here)"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fusion::worker
