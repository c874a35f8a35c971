#include "worker/pipeline/edge_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace fusion::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

graph::v1::Edge MakeEdge(const std::string& forward, const std::string& backward) {
  graph::v1::Edge edge;
  edge.set_id(4);
  edge.mutable_value()->set_operator_("h.0");
  edge.mutable_spec()->set_dtype(graph::v1::FLOAT32);
  edge.set_differentiable(true);
  edge.set_forward_codec(forward);
  edge.set_backward_codec(backward);
  return edge;
}

Tensor Floats(const std::vector<float>& values) {
  Tensor tensor = AllocateTensor(graph::v1::FLOAT32, {1, static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.mutable_floats().begin());
  return tensor;
}

std::vector<float> Values(const Tensor& tensor) { return {tensor.floats().begin(), tensor.floats().end()}; }

TensorKey Key(wire::v1::Direction direction, int32_t micro_batch = 0) {
  return {.step = 1, .micro_batch = micro_batch, .edge = 4, .direction = direction, .consumer = -1};
}

/// Both ends of one edge.
struct Ends {
  explicit Ends(const std::string& codec)
      : producer({{4, *ParseEdgeCodecs(MakeEdge(codec, codec))}}),
        consumer({{4, *ParseEdgeCodecs(MakeEdge(codec, codec))}}) {}

  Tensor Forward(const Tensor& value, int32_t micro_batch, bool training = true) {
    return *consumer.Decode(*producer.Encode(Key(wire::v1::FORWARD, micro_batch), value, training), training);
  }
  Tensor Backward(const Tensor& gradient, int32_t micro_batch) {
    return *producer.Decode(*consumer.Encode(Key(wire::v1::BACKWARD, micro_batch), gradient, true), true);
  }

  EdgeCoder producer;
  EdgeCoder consumer;
};

TEST(EdgeCoder, TopKSelectsOverAWholeImage) {
  graph::v1::Edge edge = MakeEdge("topk-0.25-fp32", "topk-0.25-fp32");
  edge.set_per_sample(true);
  const EdgeCodecs codecs = *ParseEdgeCodecs(edge);
  EdgeCoder producer({{4, codecs}});
  EdgeCoder consumer({{4, codecs}});
  // Two images of 1 x 2 x 2; a row of two would keep one value each.
  Tensor value = AllocateTensor(graph::v1::FLOAT32, {2, 1, 2, 2});
  const std::vector<float> pixels = {9, 8, 1, 2, 3, 4, 5, 6};
  std::copy(pixels.begin(), pixels.end(), value.mutable_floats().begin());
  const auto message = producer.Encode(Key(wire::v1::FORWARD), value, true);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->bytes, MessageBytes(codecs, wire::v1::FORWARD, graph::v1::FLOAT32, value.shape));
  EXPECT_THAT(Values(*consumer.Decode(*message, true)), ElementsAre(9, 0, 0, 0, 0, 0, 0, 6));
  const auto back = consumer.Encode(Key(wire::v1::BACKWARD), value, true);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(Values(*producer.Decode(*back, true)), ElementsAre(9, 0, 0, 0, 0, 0, 0, 6));
}

TEST(EdgeCoder, ADenseTensorTravelsInItsOwnStorage) {
  Ends ends("fp32");
  const Tensor value = Floats({1, 2, 3});
  const auto message = ends.producer.Encode(Key(wire::v1::FORWARD), value, true);
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->data, value.data);
  EXPECT_EQ(message->bytes, 12);
  EXPECT_EQ(message->codec, "fp32");
  EXPECT_EQ(ends.consumer.Decode(*message, true)->data, value.data);
}

TEST(EdgeCoder, TheGradientReusesTheValuesMaskOnBothSides) {
  Ends ends("topk-0.5-fp32");
  // Two micro-batches with different masks are in flight at once.
  EXPECT_THAT(Values(ends.Forward(Floats({1, -5, 4, 2}), 0)), ElementsAre(0, -5, 4, 0));
  EXPECT_THAT(Values(ends.Forward(Floats({9, 0, 0, 8}), 1)), ElementsAre(9, 0, 0, 8));
  EXPECT_EQ(ends.producer.masks_held(), 2);
  EXPECT_THAT(Values(ends.Backward(Floats({1, 2, 3, 4}), 0)), ElementsAre(0, 2, 3, 0));
  EXPECT_THAT(Values(ends.Backward(Floats({1, 2, 3, 4}), 1)), ElementsAre(1, 0, 0, 4));
  EXPECT_EQ(ends.producer.masks_held(), 0);
  EXPECT_EQ(ends.consumer.masks_held(), 0);
}

/// The upper halves of floats.
Tensor Bf16(const std::vector<uint16_t>& bits) {
  Tensor tensor = AllocateTensor(graph::v1::BFLOAT16, {1, static_cast<int64_t>(bits.size())});
  std::copy(bits.begin(), bits.end(), reinterpret_cast<uint16_t*>(tensor.data.get()));
  return tensor;
}

std::vector<uint16_t> Bits(const Tensor& tensor) {
  const auto* bits = reinterpret_cast<const uint16_t*>(tensor.data.get());
  return {bits, bits + tensor.elements()};
}

// Dense, bf16 takes two bytes; through a codec it is coded as fp32 and rounded on arrival.
TEST(EdgeCoder, Bfloat16TravelsAsItIsOrThroughACodec) {
  constexpr uint16_t kOne = 0x3F80;
  constexpr uint16_t kMinusFive = 0xC0A0;
  const Tensor value = Bf16({kOne, kMinusFive, 0, kOne});
  graph::v1::Edge edge = MakeEdge("fp32", "fp32");
  edge.mutable_spec()->set_dtype(graph::v1::BFLOAT16);
  EdgeCoder dense({{4, *ParseEdgeCodecs(edge)}});
  const auto message = dense.Encode(Key(wire::v1::FORWARD), value, true);
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->bytes, 8);
  EXPECT_EQ(message->data, value.data);

  edge.set_forward_codec("topk-0.25-fp32");
  edge.set_backward_codec("topk-0.25-fp32");
  ASSERT_TRUE(ParseEdgeCodecs(edge).ok()) << ParseEdgeCodecs(edge).status();
  Ends ends("topk-0.25-fp32");
  const Tensor arrived = ends.Forward(value, 0);
  EXPECT_EQ(arrived.dtype, graph::v1::BFLOAT16);
  EXPECT_THAT(Bits(arrived), ElementsAre(0, kMinusFive, 0, 0));
  EXPECT_THAT(Bits(ends.Backward(Bf16({kOne, kOne, kOne, kOne}), 0)), ElementsAre(0, kOne, 0, 0));

  // 1 of 127 steps of 100 / 127: 0.787 rounds to the nearest bfloat16.
  Ends quantized("int8");
  const Tensor steps = quantized.Forward(Bf16({0x42C8 /* 100 */, kOne}), 0);
  const float expected = Values(Ends("int8").Forward(Floats({100, 1}), 0))[1];
  uint32_t bits = 0;
  std::memcpy(&bits, &expected, sizeof(bits));
  const uint32_t nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  EXPECT_EQ(Bits(steps)[1], nearest);
}

TEST(EdgeCoder, ChangesItsCodecWithTheStep) {
  graph::v1::Edge edge = MakeEdge("topk-0.5-fp32", "topk-0.5-fp32");
  for (const auto& [step, codec] : {std::pair(1, "fp32"), std::pair(5, "topk-0.5-fp32")}) {
    graph::v1::Edge::Phase* phase = edge.add_phases();
    phase->set_from_step(step);
    phase->set_forward_codec(codec);
    phase->set_backward_codec(codec);
  }
  const auto timeline = ParseTimeline(edge);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EdgeCoder producer({{4, *timeline}});
  EdgeCoder consumer({{4, *timeline}});
  for (const int64_t step : {1, 4, 5, 100}) {
    TensorKey key = Key(wire::v1::FORWARD);
    key.step = step;
    const auto message = producer.Encode(key, Floats({1, 2}), true);
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(message->codec, step < 5 ? "fp32" : "topk-0.5-fp32");
    EXPECT_THAT(Values(*consumer.Decode(*message, true)), ElementsAre(step < 5 ? 1 : 0, 2));
  }
  EXPECT_TRUE(producer.Changes(4));
}

TEST(ParseTimeline, RefusesPhasesThatDoNotRiseFromOne) {
  for (const std::vector<int64_t>& steps : {std::vector<int64_t>{2}, {1, 1}, {1, 5, 3}, {0, 1}}) {
    graph::v1::Edge edge = MakeEdge("fp32", "fp32");
    for (const int64_t step : steps) edge.add_phases()->set_from_step(step);
    const auto timeline = ParseTimeline(edge);
    EXPECT_EQ(timeline.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(timeline.status().message()), HasSubstr("first steps do not rise from 1"));
  }
}

TEST(EdgeCoder, AValidationLeavesNoMaskAndNoFeedback) {
  Ends ends("topk-0.5-fp32+feedback");
  EXPECT_THAT(Values(ends.Forward(Floats({1, 2}), 0, /*training=*/false)), ElementsAre(0, 2));
  EXPECT_EQ(ends.producer.masks_held() + ends.consumer.masks_held(), 0);
  EXPECT_THAT(Values(ends.Forward(Floats({4, 5}), 0)), ElementsAre(0, 5))
      << "nothing of the validation was added";
  EXPECT_THAT(Values(ends.Forward(Floats({4, 5}), 1)), ElementsAre(8, 0))
      << "what the message before left out was added";
}

TEST(EdgeCoder, AnAbsentGradientFreesTheMask) {
  Ends ends("topk-0.5-fp32");
  ends.Forward(Floats({1, 2}), 0);
  ends.producer.SkipGradient(Key(wire::v1::BACKWARD));
  ends.consumer.SkipGradient(Key(wire::v1::BACKWARD));
  EXPECT_EQ(ends.producer.masks_held() + ends.consumer.masks_held(), 0);
}

TEST(EdgeCoder, AGradientWithoutItsValueIsAnError) {
  Ends ends("topk-0.5-fp32");
  ends.Forward(Floats({1, 2}), 0);
  const auto message = ends.consumer.Encode(Key(wire::v1::BACKWARD), Floats({1, 2}), true);
  ASSERT_TRUE(message.ok());
  ASSERT_TRUE(ends.producer.Decode(*message, true).ok());
  EXPECT_EQ(ends.producer.Decode(*message, true).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(EdgeCoder, BytesThatDoNotDecodeAreAnError) {
  Ends ends("topk-0.5-fp32");
  auto message = *ends.producer.Encode(Key(wire::v1::FORWARD), Floats({1, 2, 3, 4, 5, 6, 7, 8}), true);
  std::fill_n(message.data.get(), message.bytes, std::byte{0xff});
  EXPECT_EQ(ends.consumer.Decode(message, true).status().code(), absl::StatusCode::kDataLoss);
}

struct BadCodec {
  std::string forward, backward;
  bool differentiable;
  graph::v1::DataType dtype;
  std::string message;
};

class RefusedCodecs : public ::testing::TestWithParam<BadCodec> {};

TEST_P(RefusedCodecs, NameTheEdge) {
  graph::v1::Edge edge = MakeEdge(GetParam().forward, GetParam().backward);
  edge.set_differentiable(GetParam().differentiable);
  edge.mutable_spec()->set_dtype(GetParam().dtype);
  const auto codecs = ParseEdgeCodecs(edge);
  EXPECT_EQ(codecs.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(codecs.status().message()), HasSubstr("edge 4 ('h.0')"));
  EXPECT_THAT(std::string(codecs.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Table, RefusedCodecs,
                         ::testing::Values(BadCodec{"zip", "fp32", true, graph::v1::FLOAT32, "zip"},
                                           BadCodec{"int8", "int8", true, graph::v1::INT64,
                                                    "differentiable FLOAT32 and BFLOAT16 values only"},
                                           BadCodec{"int8", "fp32", false, graph::v1::FLOAT32,
                                                    "differentiable FLOAT32 and BFLOAT16 values only"},
                                           BadCodec{"int8", "topk-0.1-int4", true, graph::v1::FLOAT32,
                                                    "leaves none"}));

}  // namespace
}  // namespace fusion::worker
