#include "worker/data/masking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

using ::testing::HasSubstr;

constexpr MaskingOptions kOptions{.seed = 5, .global_batch = 8, .context = 100, .mask_token = 256};

std::vector<int64_t> Integers(const Tensor& tensor) {
  const auto* first = reinterpret_cast<const int64_t*>(tensor.data.get());
  return {first, first + tensor.elements()};
}

/// Letters of one kind, so that replacements show.
std::string WriteText(const std::string& name, char letter, int count) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/masking-", getpid(), "-", name);
  std::ofstream(path, std::ios::binary) << std::string(static_cast<size_t>(count), letter);
  return path;
}

TEST(Masking, IsBertsShareOfTokensInBertsProportions) {
  const Masking masking(kOptions);
  int chosen = 0;
  std::map<std::string, int> fates;
  for (int64_t step = 1; step <= 100; ++step) {
    const BatchSlice slice{.training = true, .batch = step, .first = 0, .count = 8};
    for (int64_t sample = 0; sample < 8; ++sample) {
      const std::vector<bool> here = masking.Chosen(slice, sample);
      for (int64_t t = 0; t < 100; ++t) {
        if (!here[static_cast<size_t>(t)]) continue;
        ++chosen;
        const int64_t shown = masking.Shown(slice, sample, t, 1000);
        EXPECT_TRUE(shown == 1000 || (shown >= 0 && shown <= 256));
        ++fates[shown == 1000 ? "kept" : shown == 256 ? "hidden" : "replaced"];
      }
    }
  }
  EXPECT_NEAR(chosen, 12000, 500);  // five standard deviations of 80,000 draws
  EXPECT_NEAR(fates["hidden"], 0.8 * chosen, 220);
  EXPECT_NEAR(fates["replaced"], 0.1 * chosen, 165);
  EXPECT_NEAR(fates["kept"], 0.1 * chosen, 165);
}

TEST(Masking, DependsOnSeedBatchAndSampleOnly) {
  const BatchSlice step{.training = true, .batch = 3, .first = 0, .count = 8};
  const std::vector<bool> here = Masking(kOptions).Chosen(step, 2);
  EXPECT_EQ(Masking(kOptions).Chosen({.training = true, .batch = 3, .first = 2, .count = 1}, 2), here);
  EXPECT_NE(Masking(kOptions).Chosen(step, 3), here);
  EXPECT_NE(Masking(kOptions).Chosen({.training = true, .batch = 4, .first = 0, .count = 8}, 2), here);
  EXPECT_NE(Masking(kOptions).Chosen({.training = false, .batch = 2, .first = 0, .count = 8}, 2), here)
      << "the third validation batch has the sample numbers of step 3";
  MaskingOptions other = kOptions;
  other.seed = 6;
  EXPECT_NE(Masking(other).Chosen(step, 2), here);
}

TEST(Masking, EverySampleHasATarget) {
  const Masking masking({.seed = 1, .global_batch = 50, .context = 2, .mask_token = 256});
  std::map<int64_t, int> places;
  for (int64_t step = 1; step <= 20; ++step) {
    const BatchSlice slice{.training = true, .batch = step, .first = 0, .count = 50};
    for (int64_t sample = 0; sample < 50; ++sample) {
      const std::vector<bool> chosen = masking.Chosen(slice, sample);
      const int64_t count = std::count(chosen.begin(), chosen.end(), true);
      ASSERT_GE(count, 1);
      if (count == 1) ++places[chosen[0] ? 0 : 1];
    }
  }
  EXPECT_NEAR(places[0], places[1], 160) << "which one is left to chance";
}

TEST(MaskedText, LabelsAreWhatTheInputHides) {
  const std::string path = WriteText("a", 'a', 1000);
  const auto text = OpenMaskedText({.path = path, .seed = 5, .global_batch = 8}, 100, 257);
  ASSERT_TRUE(text.ok()) << text.status();
  const BatchSlice slice{.training = true, .batch = 7, .first = 2, .count = 4};
  const auto input = Integers((*text)->Read(Placeholder::kInput, slice));
  const auto label = Integers((*text)->Read(Placeholder::kLabel, slice));
  ASSERT_EQ(input.size(), 400U);
  int64_t targets = 0;
  int hidden = 0;
  for (size_t i = 0; i < input.size(); ++i) {
    EXPECT_TRUE(label[i] == kIgnoredLabel || label[i] == 'a');
    if (label[i] == kIgnoredLabel) {
      EXPECT_EQ(input[i], 'a');
    }
    targets += label[i] == 'a' ? 1 : 0;
    hidden += input[i] == 256 ? 1 : 0;
  }
  EXPECT_EQ(targets, Masking(kOptions).Count(slice));
  EXPECT_GT(hidden, 20);
  EXPECT_LT(hidden, targets);
}

TEST(MaskedText, MicroBatchesAreSlicesOfTheGlobalBatch) {
  const std::string path = WriteText("b", 'b', 1000);
  const auto text =
      OpenMaskedText({.path = path, .seed = 5, .global_batch = 8, .validation_batches = 2}, 20, 257);
  ASSERT_TRUE(text.ok()) << text.status();
  for (const Placeholder placeholder : {Placeholder::kInput, Placeholder::kLabel}) {
    const auto whole = Integers((*text)->Read(placeholder, {false, 1, 0, 8}));
    std::vector<int64_t> joined;
    for (int64_t first = 0; first < 8; first += 2) {
      const auto part = Integers((*text)->Read(placeholder, {false, 1, first, 2}));
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, whole);
  }
}

TEST(MaskedText, KeepsTheLastIdForTheMask) {
  EXPECT_TRUE(OpenMaskedText({.path = WriteText("c", '\xfe', 100)}, 8, 256).ok());
  const auto taken = OpenMaskedText({.path = WriteText("d", '\xff', 100)}, 8, 256);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr("byte 255 at offset 0"));
  EXPECT_TRUE(OpenMaskedText({.path = WriteText("e", '\xff', 100)}, 8, 257).ok());
}

TEST(TargetsOf, AreMaskedPositionsOrSamples) {
  v1alpha1::FusionJobSpec spec;
  spec.mutable_model()->set_family(v1alpha1::Model::bert);
  spec.mutable_model()->mutable_config()->set_context(100);
  spec.mutable_model()->mutable_config()->set_vocabulary(257);
  spec.mutable_training()->set_seed(5);
  spec.mutable_training()->mutable_batch()->set_global(8);
  const BatchSlice slice{.training = true, .batch = 7, .first = 2, .count = 4};
  EXPECT_EQ(TargetsOf(spec)(slice), Masking(kOptions).Count(slice));
  spec.mutable_model()->mutable_config()->set_towers(2);
  EXPECT_EQ(TargetsOf(spec)(slice), 4);
  spec.mutable_model()->set_family(v1alpha1::Model::gpt2);
  EXPECT_EQ(TargetsOf(spec)(slice), 4);
}

}  // namespace
}  // namespace fusion::worker
