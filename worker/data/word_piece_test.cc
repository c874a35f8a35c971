#include "worker/data/word_piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace fusion::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kVocabulary[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\naff\n,\n!\ncafe\nCafé\n日\n本\n$\n##e\n##s\n";

std::vector<int32_t> Encode(absl::string_view text, bool lowercase = true) {
  const auto tokenizer = WordPiece::Parse(kVocabulary, lowercase);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer->Encode(text);
}

TEST(WordPiece, TakesTheLongestPieceFromTheStart) {
  EXPECT_THAT(Encode("unaffable aff"), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(Encode("unaffablex"), ElementsAre(1)) << "a rest that no piece covers";
  EXPECT_THAT(Encode("affable"), ElementsAre(8, 7));
}

TEST(WordPiece, SplitsAtSpacesPunctuationAndIdeographs) {
  EXPECT_THAT(Encode("aff,aff!\t\r\n aff"), ElementsAre(8, 9, 8, 10, 8));
  EXPECT_THAT(Encode("aff$aff"), ElementsAre(8, 15, 8)) << "a symbol of ASCII";
  EXPECT_THAT(Encode("aff日本aff"), ElementsAre(8, 13, 14, 8));
  EXPECT_THAT(Encode("aff\u00a0aff\u2003aff"), ElementsAre(8, 8, 8)) << "spaces of Unicode";
}

TEST(WordPiece, FoldsCaseAndAccentsWhereAsked) {
  EXPECT_THAT(Encode("CAFÉ Cafe\u0301 UN"), ElementsAre(11, 11, 5));
  EXPECT_THAT(Encode("Café un UN", false), ElementsAre(12, 5, 1));
}

TEST(WordPiece, DropsControlsAndWhatIsNoUtf8) {
  EXPECT_THAT(Encode("a\x01"
                     "f\u200d"
                     "f\xff"),
              ElementsAre(8));
  EXPECT_THAT(Encode(std::string("af\0f", 4)), ElementsAre(8));
  EXPECT_THAT(Encode(""), ElementsAre());
  EXPECT_THAT(Encode(" \n "), ElementsAre());
}

TEST(WordPiece, AWordBeyondAHundredCharactersIsUnknown) {
  std::string word = "aff";
  while (word.size() < 100) word += "e";
  EXPECT_EQ(Encode(word).size(), 98U);
  EXPECT_THAT(Encode(word + "e"), ElementsAre(1));
}

TEST(WordPiece, EndsAreWithinTheLimit) {
  const auto tokenizer = WordPiece::Parse(kVocabulary, true);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_THAT(tokenizer->EncodeWithEnds("unaffable", 8), ElementsAre(2, 5, 6, 7, 3));
  EXPECT_THAT(tokenizer->EncodeWithEnds("unaffable", 4), ElementsAre(2, 5, 6, 3));
  EXPECT_THAT(tokenizer->EncodeWithEnds("unaffable", 2), ElementsAre(2, 3));
  EXPECT_EQ(tokenizer->size(), 18);
}

TEST(WordPiece, TakesBothLineEnds) {
  const auto tokenizer = WordPiece::Parse("[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\naff", true);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(tokenizer->Encode("aff"), ElementsAre(4));
}

struct BadVocabulary {
  std::string name;
  std::string text;
  std::string message;
};

class MalformedVocabulary : public ::testing::TestWithParam<BadVocabulary> {};

TEST_P(MalformedVocabulary, IsRefused) {
  const auto tokenizer = WordPiece::Parse(GetParam().text, true);
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, MalformedVocabulary,
    ::testing::Values(BadVocabulary{"Empty", "", "no line is [UNK]"},
                      BadVocabulary{"Binary", std::string("\0\xff\n\x01", 4), "no line is [UNK]"},
                      BadVocabulary{"Twice", "[PAD]\n[UNK]\nred\n[CLS]\nred\n",
                                    "line 5 has the same token as line 3"},
                      BadVocabulary{"NoSeparator", "[PAD]\n[UNK]\n[CLS]\n", "no line is [SEP]"},
                      BadVocabulary{"NoPadding", "[UNK]\n[CLS]\n[SEP]\n", "must be [PAD]"},
                      BadVocabulary{"PaddingLater", "[UNK]\n[PAD]\n[CLS]\n[SEP]\n", "must be [PAD]"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fusion::worker
