#include "worker/data/sampling.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <set>
#include <vector>

namespace fusion::worker {
namespace {

TEST(CounterRandom, DependsOnEachOfSeedStreamAndCounter) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t stream = 0; stream < 10; ++stream) {
      for (uint64_t counter = 0; counter < 10; ++counter) {
        seen.insert(CounterRandom(seed, stream, counter));
      }
    }
  }
  EXPECT_EQ(seen.size(), 1000);
}

TEST(RandomBelow, FillsTheRangeEvenly) {
  std::vector<int> counts(10);
  for (uint64_t counter = 0; counter < 10000; ++counter) {
    ++counts[RandomBelow(10, 1, 2, counter)];
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 1000, 150);  // five standard deviations
  }
}

RC_GTEST_PROP(Permute, IsAPermutation, ()) {
  const auto size = *rc::gen::inRange<uint64_t>(1, 300);
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  std::set<uint64_t> images;
  for (uint64_t i = 0; i < size; ++i) {
    const uint64_t image = Permute(i, size, seed, 3);
    RC_ASSERT(image < size);
    images.insert(image);
  }
  RC_ASSERT(images.size() == size);
}

TEST(Permute, EpochsDiffer) {
  std::vector<uint64_t> first;
  std::vector<uint64_t> second;
  for (uint64_t i = 0; i < 100; ++i) {
    first.push_back(Permute(i, 100, 7, 0));
    second.push_back(Permute(i, 100, 7, 1));
  }
  EXPECT_NE(first, second);
}

TEST(EvenlySpread, CoversTheRangeAndRepeatsEqually) {
  EXPECT_EQ(EvenlySpread(0, 4, 100), 0);
  EXPECT_EQ(EvenlySpread(3, 4, 100), 75);
  std::vector<int> counts(3);
  for (uint64_t i = 0; i < 6; ++i) {
    ++counts[EvenlySpread(i, 6, 3)];
  }
  EXPECT_EQ(counts, (std::vector<int>{2, 2, 2}));
}

}  // namespace
}  // namespace fusion::worker
