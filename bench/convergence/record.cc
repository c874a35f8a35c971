#include "bench/convergence/record.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fusion::bench {
namespace {

using nlohmann::json;

/// What `record` found after `step` steps; null where it did not look then.
const Validation* At(const RunRecord& record, int64_t step) {
  const auto found = std::find_if(record.validations.begin(), record.validations.end(),
                                  [step](const Validation& v) { return v.step == step; });
  return found == record.validations.end() ? nullptr : &*found;
}

std::string LossText(const Estimate& loss) {
  return loss.count < 2 ? absl::StrFormat("%.4f", loss.mean)
                        : absl::StrFormat("%.4f ± %.4f", loss.mean, loss.error);
}

std::string PercentText(const Estimate& relative) {
  if (relative.count == 0) {
    return "";
  }
  return relative.count < 2 ? absl::StrFormat("%+.2f %%", 100 * relative.mean)
                            : absl::StrFormat("%+.2f ± %.2f %%", 100 * relative.mean, 100 * relative.error);
}

std::string BytesText(int64_t bytes, int64_t dense) {
  return absl::StrFormat("%d (%.1fx)", bytes,
                         static_cast<double>(dense) / static_cast<double>(std::max<int64_t>(bytes, 1)));
}

std::string Row(const std::string& variant, const std::vector<RunRecord>& records, int64_t step,
                const std::map<int64_t, double>& dense) {
  std::vector<double> with_codec;
  std::vector<double> exported;
  std::vector<double> with_codec_above;
  std::vector<double> exported_above;
  MessageSizes bytes;
  for (const RunRecord& record : records) {
    const Validation* validation = At(record, step);
    if (record.variant != variant || validation == nullptr) {
      continue;
    }
    bytes = record.bytes;
    with_codec.push_back(validation->with_codec);
    exported.push_back(validation->exported);
    if (const auto base = dense.find(record.seed); base != dense.end()) {
      with_codec_above.push_back(validation->with_codec / base->second - 1);
      exported_above.push_back(validation->exported / base->second - 1);
    }
  }
  if (exported.empty()) {
    return "";
  }
  return absl::StrFormat("| %s | %s | %s | %s | %s | %s | %s | %d |\n", variant,
                         BytesText(bytes.forward, bytes.dense), BytesText(bytes.backward, bytes.dense),
                         LossText(EstimateOf(with_codec)), PercentText(EstimateOf(with_codec_above)),
                         LossText(EstimateOf(exported)), PercentText(EstimateOf(exported_above)),
                         exported.size());
}

}  // namespace

json ToJson(const RunRecord& record) {
  json validations = json::array();
  for (const Validation& v : record.validations) {
    validations.push_back({{"step", v.step}, {"withCodec", v.with_codec}, {"exported", v.exported}});
  }
  return {{"variant", record.variant},
          {"seed", record.seed},
          {"job", record.job},
          {"edges", record.edges},
          {"bytes",
           {{"forward", record.bytes.forward},
            {"backward", record.bytes.backward},
            {"dense", record.bytes.dense}}},
          {"losses", record.losses},
          {"validations", validations},
          {"seconds", record.seconds}};
}

absl::StatusOr<RunRecord> RecordOf(const json& document) {
  try {
    RunRecord record{.variant = document.at("variant"),
                     .seed = document.at("seed"),
                     .job = document.at("job"),
                     .edges = document.at("edges"),
                     .bytes = {.forward = document.at("bytes").at("forward"),
                               .backward = document.at("bytes").at("backward"),
                               .dense = document.at("bytes").at("dense")},
                     .losses = document.at("losses"),
                     .validations = {},
                     .seconds = document.at("seconds")};
    for (const json& v : document.at("validations")) {
      record.validations.push_back(
          {.step = v.at("step"), .with_codec = v.at("withCodec"), .exported = v.at("exported")});
    }
    return record;
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

std::string RecordPath(const std::string& folder, const std::string& variant, int64_t seed) {
  return absl::StrCat(folder, "/", variant, "-seed-", seed, ".json");
}

absl::StatusOr<std::optional<RunRecord>> ReadRecord(const std::string& folder, const RunRecord& wanted,
                                                    int64_t step) {
  const std::string path = RecordPath(folder, wanted.variant, wanted.seed);
  std::ifstream file(path);
  if (!file) {
    return std::nullopt;
  }
  auto record = RecordOf(json::parse(file, nullptr, /*allow_exceptions=*/false));
  if (!record.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", record.status().message(), "; remove it"));
  }
  if (record->job != wanted.job || record->edges != wanted.edges) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is of another job or other cuts; choose another folder with --results"));
  }
  if (At(*record, step) == nullptr) {
    return std::nullopt;
  }
  return *std::move(record);
}

absl::Status WriteRecord(const std::string& folder, const RunRecord& record) {
  const std::string path = RecordPath(folder, record.variant, record.seed);
  const std::string partial = path + ".partial";
  {
    std::ofstream file(partial);
    file << ToJson(record).dump(1) << "\n";
    file.flush();
    if (!file) {
      return absl::UnavailableError(absl::StrCat("cannot write ", partial));
    }
  }
  std::error_code error;
  std::filesystem::rename(partial, path, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot rename ", partial, ": ", error.message()));
  }
  return absl::OkStatus();
}

Estimate EstimateOf(const std::vector<double>& values) {
  Estimate estimate{.mean = 0, .error = 0, .count = static_cast<int>(values.size())};
  if (values.empty()) {
    return estimate;
  }
  for (const double value : values) {
    estimate.mean += value / static_cast<double>(values.size());
  }
  if (values.size() > 1) {
    double squares = 0;
    for (const double value : values) {
      squares += (value - estimate.mean) * (value - estimate.mean);
    }
    const auto count = static_cast<double>(values.size());
    estimate.error = std::sqrt(squares / (count - 1) / count);
  }
  return estimate;
}

std::string Table(const std::vector<RunRecord>& records, const std::vector<std::string>& variants,
                  int64_t step) {
  std::map<int64_t, double> dense;  // by seed
  for (const RunRecord& record : records) {
    const Validation* validation = At(record, step);
    if (record.variant == kDense && validation != nullptr) {
      dense[record.seed] = validation->exported;
    }
  }
  std::string table = absl::StrCat("After ", step, " steps:\n\n",
                                   "| codec | bytes forward | bytes backward | loss, with the codec | above "
                                   "dense | loss, exported | above "
                                   "dense | seeds |\n|---|---|---|---|---|---|---|---|\n");
  for (const std::string& variant : variants) {
    table += Row(variant, records, step, dense);
  }
  if (dense.size() > 1) {
    const auto by_loss = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto [least, most] = std::minmax_element(dense.begin(), dense.end(), by_loss);
    absl::StrAppendFormat(&table, "\nDense over %d seeds: %.4f to %.4f, %.2f %% apart.\n", dense.size(),
                          least->second, most->second, 100 * (most->second / least->second - 1));
  }
  return table;
}

}  // namespace fusion::bench
