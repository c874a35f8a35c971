#include "proto/yaml.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "proto/utf8.h"

namespace fusion::api {
namespace {

using nlohmann::json;

json Parsed(const std::string& text) {
  const YamlStream stream = ParseYaml(text);
  EXPECT_TRUE(stream.errors.empty()) << text << ": " << stream.errors[0].message;
  return stream.documents.empty() ? json() : stream.documents[0].value;
}

std::string ErrorOf(const std::string& text) {
  const YamlStream stream = ParseYaml(text);
  return stream.errors.empty() ? "" : absl::StrCat(stream.errors[0].line, ": ", stream.errors[0].message);
}

// Values as `kubectl annotate --local -o json` (1.32) prints them.
TEST(Yaml, ScalarsResolveAsKubectlResolvesThem) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"y", "true"},
      {"n", "false"},
      {"Yes", "true"},
      {"off", "false"},
      {"ON", "true"},
      {"yES", "\"yES\""},
      {"~", "null"},
      {"NULL", "null"},
      {"nUll", "\"nUll\""},
      {"1e3", "1000"},
      {"012", "10"},
      {"08", "8"},
      {"0o17", "15"},
      {"00", "0"},
      {"-012", "-10"},
      {"1_000", "1000"},
      {"1__0", "10"},
      {"1.0", "1"},
      {".5", "0.5"},
      {"0.", "0"},
      {"1.e2", "100"},
      {"0x1F", "31"},
      {"0x", "\"0x\""},
      {"0b11", "3"},
      {"+5", "5"},
      {"-0.0", "0"},
      {"1:30", "\"1:30\""},
      {"2001-01-01", "\"2001-01-01\""},
      {"1e400", "\"1e400\""},
      {"0.1e-7", "1e-08"},
      {"1e-3", "0.001"},
      {"\"y\"", "\"y\""},
      {"'1'", "\"1\""},
      {"!!str 5", "\"5\""},
      {"!!int \"5\"", "5"},
      {"1e20", "1e+20"},
      {"18446744073709551615", "18446744073709551615"},
      {"10Gi", "\"10Gi\""},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(Parsed(absl::StrCat("v: ", text))["v"].dump(), expected) << text;
  }
  EXPECT_TRUE(std::isnan(Parsed("v: .nan")["v"].get<double>()));
  EXPECT_TRUE(std::isinf(Parsed("v: -.inf")["v"].get<double>()));
}

TEST(Yaml, KeysBecomeStrings) {
  EXPECT_EQ(Parsed("{1: a, y: b, 1.5: c, s: d}").dump(), R"({"1":"a","1.5":"c","s":"d","true":"b"})");
}

TEST(Yaml, MergesMaps) {
  EXPECT_EQ(Parsed("b: &b {x: 1, z: 5}\ns:\n  x: 2\n  <<: *b\n")["s"].dump(), R"({"x":2,"z":5})");
  EXPECT_EQ(Parsed("a: &a {x: 1}\nb: &b {x: 2, p: 3}\ns: {<<: [*a, *b]}\n")["s"].dump(), R"({"p":3,"x":1})");
  EXPECT_EQ(ErrorOf("s: {<<: 5}"), "1: << needs a map or a list of maps");
}

TEST(Yaml, JsonIsYaml) {
  EXPECT_EQ(Parsed("{\"a\": [1, 2.5, null, true],\t\"b\": {\"c\": \"\\u00e4\\n\"}}").dump(),
            R"({"a":[1,2.5,null,true],"b":{"c":"ä\n"}})");
}

TEST(Yaml, KnowsTheLineOfEachField) {
  const YamlStream stream = ParseYaml(
      "# comment\n---\na: 1\n---\n---\nspec:\n  links:\n  - peer: x\n    rate: 1\n  - {peer: y}\n  \"a.b\": "
      "1\n");
  ASSERT_EQ(stream.documents.size(), 2U);
  EXPECT_EQ(stream.documents[0].index, 1);
  EXPECT_EQ(stream.documents[0].LineOf("a"), 3);
  const YamlDocument& document = stream.documents[1];
  EXPECT_EQ(document.index, 3);
  EXPECT_EQ(document.LineOf("spec.links[0].rate"), 9);
  EXPECT_EQ(document.LineOf("spec.links[1].peer"), 10);
  EXPECT_EQ(document.LineOf("spec.links[1].missing.deeper"), 10);
  EXPECT_EQ(document.LineOf("spec[\"a.b\"]"), 11);
  EXPECT_EQ(document.LineOf("status"), 6);
}

TEST(Yaml, RefusesWithTheLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a: 1\nb:\n  c: 1\n  c: 2\n", "4: the key is given twice; remove one of them"},
      {"a: 1\nb: *x\n", "2: is not YAML: the referenced anchor is not defined"},
      {"a: &a [*a]\n", "1: an alias stands inside of what it names"},
      {"a: 1\n? [x]\n: 2\n", "2: a list or map cannot be a key; write a string"},
      {"a: !!binary aGVsbG8=\n", "1: \"aGVsbG8=\" is not a value of the tag !!binary; leave the tag out"},
      {"a: !thing {}\n", "1: the tag !thing is not supported; leave it out"},
      {std::string("a: \0b\n", 6), "1: is not a text in UTF-8; give a YAML or JSON file"},
      {"a: 1\nb: \xff\n", "2: is not a text in UTF-8; give a YAML or JSON file"},
      {std::string(kMaxYamlBytes + 1, ' '), "1: is larger than 4 MiB; split the file"},
      {"a: " + std::string(100, '[') + std::string(100, ']'), "1: nests deeper than 64 levels"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(ErrorOf(text), message) << text.substr(0, 40);
}

TEST(Yaml, CapsAliasBombs) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 20; ++i) {
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [");
    for (int k = 0; k < 10; ++k) absl::StrAppend(&bomb, k == 0 ? "" : ", ", "*a", i - 1);
    absl::StrAppend(&bomb, "]\n");
  }
  EXPECT_EQ(ErrorOf(bomb), "5: has more than 100000 values, aliases expanded; split the file");
  std::string nested;
  for (int i = 0; i < 60; ++i) absl::StrAppend(&nested, "&a", i, " [");
  for (int i = 0; i < 20'000; ++i) absl::StrAppend(&nested, "x,");
  EXPECT_NE(ErrorOf(nested + std::string(60, ']')), "");
}

TEST(Yaml, SurvivesDeepNests) {
  for (const char* level : {"[", "{a: ", "- ", "? "}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += level;
    EXPECT_NE(ErrorOf(text), "") << level;
  }
}

TEST(Yaml, ErrorsKeepEarlierDocuments) {
  const YamlStream stream = ParseYaml("a: 1\n---\nb: [\n");
  EXPECT_EQ(stream.documents.size(), 1U);
  ASSERT_EQ(stream.errors.size(), 1U);
  EXPECT_EQ(stream.errors[0].document, 2);
}

TEST(ToYaml, QuotesWhatWouldChange) {
  const json value = {{"a", {"y", "1", "", "plain text", "x: y", "-"}},
                      {"b", json::array()},
                      {"c", {{"d", {{{"e", 1.5}, {"f", nullptr}}}}}}};
  EXPECT_EQ(ToYaml(value),
            "a:\n- \"y\"\n- \"1\"\n- \"\"\n- plain text\n- \"x: y\"\n- \"-\"\nb: []\nc:\n  d:\n  - e: 1.5\n  "
            "  f: null\n");
}

// Found by yaml_fuzzer: YAML takes keys of at most 1024 characters without a mark.
TEST(ToYaml, WritesLongKeys) {
  const json value = {{std::string(2000, 'k'), {{"a", 1}}}, {std::string(1001, 'm'), json::array({1})}};
  EXPECT_EQ(Parsed(ToYaml(value)), value);
}

json ArbitraryJson(int depth) {
  const int kind = *rc::gen::inRange(0, depth > 0 ? 7 : 5);
  switch (kind) {
    case 0:
      return nullptr;
    case 1:
      return *rc::gen::arbitrary<bool>();
    case 2:
      return *rc::gen::arbitrary<int64_t>();
    case 3:
      return *rc::gen::arbitrary<int>() + 0.5;
    case 4: {
      auto text = *rc::gen::string<std::string>();
      return text.substr(0, ValidTextPrefix(text));
    }
    case 5: {
      json list = json::array();
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i) list.push_back(ArbitraryJson(depth - 1));
      return list;
    }
    default: {
      json object = json::object();
      for (int i = *rc::gen::inRange(0, 4); i > 0; --i) {
        auto key = *rc::gen::string<std::string>();
        object[key.substr(0, ValidTextPrefix(key))] = ArbitraryJson(depth - 1);
      }
      return object;
    }
  }
}

RC_GTEST_PROP(ToYaml, ReadsBackEqual, ()) {
  const json value = {{"v", ArbitraryJson(4)}};
  const std::string text = ToYaml(value);
  const YamlStream stream = ParseYaml(text);
  RC_ASSERT(stream.errors.empty());
  RC_ASSERT(stream.documents.size() == 1U);
  RC_ASSERT(stream.documents[0].value == value);
}

RC_GTEST_PROP(Yaml, NeverThrows, (const std::string& text)) {
  const YamlStream stream = ParseYaml(text);
  RC_ASSERT(stream.errors.size() <= 1U);
}

}  // namespace
}  // namespace fusion::api
