#include "worker/transport/outbox.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fusion::worker {
namespace {

using wire::v1::BACKWARD;
using wire::v1::FORWARD;
using wire::v1::VARIABLE_VALUE;

EncodedTensor Tensor(int64_t step, int32_t micro_batch, int32_t edge, wire::v1::Direction direction,
                     int64_t bytes) {
  return {.key = {.step = step, .micro_batch = micro_batch, .edge = edge, .direction = direction},
          .codec = "int8",
          .shape = {1},
          .data = std::shared_ptr<std::byte>(new std::byte[bytes](), std::default_delete<std::byte[]>()),
          .bytes = bytes};
}

/// What comes out next, as "d7" for the descriptor of edge 7's tensor and "b1+4" for four bytes of tensor 1.
std::string Next(Outbox& outbox) {
  const auto part = outbox.Next();
  if (!part.has_value()) return "";
  if (part->header.has_tensor()) return "d" + std::to_string(part->header.tensor().edge());
  return "b" + std::to_string(part->header.data().tensor()) + "+" + std::to_string(part->bytes);
}

std::vector<std::string> All(Outbox& outbox) {
  std::vector<std::string> all;
  for (std::string next = Next(outbox); !next.empty(); next = Next(outbox)) all.push_back(next);
  return all;
}

TEST(OutboxTest, DescriptorThenFramesInOrderOfOffset) {
  Outbox outbox(4);
  outbox.Push(Tensor(1, 0, 7, FORWARD, 10));
  const auto descriptor = outbox.Next();
  ASSERT_TRUE(descriptor.has_value());
  EXPECT_EQ(descriptor->header.tensor().bytes(), 10U);
  EXPECT_EQ(descriptor->bytes, 0);
  int64_t offset = 0;
  for (const int64_t bytes : {4, 4, 2}) {
    const auto part = outbox.Next();
    ASSERT_TRUE(part.has_value());
    EXPECT_EQ(part->header.data().offset(), static_cast<uint64_t>(offset));
    EXPECT_EQ(part->offset, offset);
    EXPECT_EQ(part->bytes, bytes);
    offset += bytes;
  }
  EXPECT_FALSE(outbox.Next().has_value());
  EXPECT_TRUE(outbox.empty());
}

TEST(OutboxTest, VariablesThenStepsThenMicroBatchesThenArrival) {
  Outbox outbox(100);
  outbox.Push(Tensor(2, 0, 1, FORWARD, 0));
  outbox.Push(Tensor(1, 3, 2, FORWARD, 0));
  outbox.Push(Tensor(1, 1, 3, BACKWARD, 0));
  outbox.Push(Tensor(1, 1, 4, FORWARD, 0));
  outbox.Push(Tensor(9, 0, 5, VARIABLE_VALUE, 0));
  EXPECT_EQ(All(outbox), (std::vector<std::string>{"d5", "d3", "d4", "d2", "d1"}));
}

TEST(OutboxTest, UrgentTensorGoesBetweenTheFramesOfAnother) {
  Outbox outbox(4);
  outbox.Push(Tensor(1, 5, 1, FORWARD, 8));
  EXPECT_EQ(Next(outbox), "d1");
  EXPECT_EQ(Next(outbox), "b1+4");
  outbox.Push(Tensor(1, 2, 2, BACKWARD, 3));
  EXPECT_EQ(All(outbox), (std::vector<std::string>{"d2", "b2+3", "b1+4"}));
}

TEST(OutboxTest, CreditsHoldUpTheirOwnEdgeAndDirectionOnly) {
  Outbox outbox(100);
  for (int micro_batch = 0; micro_batch < 4; ++micro_batch)
    outbox.Push(Tensor(1, micro_batch, 1, FORWARD, 0));
  outbox.Push(Tensor(1, 9, 1, BACKWARD, 0));
  outbox.Push(Tensor(1, 9, 2, FORWARD, 0));
  EXPECT_EQ(All(outbox), (std::vector<std::string>{"d1", "d1", "d1", "d2"}));  // the third is the gradient
  EXPECT_EQ(outbox.tensors(), 2U);
  EXPECT_FALSE(outbox.HasNext());

  EXPECT_EQ(outbox.Grant(1, FORWARD, 1), 1U);
  EXPECT_EQ(outbox.Grant(1, FORWARD, 1), 0U);  // a total, not a difference
  EXPECT_EQ(All(outbox), std::vector<std::string>{"d1"});
  EXPECT_EQ(outbox.Grant(1, FORWARD, 1000), 2U);  // three were sent: no more can be granted
  EXPECT_EQ(All(outbox), std::vector<std::string>{"d1"});
}

TEST(OutboxTest, WindowIsPerEdgeAndDirection) {
  Outbox outbox(100);
  outbox.SetWindow(1, FORWARD, 1);
  outbox.SetWindow(1, BACKWARD, 3);
  for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
    outbox.Push(Tensor(1, micro_batch, 1, FORWARD, 0));
    outbox.Push(Tensor(1, micro_batch, 1, BACKWARD, 0));
  }
  EXPECT_EQ(All(outbox).size(), 4U);
  outbox.SetWindow(1, FORWARD, 4);
  EXPECT_EQ(All(outbox).size(), 3U);
}

TEST(OutboxTest, AbsentTensorHasNoData) {
  Outbox outbox(4);
  EncodedTensor tensor = Tensor(1, 0, 7, BACKWARD, 10);
  tensor.absent = true;
  outbox.Push(tensor);
  EXPECT_EQ(outbox.bytes(), 0);
  EXPECT_EQ(All(outbox), std::vector<std::string>{"d7"});
}

}  // namespace
}  // namespace fusion::worker
