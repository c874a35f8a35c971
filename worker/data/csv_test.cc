#include "worker/data/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace fusion::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseCsv, ReadsNumbersQuotesBothLineEndsAndAByteOrderMark) {
  const auto table = ParseCsv(
      "\xef\xbb\xbf"
      "a,\"b \"\"c\"\"\", d\r\n1,-2.5e3,\"3\"\n\n4, 5 ,6");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->columns, ElementsAre("a", "b \"c\"", "d"));
  EXPECT_EQ(table->rows, 2);
  EXPECT_THAT(table->cells, ElementsAre(1, -2500, 3, 4, 5, 6));
  EXPECT_THAT(table->lines, ElementsAre(2, 4));
}

TEST(ParseCsv, AHeaderMayBeOptional) {
  const auto bare = ParseCsv("1,2\n3,4\n", CsvHeader::kOptional);
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(bare->rows, 2);
  EXPECT_THAT(bare->columns, ElementsAre("1", "2"));
  EXPECT_THAT(bare->lines, ElementsAre(1, 2));
  const auto named = ParseCsv("a,b\n3,4\n", CsvHeader::kOptional);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->rows, 1);
  const auto half = ParseCsv("a,2\n3,4\n", CsvHeader::kOptional);
  EXPECT_THAT(std::string(half.status().message()), HasSubstr("line 1: column 1 ('1'): 'a' is not a finite"));
}

struct BadCsv {
  std::string text;
  std::string message;
};

class MalformedCsv : public ::testing::TestWithParam<BadCsv> {};

TEST_P(MalformedCsv, IsRefusedWithThePlace) {
  const auto table = ParseCsv(GetParam().text);
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(table.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, MalformedCsv,
    ::testing::Values(BadCsv{"", "the file is empty"}, BadCsv{"\n \n", "the file is empty"},
                      BadCsv{"a,b\n", "no rows"},
                      BadCsv{std::string("a,b\n1,\0\n", 8), "zero byte at offset 6"},
                      BadCsv{"a,b\n1,2\n3\n", "line 3: 1 cells where the first line has 2"},
                      BadCsv{"a,b\n1,2,3\n", "line 2: 3 cells"},
                      BadCsv{"a,b\n1,x\n", "line 2: column 2 ('b'): 'x' is not a finite number"},
                      BadCsv{"a,b\n1,\n", "column 2 ('b'): '' is not"},
                      BadCsv{"a,b\n1,nan\n", "'nan' is not"}, BadCsv{"a,b\n1,1e999\n", "'1e999' is not"},
                      BadCsv{"a,a\n1,2\n", "two columns are named 'a'"},
                      BadCsv{"a,,b\n1,2,3\n", "column 2 has no name"}, BadCsv{"a,b\n\"1,2\n", "quoted cell"},
                      BadCsv{"a,b\n\"1\"x,2\n", "quoted cell"}, BadCsv{"a,b\n1,\x01\xff\n", "\\x01\\xff"}));

}  // namespace
}  // namespace fusion::worker
