#include "scheduler/profile.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace fusion::scheduler {
namespace {

using nlohmann::json;

/// By graph::OperatorClass.
constexpr std::array<const char*, kOperatorClasses> kClassNames = {"matmul", "convolution", "elementwise",
                                                                   "reduction", "memory"};

double RoundToTwoDigits(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.1e", value);
  return std::strtod(text.data(), nullptr);
}

absl::Status ReadNumber(const json& object, const std::string& path, const char* key, double least,
                        double* number) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) {
    return absl::InvalidArgumentError(absl::StrCat("profile: ", path, key, ": a number is missing"));
  }
  const double value = found->get<double>();
  if (!std::isfinite(value) || value < least) {
    return absl::InvalidArgumentError(absl::StrCat("profile: ", path, key, ": ", value, " is not possible"));
  }
  *number = RoundToTwoDigits(value);
  return absl::OkStatus();
}

}  // namespace

MachineProfile UnmeasuredProfile(double flops) {
  MachineProfile profile;
  profile.flops = flops;
  profile.lambda.fill(0.5);
  return profile;
}

absl::StatusOr<MachineProfile> ParseProfile(absl::string_view text) {
  const json document = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return absl::InvalidArgumentError("profile: not a JSON object");
  MachineProfile profile;
  const auto read = [&](const char* key, double least, double* number) {
    return ReadNumber(document, "", key, least, number);
  };
  if (auto status = read("flops", 1, &profile.flops); !status.ok()) return status;
  if (auto status = read("memoryBytesPerSecond", 0, &profile.memory_bytes_per_second); !status.ok())
    return status;
  if (auto status = read("operatorSeconds", 0, &profile.operator_seconds); !status.ok()) return status;
  if (auto status = read("updateSecondsPerParameter", 0, &profile.update_seconds_per_parameter);
      !status.ok()) {
    return status;
  }
  const json lambda = document.value("lambda", json::object());
  for (int c = 0; c < kOperatorClasses; ++c) {
    constexpr double kLeastShare = 1e-6;
    if (auto status = ReadNumber(lambda, "lambda.", kClassNames[c], kLeastShare, &profile.lambda[c]);
        !status.ok()) {
      return status;
    }
  }
  const json operators = document.value("operators", json::object());
  for (const auto& [signature, seconds] : operators.items()) {
    OperatorSeconds& measured = profile.operators[signature];
    const std::string path = absl::StrCat("operators[\"", signature, "\"].");
    if (auto status = ReadNumber(seconds, path, "forward", 0, &measured.forward); !status.ok()) return status;
    if (auto status = ReadNumber(seconds, path, "backward", 0, &measured.backward); !status.ok())
      return status;
  }
  return profile;
}

std::string ProfileJson(const MachineProfile& profile) {
  json document = {{"flops", profile.flops},
                   {"memoryBytesPerSecond", profile.memory_bytes_per_second},
                   {"operatorSeconds", profile.operator_seconds},
                   {"updateSecondsPerParameter", profile.update_seconds_per_parameter},
                   {"operators", json::object()}};
  for (int c = 0; c < kOperatorClasses; ++c) document["lambda"][kClassNames[c]] = profile.lambda[c];
  for (const auto& [signature, seconds] : profile.operators) {
    document["operators"][signature] = {{"forward", seconds.forward}, {"backward", seconds.backward}};
  }
  return document.dump(1) + "\n";
}

}  // namespace fusion::scheduler
