#include "proto/quantity.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <cmath>

namespace fusion::api {
namespace {

TEST(ParseQuantity, ReadsKubernetesForms) {
  const std::vector<std::pair<const char*, int64_t>> cases = {
      {"0", 0},
      {"1048576", 1048576},
      {"10Gi", int64_t{10} << 30},
      {"512Mi", int64_t{512} << 20},
      {"1.5G", 1500000000},
      {"1e9", 1000000000},
      {"2E", 2000000000000000000},
      {"7Ei", int64_t{7} << 60},
      {"1.5Ki", 1536},
      {"100m", 1},  // a fraction of a byte counts as one
      {"0.1", 1},
      {"9223372036854775807", INT64_MAX},
      {"128974848000m", 128974848},
  };
  for (const auto& [text, bytes] : cases) {
    const auto parsed = ParseQuantity(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseQuantity, RefusesTheRest) {
  for (const char* text : {"", "-1", "+1", "Gi", "1 Gi", "1gi", "1GiB", "1e", "1e99", "0x10", "8Ei",
                           "9223372036854775808", "1.2.3", "nan", "99999999999999999999999Gi", "1e-30"}) {
    EXPECT_FALSE(ParseQuantity(text).ok()) << text;
  }
}

TEST(ParseDuration, ReadsGoForms) {
  const std::vector<std::pair<const char*, double>> cases = {
      {"30s", 30}, {"1m30s", 90}, {"40ms", 0.04}, {"100us", 1e-4}, {"1.5h", 5400}, {"0s", 0}, {"20ns", 2e-8}};
  for (const auto& [text, seconds] : cases) {
    const auto parsed = ParseDuration(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_DOUBLE_EQ(*parsed, seconds) << text;
  }
  for (const char* text : {"", "30", "-1s", "+1s", "inf", "-inf", "1 s", "1d", "s", "900000h"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
}

TEST(ParseBandwidth, ReadsDecimalBitsPerSecond) {
  const std::vector<std::pair<const char*, double>> cases = {{"8Mbps", 8e6},     {"1Gbps", 1e9},
                                                             {"1.5Gbps", 1.5e9}, {"56kbps", 56e3},
                                                             {"9600bps", 9600},  {"1Tbps", 1e12}};
  for (const auto& [text, bits] : cases) {
    const auto parsed = ParseBandwidth(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_DOUBLE_EQ(*parsed, bits) << text;
  }
  for (const char* text : {"", "8", "8Mb", "8mbps", "8MBps", "-8Mbps", "0Mbps", "1001Tbps", "8 Mbps",
                           "infbps", "nanbps", "1e3bps"}) {
    EXPECT_FALSE(ParseBandwidth(text).ok()) << text;
  }
}

RC_GTEST_PROP(ParseBandwidth, ReadsWhatFormatWrites, (uint32_t kilobits)) {
  const double bits = 1e3 * (1 + kilobits % 999999);
  RC_ASSERT(*ParseBandwidth(FormatBandwidth(bits)) == bits);
}

TEST(Format, IsForPeople) {
  EXPECT_EQ(FormatBytes(12), "12 B");
  EXPECT_EQ(FormatBytes(5583457484.8), "5.2 GiB");
  EXPECT_EQ(FormatBytes(1048575), "1.0 MiB");
  EXPECT_EQ(FormatBytes(9.2e18), "8.0 EiB");
  EXPECT_EQ(FormatSeconds(1.2e-4), "120 us");
  EXPECT_EQ(FormatSeconds(0.04), "40 ms");
  EXPECT_EQ(FormatSeconds(5.76), "5.76 s");
  EXPECT_EQ(FormatSeconds(125), "2m5s");
  EXPECT_EQ(FormatSeconds(3720), "1h2m");
  EXPECT_EQ(FormatSeconds(INFINITY), "-");
  EXPECT_EQ(FormatSeconds(0), "0 s");
  EXPECT_EQ(FormatRate(41.234), "41.2");
  EXPECT_EQ(FormatRate(0.35), "0.35");
  EXPECT_EQ(FormatRate(15234.5), "15200");
  EXPECT_EQ(FormatRate(999.9), "1000");
  EXPECT_EQ(FormatRate(2.5e12), "2.5e+12");
}

}  // namespace
}  // namespace fusion::api
