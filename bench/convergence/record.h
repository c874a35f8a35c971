// What a run leaves in the results folder, one JSON file a run, and the table that is made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/convergence/variant.h"
#include "nlohmann/json.hpp"

namespace fusion::bench {

/// Losses over the validation batches after so many steps.
struct Validation {
  int64_t step = 0;
  double with_codec = 0;
  double exported = 0;  ///< the same parameters in the graph without codecs
};

struct RunRecord {
  std::string variant;
  int64_t seed = 0;
  int64_t steps = 0;
  nlohmann::json job;                   ///< spec, with this run's seed and steps
  std::vector<std::string> edges;       ///< EdgesOf the variant
  MessageSizes bytes;                   ///< of one micro-batch
  std::vector<double> losses;           ///< of each step
  std::vector<Validation> validations;  ///< ascending
  double seconds = 0;
};

nlohmann::json ToJson(const RunRecord& record);
/// INVALID_ARGUMENT says what is missing.
absl::StatusOr<RunRecord> RecordOf(const nlohmann::json& json);

/// VARIANT-seed-N.json in `folder`.
std::string RecordPath(const std::string& folder, const std::string& variant, int64_t seed);
/// Absent where there is no file, or it has no validation after `step` steps. FAILED_PRECONDITION where the
/// file is of another job or other edges than `wanted`.
absl::StatusOr<std::optional<RunRecord>> ReadRecord(const std::string& folder, const RunRecord& wanted,
                                                    int64_t step);
/// Appears whole or not at all.
absl::Status WriteRecord(const std::string& folder, const RunRecord& record);

/// Mean and its standard error, over `count` values; the error is 0 for a single one.
struct Estimate {
  double mean = 0;
  double error = 0;
  int count = 0;
};
Estimate EstimateOf(const std::vector<double>& values);

/// A Markdown table after `step` steps, a row for each of `variants` in this order: bytes each way with their
/// ratios to fp32, validation losses, and how far they lie above dense with the same seed. Variants without
/// records are left out. Below it, how far the dense seeds are apart.
std::string Table(const std::vector<RunRecord>& records, const std::vector<std::string>& variants,
                  int64_t step);

}  // namespace fusion::bench
