#include "codec/top_k.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "codec/half.h"

namespace fusion::codec {
namespace {

std::vector<uint32_t> Select(const std::vector<float>& row, size_t kept) {
  std::vector<uint32_t> indexes(kept);
  TopKSelector().Select(row, absl::MakeSpan(indexes));
  return indexes;
}

TEST(TopKTest, KeepsTheLargestMagnitudesInIndexOrder) {
  EXPECT_EQ(Select({0.5F, -3, 2, 0, 2.5F}, 3), (std::vector<uint32_t>{1, 2, 4}));
  EXPECT_EQ(Select({1, 2}, 2), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(Select({1, 2}, 0), std::vector<uint32_t>{});
}

TEST(TopKTest, TiesGoToTheLowerIndex) {
  EXPECT_EQ(Select({1, -1, 1, -1, 1}, 2), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(Select({1, 2, -1, 2, 1}, 3), (std::vector<uint32_t>{0, 1, 3}));
  EXPECT_EQ(Select({0, -0.0F, 0}, 1), std::vector<uint32_t>{0});
}

TEST(TopKTest, NaNRanksAboveInfinityAboveAll) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Select({1e38F, -infinity, 3, NAN}, 1), std::vector<uint32_t>{3});
  EXPECT_EQ(Select({1e38F, -infinity, 3, NAN}, 2), (std::vector<uint32_t>{1, 3}));
}

RC_GTEST_PROP(TopKTest, EqualsAStableSort, ()) {
  // Few distinct values, so that ties are the rule.
  const auto row = *rc::gen::nonEmpty(rc::gen::container<std::vector<float>>(
      rc::gen::map(rc::gen::inRange(-5, 6), [](int x) { return static_cast<float>(x); })));
  const auto kept = *rc::gen::inRange<size_t>(0, row.size() + 1);
  std::vector<uint32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return std::abs(row[a]) > std::abs(row[b]); });
  order.resize(kept);
  std::sort(order.begin(), order.end());
  RC_ASSERT(Select(row, kept) == order);
}

}  // namespace
}  // namespace fusion::codec
