#include "worker/data/text_pairs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/data/dataset.h"

namespace fusion::worker {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Joined(absl::string_view text) {
  std::vector<std::string> pairs;
  for (const TextPair& pair : SplitPairs(text)) pairs.push_back(absl::StrCat(pair.first, "|", pair.second));
  return pairs;
}

TEST(SplitPairs, CutsRecordsAtTheSpaceNearestToTheMiddle) {
  EXPECT_THAT(Joined("one two three\n%\nabcdef\n%\n  a b  \n"),
              ::testing::ElementsAre("one two|three", "abc|def", "a|b"));
  EXPECT_THAT(Joined("aa bbb cc"), ::testing::ElementsAre("aa|bbb cc")) << "the earlier of two";
  EXPECT_THAT(Joined("a longerword"), ::testing::ElementsAre("a|longerword"));
  EXPECT_THAT(Joined("first line\nsecond line"), ::testing::ElementsAre("first line|second line"));
}

TEST(SplitPairs, OnlyALineThatIsPercentEndsARecord) {
  EXPECT_THAT(Joined("%\nab\r\n%\r\ncd\n%%\n% \n%"), ::testing::ElementsAre("a|b", "cd|%%\n%"));
  EXPECT_THAT(Joined("50 %\nof them"), ::testing::ElementsAre("50 %\nof|them"));
}

TEST(SplitPairs, DropsWhatIsNoPair) {
  EXPECT_TRUE(SplitPairs("").empty());
  EXPECT_TRUE(SplitPairs("%").empty());
  EXPECT_TRUE(SplitPairs("%\n%\n\n%\n a \n%\n").empty());
}

std::string WriteFile(const std::string& name, const std::string& contents) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/pairs-", getpid(), "-", name);
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

/// Record i is "<letter>x <letter>y", the letter being i-th.
std::string Records(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::string letter(1, static_cast<char>('!' + i));
    absl::StrAppend(&text, letter, "x ", letter, "y\n%\n");
  }
  return text;
}

std::vector<int64_t> Integers(const Tensor& tensor) {
  const auto* first = reinterpret_cast<const int64_t*>(tensor.data.get());
  return {first, first + tensor.elements()};
}

const DatasetOptions kOptions{
    .validation_fraction = 0.2, .seed = 1, .global_batch = 10, .validation_batches = 1};

absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::string& text, const PairOptions& pairs,
                                              DatasetOptions options = kOptions) {
  options.path = WriteFile("text", text);
  return OpenTextPairs(options, pairs);
}

TEST(TextPairs, AnEpochHasEachTrainingPairOnceWithBothItsTexts) {
  const auto pairs = Open(Records(50), {.context = 4, .vocabulary = 256});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> letters;
    for (int64_t step = 1; step <= 4; ++step) {
      const BatchSlice slice{.training = true, .batch = 4 * epoch + step, .first = 0, .count = 10};
      const Tensor input = (*pairs)->Read(Placeholder::kInput, slice);
      EXPECT_EQ(input.shape, (std::vector<int64_t>{10, 4}));
      const auto first = Integers(input);
      const auto second = Integers((*pairs)->Read(Placeholder::kLabel, slice));
      for (size_t i = 0; i < 10; ++i) {
        EXPECT_EQ(first[4 * i], second[4 * i]) << "texts of one record";
        EXPECT_EQ(first[4 * i + 1], 'x');
        EXPECT_EQ(second[4 * i + 1], 'y');
        EXPECT_EQ(first[4 * i + 2], kPaddingToken);
        EXPECT_EQ(first[4 * i + 3], kPaddingToken);
        letters.push_back(first[4 * i]);
      }
    }
    EXPECT_EQ(std::set<int64_t>(letters.begin(), letters.end()).size(), 40U);
    EXPECT_LT(*std::max_element(letters.begin(), letters.end()), '!' + 40) << "the rest is for validation";
    epochs.push_back(letters);
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(TextPairs, ValidationIsTheTailInOrder) {
  const auto pairs = Open(Records(50), {.context = 1, .vocabulary = 256});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  const auto letters = Integers((*pairs)->Read(Placeholder::kLabel, {false, 0, 0, 10}));
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(letters[static_cast<size_t>(i)], '!' + 40 + i);
}

TEST(TextPairs, ATokenizerAddsTheEndsAndCutsLongTexts) {
  const std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nred\ngreen\nblue\n##ish\n";
  const auto pairs = Open("RED greenish blue blue\n%\nred grey\n%\n",
                          {.context = 4, .vocabulary = 8, .tokenizer = WriteFile("vocab", vocabulary)},
                          {.validation_fraction = 0.5, .global_batch = 1, .validation_batches = 1});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_EQ(Integers((*pairs)->Read(Placeholder::kInput, {true, 1, 0, 1})),
            (std::vector<int64_t>{2, 4, 5, 3}));  // ##ish is cut off
  EXPECT_EQ(Integers((*pairs)->Read(Placeholder::kLabel, {true, 1, 0, 1})),
            (std::vector<int64_t>{2, 6, 6, 3}));
  EXPECT_EQ(Integers((*pairs)->Read(Placeholder::kLabel, {false, 0, 0, 1})),
            (std::vector<int64_t>{2, 1, 3, 0}));
}

struct BadPairs {
  std::string name;
  std::string text;
  PairOptions options;
  std::string message;
};

class MalformedPairs : public ::testing::TestWithParam<BadPairs> {};

TEST_P(MalformedPairs, AreRefused) {
  PairOptions options = GetParam().options;
  if (!options.tokenizer.empty() && options.tokenizer[0] != '/') {
    options.tokenizer = WriteFile("vocabulary", options.tokenizer);
  }
  const auto pairs = Open(GetParam().text, options);
  ASSERT_FALSE(pairs.ok());
  EXPECT_THAT(std::string(pairs.status().message()), HasSubstr(GetParam().message));
}

const PairOptions kBytes{.context = 8, .vocabulary = 256};
PairOptions With(const std::string& tokenizer, int64_t vocabulary = 100, int64_t context = 8) {
  return {.context = context, .vocabulary = vocabulary, .tokenizer = tokenizer};
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, MalformedPairs,
    ::testing::Values(
        BadPairs{"Empty", "", kBytes, "has 0 records"},
        BadPairs{"OneRecord", "only one\n%\n", kBytes, "has 1 records"},
        BadPairs{"NoValidation", Records(3), kBytes, "validation part of 3 records"},
        BadPairs{"ZeroByte", Records(9) + std::string("a\0b", 3), kBytes, "a zero byte at offset 73"},
        BadPairs{"ByteOutside", Records(9) + "\xc3\xa9", {.context = 8, .vocabulary = 128}, "byte 195 at"},
        BadPairs{"NoTokenizer", Records(9), With("/nonexistent/vocab.txt"),
                 "data.tokenizer.uri: cannot open"},
        BadPairs{"TokenizerNoText", Records(9), With("[PAD]\nno specials\n"), "no line is [UNK]"},
        BadPairs{"TooManyTokens", Records(9), With("[PAD]\n[UNK]\n[CLS]\n[SEP]\nred\n", 4),
                 "has 5 tokens, model.config.vocabulary is 4"},
        BadPairs{"NoRoomForTokens", Records(9), With("[PAD]\n[UNK]\n[CLS]\n[SEP]\n", 100, 2),
                 "model.config.context: is 2"}),
    [](const auto& info) { return info.param.name; });

TEST(TextPairs, AMissingFileIsRefused) {
  const auto pairs = OpenTextPairs({.path = "/nonexistent/pairs"}, kBytes);
  EXPECT_EQ(pairs.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(pairs.status().message()), HasSubstr("data.uri: cannot open /nonexistent/pairs"));
}

}  // namespace
}  // namespace fusion::worker
