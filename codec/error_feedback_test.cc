#include "codec/error_feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace fusion::codec {
namespace {

class ErrorFeedbackTest : public testing::Test {
 protected:
  std::vector<float> Send(const Codec& codec, const std::vector<float>& value) {
    const Layout layout{.rows = 1, .columns = static_cast<int64_t>(value.size())};
    std::vector<std::byte> message(ValueBytes(codec, layout));
    std::vector<float> decoded(value.size());
    EXPECT_TRUE(feedback_.EncodeValue(codec, layout, value, absl::MakeSpan(message), nullptr).ok());
    EXPECT_TRUE(DecodeValue(codec, layout, message, absl::MakeSpan(decoded), nullptr).ok());
    return decoded;
  }

  ErrorFeedback feedback_;
  const Codec codec_ = ParseCodec("topk-0.25-fp32+feedback").value();
};

TEST_F(ErrorFeedbackTest, SendsLaterWhatWasLeftOut) {
  const std::vector<float> value = {4, 3, 2, 0};
  EXPECT_EQ(Send(codec_, value), (std::vector<float>{4, 0, 0, 0}));
  EXPECT_EQ(Send(codec_, value), (std::vector<float>{0, 6, 0, 0}));
  EXPECT_EQ(Send(codec_, value), (std::vector<float>{8, 0, 0, 0}));
  EXPECT_EQ(feedback_.residual(), (std::vector<float>{0, 3, 6, 0}));
}

TEST_F(ErrorFeedbackTest, SentPlusResidualIsTheSumOfWhatWasGiven) {
  const std::vector<float> value = {1, -0.3F, 0.01F, 5, 0.7F};
  std::vector<double> sent(value.size());
  constexpr int kMessages = 50;
  for (int i = 0; i < kMessages; ++i) {
    const std::vector<float> decoded = Send(ParseCodec("int4").value(), value);
    for (size_t j = 0; j < value.size(); ++j) sent[j] += decoded[j];
  }
  for (size_t j = 0; j < value.size(); ++j) {
    EXPECT_NEAR(sent[j] + feedback_.residual()[j], static_cast<double>(kMessages) * value[j], 1e-4);
  }
}

TEST_F(ErrorFeedbackTest, RestoredStateContinuesTheSame) {
  Send(codec_, {4, 3, 2, 0});
  ErrorFeedback other;
  other.Restore({feedback_.residual().begin(), feedback_.residual().end()});
  std::swap(feedback_, other);
  EXPECT_EQ(Send(codec_, {4, 3, 2, 0}), (std::vector<float>{0, 6, 0, 0}));
}

TEST_F(ErrorFeedbackTest, AnotherSizeStartsAnew) {
  Send(codec_, {4, 3, 2, 0});
  EXPECT_EQ(Send(codec_, {4, 3, 2, 0, 0, 0, 0, 0}), (std::vector<float>{4, 3, 0, 0, 0, 0, 0, 0}));
}

TEST_F(ErrorFeedbackTest, NonFiniteValuesLeaveNoResidual) {
  Send(ParseCodec("int8").value(), {std::numeric_limits<float>::infinity(), NAN});
  EXPECT_EQ(feedback_.residual(), (std::vector<float>{0, 0}));
}

TEST_F(ErrorFeedbackTest, NothingIsLeftOutOutsideAReusedMask) {
  const Layout layout{.rows = 1, .columns = 4};
  const Codec codec = ParseCodec("topk-0.5-int8").value();
  const Mask mask{.kept_per_row = 2, .columns = {1, 3}};
  std::vector<std::byte> message(GradientBytes(codec, layout));
  ASSERT_TRUE(feedback_.EncodeGradient(codec, layout, {9, 1, 9, 0.15F}, mask, absl::MakeSpan(message)).ok());
  EXPECT_EQ(feedback_.residual()[0], 0);
  EXPECT_EQ(feedback_.residual()[1], 0);
  EXPECT_EQ(feedback_.residual()[2], 0);
  EXPECT_FLOAT_EQ(feedback_.residual()[3], 0.15F - 10 * 0x1p-6F);
}

}  // namespace
}  // namespace fusion::codec
