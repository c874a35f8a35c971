#include "proto/quantity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/numeric/int128.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace fusion::api {
namespace {

constexpr int kMaxDigits = 19;  // a mantissa below 1e19 leaves room for every multiplier in 128 bits

/// Digits with at most one point, as mantissa x 10^-fraction_digits.
struct Decimal {
  uint64_t mantissa = 0;
  int fraction_digits = 0;
};

bool ConsumeDecimal(absl::string_view* text, Decimal* out) {
  size_t i = 0;
  int digits = 0;
  int significant = 0;
  bool point = false;
  for (; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c == '.' && !point) {
      point = true;
    } else if (absl::ascii_isdigit(static_cast<unsigned char>(c))) {
      ++digits;
      if (out->mantissa != 0 || c != '0') ++significant;
      if (significant > kMaxDigits) return false;
      out->mantissa = out->mantissa * 10 + static_cast<uint64_t>(c - '0');
      if (point) ++out->fraction_digits;
      if (out->fraction_digits > kMaxDigits) return false;
    } else {
      break;
    }
  }
  text->remove_prefix(i);
  return digits > 0;
}

struct Suffix {
  absl::string_view text;
  int power_of_two;
  int power_of_ten;
};
constexpr std::array<Suffix, 16> kSuffixes = {{{"", 0, 0},
                                               {"Ki", 10, 0},
                                               {"Mi", 20, 0},
                                               {"Gi", 30, 0},
                                               {"Ti", 40, 0},
                                               {"Pi", 50, 0},
                                               {"Ei", 60, 0},
                                               {"n", 0, -9},
                                               {"u", 0, -6},
                                               {"m", 0, -3},
                                               {"k", 0, 3},
                                               {"M", 0, 6},
                                               {"G", 0, 9},
                                               {"T", 0, 12},
                                               {"P", 0, 15},
                                               {"E", 0, 18}}};

/// The multiplier that `text` stands for, 1e3 and E3 included; false when it is none.
bool ReadSuffix(absl::string_view text, Suffix* out) {
  for (const Suffix& suffix : kSuffixes) {
    if (suffix.text == text) {
      *out = suffix;
      return true;
    }
  }
  if (text.size() < 2 || (text[0] != 'e' && text[0] != 'E')) return false;
  int exponent = 0;
  if (!absl::SimpleAtoi(text.substr(1), &exponent) || exponent < -18 || exponent > 18) return false;
  *out = {text, 0, exponent};
  return true;
}

absl::Status QuantityError(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a quantity of bytes; write it as 10Gi, 512Mi, 1e9 or 1048576"));
}

}  // namespace

absl::StatusOr<int64_t> ParseQuantity(absl::string_view text) {
  absl::string_view rest = text;
  Decimal decimal;
  Suffix suffix{};
  if (!ConsumeDecimal(&rest, &decimal) || !ReadSuffix(rest, &suffix)) return QuantityError(text);
  // Everything is below 1e19 x 2^60 < 2^124.
  absl::uint128 value = absl::uint128(decimal.mantissa) << suffix.power_of_two;
  absl::uint128 divisor = 1;
  const int exponent = suffix.power_of_ten - decimal.fraction_digits;
  for (int i = 0; i < exponent; ++i) value *= 10;
  for (int i = 0; i < -exponent; ++i) divisor *= 10;
  const absl::uint128 bytes = (value + divisor - 1) / divisor;
  if (bytes > absl::uint128(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is too large; at most 2^63 - 1 bytes"));
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<double> ParseDuration(absl::string_view text) {
  constexpr double kTenYears = 10 * 366 * 86400.0;
  absl::Duration duration;
  if (text.empty() || text[0] == '+' || text[0] == '-' || absl::StrContains(text, "inf") ||
      !absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a duration; write it as 30s, 1m30s, 40ms or 100us"));
  }
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds > kTenYears) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is too long; at most ten years"));
  }
  return seconds;
}

namespace {

struct BandwidthUnit {
  absl::string_view text;
  double bits_per_second;
  absl::string_view exponent;
};
constexpr std::array<BandwidthUnit, 5> kBandwidthUnits = {
    {{"Tbps", 1e12, "e12"}, {"Gbps", 1e9, "e9"}, {"Mbps", 1e6, "e6"}, {"kbps", 1e3, "e3"}, {"bps", 1, "e0"}}};

}  // namespace

absl::StatusOr<double> ParseBandwidth(absl::string_view text) {
  constexpr double kMaxBandwidth = 1e15;
  for (const BandwidthUnit& unit : kBandwidthUnits) {
    absl::string_view number = text;
    if (!absl::ConsumeSuffix(&number, unit.text)) continue;
    absl::string_view rest = number;
    Decimal decimal;
    double bits = 0;  // read with its exponent, so that it is rounded once
    if (!ConsumeDecimal(&rest, &decimal) || !rest.empty() ||
        !absl::SimpleAtod(absl::StrCat(number, unit.exponent), &bits)) {
      break;
    }
    if (bits <= 0 || bits > kMaxBandwidth) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" is out of range; a bandwidth is more than 0 and at most 1000Tbps"));
    }
    return bits;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" is not a bandwidth; write it as 8Mbps, 1Gbps or 1.5Gbps (decimal bits per second)"));
}

std::string FormatBytes(double bytes) {
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (std::abs(bytes) < 1024) return absl::StrFormat("%.0f B", bytes);
  size_t unit = 0;
  double value = bytes / 1024;
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  if (seconds < 0.9995) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (seconds < 59.95) return absl::StrFormat("%.3g s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(std::min(seconds, 1e15)));
  if (whole < 3600) return absl::StrFormat("%dm%ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh%dm", whole / 3600, whole % 3600 / 60);
}

std::string FormatRate(double rate) {
  if (std::abs(rate) < 999.5 || std::abs(rate) >= 1e9) return absl::StrFormat("%.3g", rate);
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(rate))) - 2);
  return absl::StrFormat("%.0f", std::round(rate / unit) * unit);
}

std::string FormatBandwidth(double bits_per_second) {
  for (const BandwidthUnit& unit : kBandwidthUnits) {
    if (bits_per_second >= unit.bits_per_second || unit.bits_per_second == 1) {
      return absl::StrFormat("%.6g%s", bits_per_second / unit.bits_per_second, unit.text);
    }
  }
  return "0bps";
}

}  // namespace fusion::api
