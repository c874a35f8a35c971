#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "codec/codec.h"

namespace fusion::codec {
namespace {

TEST(CodecNameTest, ReadsWhatTheNameSays) {
  EXPECT_EQ(ParseCodec("fp32").value(), Codec());
  EXPECT_EQ(ParseCodec("int4").value(), (Codec{.values = Values::kInt4}));
  EXPECT_EQ(ParseCodec("bf16+feedback").value(),
            (Codec{.values = Values::kBFloat16, .error_feedback = true}));
  EXPECT_EQ(ParseCodec("topk-0.03-int4").value(),
            (Codec{.values = Values::kInt4, .density = 0.03, .sparse = true}));
  EXPECT_EQ(ParseCodec("topk-1-fp16-independent+feedback").value(), (Codec{.values = Values::kFloat16,
                                                                           .density = 1,
                                                                           .sparse = true,
                                                                           .independent_mask = true,
                                                                           .error_feedback = true}));
}

TEST(CodecNameTest, RefusesWhatIsNotAName) {
  for (const char* name : {"",
                           "fp8",
                           "FP32",
                           "fp32 ",
                           "int4-independent",
                           "+feedback",
                           "fp32+feedback+feedback",
                           "topk",
                           "topk-",
                           "topk-0.1",
                           "topk-0.1-",
                           "topk--int4",
                           "topk-0-int4",
                           "topk--0.1-int4",
                           "topk-1.01-int4",
                           "topk-nan-int4",
                           "topk-inf-int4",
                           "topk-0.1x-int4",
                           "topk-0.1-bf16",
                           "topk-0.1-int4+feedback-independent",
                           "topk-0.1-int4-independent-independent",
                           "topk-1e-400-int4"}) {
    const auto codec = ParseCodec(name);
    EXPECT_EQ(codec.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(codec.status().message().find("topk-DENSITY-VALUES"), absl::string_view::npos) << name;
  }
}

RC_GTEST_PROP(CodecNameTest, ReadsWhatItWrites, ()) {
  Codec codec;
  codec.sparse = *rc::gen::arbitrary<bool>();
  codec.error_feedback = *rc::gen::arbitrary<bool>();
  codec.values = codec.sparse
                     ? *rc::gen::element(Values::kFloat32, Values::kFloat16, Values::kInt8, Values::kInt4)
                     : *rc::gen::element(Values::kFloat32, Values::kBFloat16, Values::kInt8);
  if (codec.sparse) {
    codec.independent_mask = *rc::gen::arbitrary<bool>();
    codec.density = *rc::gen::inRange(1, 1 << 30) / static_cast<double>(1 << 30);
  }
  RC_ASSERT(ParseCodec(CodecName(codec)).value() == codec);
}

}  // namespace
}  // namespace fusion::codec
