#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "scheduler/planner.h"
#include "scheduler/simulator.h"
#include "scheduler/test_problem.h"

namespace fusion::scheduler {
namespace {

using codec::Codec;
using v1alpha1::Compression;

Compression Policy(Compression::Type type, double ratio = 0) {
  Compression compression;
  compression.set_type(type);
  if (ratio > 0) compression.set_ratio(ratio);
  return compression;
}

double Step(const Problem& problem, const Partition& partition, bool free_links = false) {
  SimulationOptions options;
  options.free_links = free_links;
  return Simulate(problem, partition, options).step_seconds;
}

std::string CodecOf(const Partition& partition, int from, int to) {
  for (const LinkCodec& link : partition.codecs) {
    if (link.from_stage == from && link.to_stage == to) return codec::CodecName(link.codec);
  }
  return "fp32";
}

/// Four stages of 30 ms a micro-batch, tokens of 256 values; link 1-2 at `slow` bytes a second, the others
/// fast.
class CompressionTest : public testing::Test {
 protected:
  explicit CompressionTest(double slow = 1e6) {
    Chain chain = UniformChain(4, 0.01, 0.02);
    chain.columns = 256 * 256;
    chain.bytes_per_second = 1e9;
    chain.micro_batches = 16;
    problem_ = MakeChainProblem(chain);
    for (Value& value : problem_.values) value.layout = {256, 256};
    SetLink(problem_, 1, 2, slow, 0.01);
    partition_ = OneOperatorANode(problem_, 4);
  }
  void Choose(const Compression& compression) {
    ASSERT_TRUE(ChooseCodecs(problem_, compression, partition_).ok());
  }
  /// Seconds of a value's message on its link, headers and latency not included.
  double Seconds(int from) const {
    const Codec codec = codec::ParseCodec(CodecOf(partition_, from, from + 1)).value();
    return static_cast<double>(codec::ValueBytes(codec, problem_.values[from].layout)) /
           problem_.network.Between(from, from + 1).bytes_per_second;
  }

  Problem problem_;
  Partition partition_;
};

TEST_F(CompressionTest, NeedHidesTheSlowLinkAndLeavesTheOthers) {
  Choose(Policy(Compression::Need));
  EXPECT_EQ(CodecOf(partition_, 0, 1), "fp32");
  EXPECT_EQ(CodecOf(partition_, 2, 3), "fp32");
  EXPECT_NE(CodecOf(partition_, 1, 2), "fp32");
  EXPECT_LE(Step(problem_, partition_), 1.1 * Step(problem_, partition_, true));
}

TEST_F(CompressionTest, NeedTakesTheMildestThatSuffices) {
  for (const auto& [rate, expected] :
       {std::pair(20e6, "fp32"), std::pair(3e6, "int8"), std::pair(1.5e6, "int4"),
        std::pair(0.6e6, "topk-0.2-int4"), std::pair(0.01e6, "topk-0.03-int4")}) {
    SetLink(problem_, 1, 2, rate, 0.01);
    Choose(Policy(Compression::Need));
    EXPECT_EQ(CodecOf(partition_, 1, 2), expected) << rate;
  }
}

TEST_F(CompressionTest, NoneIsDense) {
  Choose(Policy(Compression::None));
  EXPECT_TRUE(partition_.codecs.empty());
}

TEST_F(CompressionTest, AdaTopKEndsSlowLinksAtTheSameTime) {
  SetLink(problem_, 0, 1, 2e6, 0);
  SetLink(problem_, 2, 3, 4e6, 0);
  for (Value& value : problem_.values) value.layout = {16, 4096};
  Choose(Policy(Compression::AdaTopK, 100));
  const double goal = static_cast<double>(problem_.values[1].bytes) / 1e6 / 100;
  for (int link = 0; link < 3; ++link) {
    EXPECT_LE(Seconds(link), goal) << CodecOf(partition_, link, link + 1);
    EXPECT_GE(Seconds(link), 0.93 * goal) << CodecOf(partition_, link, link + 1);
  }
}

TEST_F(CompressionTest, AdaTopKLeavesFastLinksDense) {
  Choose(Policy(Compression::AdaTopK, 20));
  EXPECT_EQ(CodecOf(partition_, 0, 1), "fp32");
  EXPECT_NE(CodecOf(partition_, 1, 2), "fp32");
}

TEST_F(CompressionTest, AdaTopKSendsDenseWhereSparseIsLarger) {
  SetLink(problem_, 0, 1, 18e6,
          0);  // wants a ratio of 1.1: fp32 values with indexes would have to drop a fifth
  Compression compression = Policy(Compression::AdaTopK, 20);
  compression.set_values(Compression::fp32);
  Choose(compression);
  const Codec codec = codec::ParseCodec(CodecOf(partition_, 0, 1)).value();
  EXPECT_LE(codec::ValueBytes(codec, problem_.values[0].layout), problem_.values[0].bytes);
}

TEST_F(CompressionTest, TopKIsTheSameEverywhere) {
  Choose(Policy(Compression::TopK, 100));
  EXPECT_EQ(CodecOf(partition_, 0, 1), CodecOf(partition_, 1, 2));
  EXPECT_EQ(CodecOf(partition_, 0, 1), CodecOf(partition_, 2, 3));
  const Codec codec = codec::ParseCodec(CodecOf(partition_, 0, 1)).value();
  EXPECT_TRUE(codec.sparse);
  EXPECT_EQ(codec.values, codec::Values::kInt4);
  const double ratio = static_cast<double>(problem_.values[0].bytes) /
                       static_cast<double>(codec::ValueBytes(codec, problem_.values[0].layout));
  EXPECT_GE(ratio, 100);
  EXPECT_LE(ratio, 150);
}

TEST_F(CompressionTest, QuantizeMaskAndFeedbackAreTaken) {
  Compression quantize = Policy(Compression::Quantize);
  quantize.set_values(Compression::int8);
  Choose(quantize);
  EXPECT_EQ(CodecOf(partition_, 0, 1), "int8");
  Compression sparse = Policy(Compression::TopK, 50);
  sparse.set_values(Compression::fp16);
  sparse.set_mask(Compression::Independent);
  sparse.set_error_feedback(true);
  Choose(sparse);
  EXPECT_THAT(CodecOf(partition_, 0, 1),
              testing::MatchesRegex("topk-0\\.[0-9]+-fp16-independent\\+feedback"));
}

TEST_F(CompressionTest, CodecsSurviveTheirNames) {
  for (const double ratio : {2.0, 7.0, 33.0, 100.0, 1000.0}) {
    Choose(Policy(Compression::AdaTopK, ratio));
    for (const LinkCodec& link : partition_.codecs) {
      EXPECT_EQ(codec::ParseCodec(codec::CodecName(link.codec)).value(), link.codec);
    }
  }
}

TEST_F(CompressionTest, ARatioIsNeeded) {
  EXPECT_EQ(ChooseCodecs(problem_, Policy(Compression::AdaTopK), partition_).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CompressionTest, NothingToCompressInsideANodeOrWithoutGradients) {
  Partition inside = partition_;
  for (PlacedStage& stage : inside.stages) stage.node = 0;
  ASSERT_TRUE(ChooseCodecs(problem_, Policy(Compression::TopK, 10), inside).ok());
  EXPECT_TRUE(inside.codecs.empty());
  for (Value& value : problem_.values) value.floating = value.differentiable = false;
  Choose(Policy(Compression::TopK, 10));
  EXPECT_TRUE(partition_.codecs.empty());
}

RC_GTEST_PROP(CompressionProperty, NeedReachesTheTargetOrHasNoStrongerRung, ()) {
  Chain chain = UniformChain(*rc::gen::inRange(2, 6), 0.01, 0.02);
  chain.columns = 64 * 64;
  chain.bytes_per_second = *rc::gen::element(1e4, 1e5, 1e6, 1e7);
  chain.latency_seconds = *rc::gen::element(0.0, 0.02);
  Problem problem = MakeChainProblem(chain);
  for (Value& value : problem.values) value.layout = {64, 64};
  const int slow = *rc::gen::inRange(0, static_cast<int>(problem.values.size()));
  SetLink(problem, slow, slow + 1, *rc::gen::element(1e4, 1e5), 0.04);
  Partition partition = OneOperatorANode(problem, *rc::gen::inRange(0, 4));
  RC_ASSERT(ChooseCodecs(problem, Policy(Compression::Need), partition).ok());
  const double goal = 1.1 * Step(problem, partition, true);
  if (Step(problem, partition) > goal) {
    Partition strongest = partition;
    strongest.codecs.clear();
    for (int link = 0; link + 1 < static_cast<int>(partition.stages.size()); ++link) {
      strongest.codecs.push_back({link, link + 1, codec::ParseCodec("topk-0.03-int4").value()});
    }
    RC_ASSERT(Step(problem, strongest) > 0.95 * goal);
    RC_ASSERT(Step(problem, partition) <= 1.05 * Step(problem, strongest));
    return;
  }
  // Nothing is compressed for nothing: with all links dense it would not do, or all are dense.
  if (partition.codecs.empty()) return;
  Partition dense = partition;
  dense.codecs.clear();
  RC_ASSERT(Step(problem, dense) > goal);
}

}  // namespace
}  // namespace fusion::scheduler
