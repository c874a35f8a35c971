#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "codec/codec.h"

namespace fusion::codec {
namespace {

constexpr absl::string_view kTopK = "topk-";
constexpr absl::string_view kIndependent = "-independent";
constexpr absl::string_view kFeedback = "+feedback";
constexpr std::array<std::pair<absl::string_view, Values>, 5> kValues = {{{"fp32", Values::kFloat32},
                                                                          {"fp16", Values::kFloat16},
                                                                          {"bf16", Values::kBFloat16},
                                                                          {"int8", Values::kInt8},
                                                                          {"int4", Values::kInt4}}};

absl::Status NotACodec(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", name,
      "' is not a codec; write fp32, fp16, bf16, int8, int4 or topk-DENSITY-VALUES[-independent] with ",
      "DENSITY in (0, 1] and VALUES fp32, fp16, int8 or int4, any of them followed by +feedback if wanted"));
}

bool ParseValues(absl::string_view text, Values* values) {
  for (const auto& [name, value] : kValues) {
    if (text == name) {
      *values = value;
      return true;
    }
  }
  return false;
}

bool ParseDensity(absl::string_view text, double* density) {
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, *density);
  return error == std::errc() && parsed == end && *density > 0 && *density <= 1;
}

/// The shortest decimal that reads back as the same number.
std::string FormatDensity(double density) {
  std::array<char, 512> text;
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), density, std::chars_format::fixed);
  return {text.data(), error == std::errc() ? end : text.data()};
}

}  // namespace

absl::StatusOr<Codec> ParseCodec(absl::string_view name) {
  Codec codec;
  absl::string_view rest = name;
  codec.error_feedback = absl::ConsumeSuffix(&rest, kFeedback);
  codec.sparse = absl::ConsumePrefix(&rest, kTopK);
  if (!codec.sparse) {
    if (!ParseValues(rest, &codec.values)) return NotACodec(name);
    return codec;
  }
  codec.independent_mask = absl::ConsumeSuffix(&rest, kIndependent);
  const size_t dash = rest.rfind('-');
  if (dash == absl::string_view::npos || !ParseDensity(rest.substr(0, dash), &codec.density) ||
      !ParseValues(rest.substr(dash + 1), &codec.values) || codec.values == Values::kBFloat16) {
    return NotACodec(name);
  }
  return codec;
}

std::string CodecName(const Codec& codec) {
  absl::string_view values;
  for (const auto& [name, value] : kValues) {
    if (value == codec.values) values = name;
  }
  const absl::string_view feedback = codec.error_feedback ? kFeedback : "";
  if (!codec.sparse) return absl::StrCat(values, feedback);
  return absl::StrCat(kTopK, FormatDensity(codec.density), "-", values,
                      codec.independent_mask ? kIndependent : "", feedback);
}

}  // namespace fusion::codec
