#include "worker/transport/inbox.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

namespace fusion::worker {
namespace {

constexpr int64_t kLimit = 1000;

class InboxTest : public testing::Test {
 protected:
  using Result = absl::StatusOr<std::optional<EncodedTensor>>;

  static wire::v1::FrameHeader Descriptor(uint64_t tensor, const std::string& content) {
    wire::v1::FrameHeader header;
    auto& descriptor = *header.mutable_tensor();
    descriptor.set_tensor(tensor);
    descriptor.set_step(3);
    descriptor.set_micro_batch(2);
    descriptor.set_edge(7);
    descriptor.set_direction(wire::v1::FORWARD);
    descriptor.set_consumer(-1);
    descriptor.set_codec("int8");
    descriptor.set_dtype(graph::v1::FLOAT32);
    descriptor.add_shape(2);
    descriptor.add_shape(5);
    descriptor.set_bytes(content.size());
    descriptor.set_checksum(
        Checksum(reinterpret_cast<const std::byte*>(content.data()), static_cast<int64_t>(content.size())));
    return header;
  }

  Result Take(const wire::v1::FrameHeader& header, const std::string& payload = "") {
    const std::string bytes = FramePrefix(header) + payload;
    // In pieces of three bytes, which cut everything.
    Pieces pieces;
    for (size_t begin = 0; begin < bytes.size(); begin += 3) {
      pieces.emplace_back(reinterpret_cast<const std::byte*>(bytes.data()) + begin,
                          std::min<size_t>(3, bytes.size() - begin));
    }
    const auto frame = ParseFrame(pieces);
    EXPECT_TRUE(frame.ok()) << frame.status();
    return inbox_.Take(*frame);
  }

  Result Data(uint64_t tensor, uint64_t offset, const std::string& payload) {
    wire::v1::FrameHeader header;
    header.mutable_data()->set_tensor(tensor);
    header.mutable_data()->set_offset(offset);
    return Take(header, payload);
  }

  void ExpectRefused(const std::function<void(wire::v1::TensorDescriptor&)>& change, absl::StatusCode code,
                     const std::string& message) {
    wire::v1::FrameHeader header = Descriptor(1, "0123456789");
    change(*header.mutable_tensor());
    const Result result = Take(header);
    EXPECT_EQ(result.status().code(), code) << result.status();
    EXPECT_NE(result.status().message().find(message), absl::string_view::npos) << result.status();
  }

  Inbox inbox_{kLimit};
};

std::string Content(const EncodedTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data.get()), static_cast<size_t>(tensor.bytes)};
}

TEST_F(InboxTest, GathersInterleavedTensors) {
  ASSERT_TRUE(Take(Descriptor(1, "0123456789")).ok());
  ASSERT_TRUE(Data(1, 0, "0123").ok());
  ASSERT_TRUE(Take(Descriptor(2, "abc")).ok());
  const Result second = Data(2, 0, "abc");
  ASSERT_TRUE(second.ok() && second->has_value()) << second.status();
  EXPECT_EQ(Content(**second), "abc");
  const Result first = Data(1, 4, "456789");
  ASSERT_TRUE(first.ok() && first->has_value()) << first.status();
  EXPECT_EQ(Content(**first), "0123456789");
  EXPECT_EQ((*first)->key,
            (TensorKey{.step = 3, .micro_batch = 2, .edge = 7, .direction = wire::v1::FORWARD}));
  EXPECT_EQ((*first)->shape, (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*first)->data.get()) % 64, 0U);
  EXPECT_EQ(inbox_.tensors(), 2U);
}

TEST_F(InboxTest, AbsentTensorIsCompleteAtOnce) {
  wire::v1::FrameHeader header = Descriptor(1, "");
  header.mutable_tensor()->set_absent(true);
  const Result tensor = Take(header);
  ASSERT_TRUE(tensor.ok() && tensor->has_value()) << tensor.status();
  EXPECT_TRUE((*tensor)->absent);
}

TEST_F(InboxTest, RefusesWrongDescriptors) {
  using absl::StatusCode;
  ExpectRefused([](auto& d) { d.set_tensor(2); }, StatusCode::kDataLoss,
                "tensor 2 of the stream is described after");
  ExpectRefused([](auto& d) { d.set_bytes(kLimit + 1); }, StatusCode::kResourceExhausted, "limit of 1000");
  ExpectRefused([](auto& d) { d.set_bytes(~uint64_t{0}); }, StatusCode::kResourceExhausted, "limit of 1000");
  ExpectRefused([](auto& d) { d.clear_direction(); }, StatusCode::kInvalidArgument, "without direction");
  ExpectRefused([](auto& d) { d.clear_dtype(); }, StatusCode::kInvalidArgument, "data type");
  ExpectRefused([](auto& d) { d.set_shape(0, -1); }, StatusCode::kInvalidArgument, "dimensions");
  ExpectRefused([](auto& d) { d.set_shape(0, int64_t{1} << 62); }, StatusCode::kInvalidArgument,
                "dimensions");
  ExpectRefused([](auto& d) { d.set_codec("fp32"); }, StatusCode::kInvalidArgument,
                "10 bytes for 10 elements");
  ExpectRefused([](auto& d) { d.set_absent(true); }, StatusCode::kInvalidArgument,
                "absent gradient with bytes");
}

TEST_F(InboxTest, RefusesWrongData) {
  ASSERT_TRUE(Take(Descriptor(1, "0123456789")).ok());
  EXPECT_EQ(Data(2, 0, "x").status(), absl::DataLossError("data of tensor 2, which is not under way"));
  EXPECT_EQ(Data(1, 1, "x").status(),
            absl::DataLossError("step 3, micro-batch 2, edge 7 FORWARD: 1 bytes at offset 1 after 0 of 10"));
  EXPECT_EQ(Data(1, 0, "").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Data(1, 0, "0123456789x").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Data(1, 0, "012345678x").status().code(), absl::StatusCode::kDataLoss);  // checksum
  EXPECT_EQ(inbox_.tensors(), 0U);
}

TEST_F(InboxTest, LimitCountsTensorsUnderWayTogether) {
  ASSERT_TRUE(Take(Descriptor(1, std::string(600, 'x'))).ok());
  EXPECT_EQ(Take(Descriptor(2, std::string(600, 'x'))).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(Data(1, 0, std::string(600, 'x')).ok());
  EXPECT_TRUE(Take(Descriptor(2, std::string(600, 'x'))).ok());
}

TEST(FrameTest, RefusesWhatIsNoFrame) {
  const auto parse = [](const std::string& bytes) {
    return ParseFrame({{reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}}).status();
  };
  EXPECT_EQ(parse("").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(parse("abc").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(parse(std::string("\x05\0\0\0abcd", 8)).code(),
            absl::StatusCode::kDataLoss);  // longer than the frame
  EXPECT_EQ(parse("\xff\xff\xff\xff" + std::string(10, 'x')).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(parse(std::string("\x04\0\0\0\xff\xff\xff\xff", 8)).code(),
            absl::StatusCode::kDataLoss);                                            // no message
  EXPECT_EQ(parse(std::string("\0\0\0\0", 4)).code(), absl::StatusCode::kDataLoss);  // no kind
  wire::v1::FrameHeader header;
  header.mutable_data();
  EXPECT_TRUE(parse(FramePrefix(header) + std::string(kMaxPayloadBytes, 'x')).ok());
  EXPECT_EQ(parse(FramePrefix(header) + std::string(kMaxPayloadBytes + 1, 'x')).code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace fusion::worker
