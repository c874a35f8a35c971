#include "codec/index_code.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace fusion::codec {
namespace {

TEST(IndexCodeTest, BitsOfAKnownCode) {
  // 16 columns, 2 kept: 2 low bits each, then 2 + (15 >> 2) = 5 bits of high part: 9 bits, as few as with 3
  // low bits.
  const IndexCode code(16, 2);
  ASSERT_EQ(code.bytes(), 2);
  std::vector<std::byte> message(2);
  code.Encode({5, 14}, message.data());
  // Low parts 01 and 10; high parts 1 and 3 set bits 1 + 0 and 3 + 1 behind them.
  EXPECT_EQ(std::to_integer<int>(message[0]), 0b0010'1001);
  EXPECT_EQ(std::to_integer<int>(message[1]), 0b0000'0001);
}

TEST(IndexCodeTest, IsEmptyWhereAllOrNoneAreKept) {
  EXPECT_EQ(IndexCode(1000, 1000).bytes(), 0);
  EXPECT_EQ(IndexCode(1000, 0).bytes(), 0);
  std::vector<uint32_t> indexes(4);
  ASSERT_TRUE(IndexCode(4, 4).Decode(nullptr, absl::MakeSpan(indexes)).ok());
  EXPECT_EQ(indexes, (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST(IndexCodeTest, CostsCloseToTheEntropy) {
  for (const double density : {0.001, 0.01, 0.03, 0.1, 0.2, 0.5}) {
    constexpr int64_t kColumns = 1 << 20;
    const auto kept = static_cast<int64_t>(density * kColumns);
    const double bits =
        8.0 * static_cast<double>(IndexCode(kColumns, kept).bytes()) / static_cast<double>(kept);
    const double entropy = -std::log2(density) - (1 - density) / density * std::log2(1 - density);
    EXPECT_GE(bits, entropy);
    EXPECT_LE(bits, entropy + (density < 0.3 ? 0.65 : 1.01)) << density;
  }
}

TEST(IndexCodeTest, ReachesTheLastColumnOfTheLargestRow) {
  constexpr int64_t kColumns = 0xffffffff;
  const IndexCode code(kColumns, 2);
  std::vector<std::byte> message(code.bytes());
  code.Encode({0, 0xfffffffe}, message.data());
  std::vector<uint32_t> indexes(2);
  ASSERT_TRUE(code.Decode(message.data(), absl::MakeSpan(indexes)).ok());
  EXPECT_EQ(indexes, (std::vector<uint32_t>{0, 0xfffffffe}));
}

RC_GTEST_PROP(IndexCodeTest, DecodesWhatItEncodes, ()) {
  const auto columns = *rc::gen::inRange<int64_t>(1, 5000);
  const auto chosen =
      *rc::gen::container<std::set<uint32_t>>(rc::gen::inRange<uint32_t>(0, static_cast<uint32_t>(columns)));
  const std::vector<uint32_t> indexes(chosen.begin(), chosen.end());
  const IndexCode code(columns, static_cast<int64_t>(indexes.size()));
  std::vector<std::byte> message(code.bytes(), std::byte{0xff});
  code.Encode(indexes, message.data());
  std::vector<uint32_t> decoded(indexes.size());
  RC_ASSERT(code.Decode(message.data(), absl::MakeSpan(decoded)).ok());
  RC_ASSERT(decoded == indexes);
}

RC_GTEST_PROP(IndexCodeTest, AcceptsOnlyWhatItWouldWrite, ()) {
  const auto columns = *rc::gen::inRange<int64_t>(1, 40);
  const auto kept = *rc::gen::inRange<int64_t>(0, columns + 1);
  const IndexCode code(columns, kept);
  const auto bytes = *rc::gen::container<std::vector<uint8_t>>(code.bytes(), rc::gen::arbitrary<uint8_t>());
  std::vector<std::byte> message(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) message[i] = std::byte{bytes[i]};
  std::vector<uint32_t> indexes(kept);
  const absl::Status status = code.Decode(message.data(), absl::MakeSpan(indexes));
  RC_CLASSIFY(status.ok());
  if (!status.ok()) {
    RC_ASSERT(status.code() == absl::StatusCode::kDataLoss);
    return;
  }
  std::vector<std::byte> again(message.size());
  code.Encode(indexes, again.data());
  RC_ASSERT(again == message);
}

TEST(IndexCodeTest, SaysWhatIsWrong) {
  const IndexCode code(16, 2);
  std::vector<uint32_t> indexes(2);
  const auto message = [&](int low, int high) {
    const std::vector<std::byte> bytes = {static_cast<std::byte>(low), static_cast<std::byte>(high)};
    return std::string(code.Decode(bytes.data(), absl::MakeSpan(indexes)).message());
  };
  EXPECT_EQ(message(0, 0), "a row has 0 indexes instead of 2");
  EXPECT_EQ(message(0b1101'0000, 0), "a row has more than 2 indexes");
  EXPECT_EQ(message(0b0011'0001, 0), "index 0 of a row of 16 columns follows 1");
  EXPECT_EQ(message(0b0011'0100, 0b10), "bits are set behind the indexes of a row");
}

}  // namespace
}  // namespace fusion::codec
