#include "worker/checkpoint/checkpoint_json.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace fusion::worker {
namespace {

using nlohmann::json;

constexpr size_t kSha256Digits = 64;

absl::StatusOr<json> ParseObject(absl::string_view text) {
  json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) {
    return absl::DataLossError("it is not a JSON object; damaged or cut off");
  }
  return value;
}

// A member that is an object; null where it is not there.
const json* ObjectIn(const json& value, const char* name) {
  const auto found = value.find(name);
  return found == value.end() || !found->is_object() ? nullptr : &*found;
}

absl::StatusOr<int64_t> IntegerIn(const json& value, const char* name) {
  const auto found = value.find(name);
  if (found == value.end() || !found->is_number_integer() ||
      (found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))) {
    return absl::DataLossError(absl::StrCat("'", name, "' is not an integer"));
  }
  return found->get<int64_t>();
}

absl::StatusOr<int64_t> SizeIn(const json& value, const char* name) {
  auto size = IntegerIn(value, name);
  if (size.ok() && *size < 0) {
    return absl::DataLossError(absl::StrCat("'", name, "' is ", *size, ", below 0"));
  }
  return size;
}

absl::Status CheckVersion(const json& value) {
  const auto version = IntegerIn(value, "version");
  if (!version.ok()) {
    return version.status();
  }
  return *version == 1 ? absl::OkStatus()
                       : absl::DataLossError(absl::StrCat("'version' is ", *version, ", known is 1"));
}

absl::Status CheckFileName(const std::string& name) {
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    return absl::DataLossError(absl::StrCat("'", name, "' is not a plain file name"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ManifestEntry> ParseManifestEntry(const json& value) {
  if (!value.is_object()) {
    return absl::DataLossError("is not an object");
  }
  const auto bytes = SizeIn(value, "bytes");
  if (!bytes.ok()) {
    return bytes.status();
  }
  const auto digest = value.find("sha256");
  if (digest == value.end() || !digest->is_string()) {
    return absl::DataLossError("'sha256' is not a string");
  }
  const auto& digits = digest->get_ref<const std::string&>();
  if (digits.size() != kSha256Digits || !std::all_of(digits.begin(), digits.end(), [](char c) {
        return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
      })) {
    return absl::DataLossError("'sha256' is not 64 lower-case hexadecimal digits");
  }
  return ManifestEntry{.bytes = *bytes, .sha256 = digits};
}

std::string TextIn(const json& value, const char* name) {
  const auto found = value.find(name);
  return found == value.end() || !found->is_string() ? "" : found->get<std::string>();
}

}  // namespace

absl::StatusOr<CheckpointManifest> ParseManifest(absl::string_view text) {
  const auto value = ParseObject(text);
  if (!value.ok()) {
    return value.status();
  }
  if (const absl::Status version = CheckVersion(*value); !version.ok()) {
    return version;
  }
  const json* files = ObjectIn(*value, "files");
  if (files == nullptr) {
    return absl::DataLossError("'files' is not an object");
  }
  CheckpointManifest manifest;
  for (const auto& [name, entry] : files->items()) {
    if (const absl::Status plain = CheckFileName(name); !plain.ok()) {
      return plain;
    }
    auto parsed = ParseManifestEntry(entry);
    if (!parsed.ok()) {
      return absl::DataLossError(absl::StrCat("file '", name, "': ", parsed.status().message()));
    }
    manifest.emplace(name, *std::move(parsed));
  }
  return manifest;
}

std::string ManifestJson(const CheckpointManifest& manifest) {
  json files = json::object();
  for (const auto& [name, entry] : manifest) {
    files[name] = {{"bytes", entry.bytes}, {"sha256", entry.sha256}};
  }
  return json{{"version", 1}, {"files", files}}.dump(2) + "\n";
}

absl::StatusOr<TrainingState> ParseTrainingState(absl::string_view text) {
  const auto value = ParseObject(text);
  if (!value.ok()) {
    return value.status();
  }
  if (const absl::Status version = CheckVersion(*value); !version.ok()) {
    return version;
  }
  const auto step = SizeIn(*value, "step");
  const auto seed = IntegerIn(*value, "seed");
  const auto samples = SizeIn(*value, "samples");
  for (const auto& needed : {step, seed, samples}) {
    if (!needed.ok()) {
      return needed.status();
    }
  }
  return TrainingState{.job = TextIn(*value, "job"),
                       .step = *step,
                       .incarnation = SizeIn(*value, "incarnation").value_or(0),
                       .seed = *seed,
                       .samples = *samples,
                       .global_batch = SizeIn(*value, "globalBatch").value_or(0),
                       .optimizer = TextIn(*value, "optimizer")};
}

std::string TrainingStateJson(const TrainingState& state) {
  const nlohmann::ordered_json value = {{"version", 1},
                                        {"job", state.job},
                                        {"incarnation", state.incarnation},
                                        {"step", state.step},
                                        {"samples", state.samples},
                                        {"globalBatch", state.global_batch},
                                        {"seed", state.seed},
                                        {"optimizer", state.optimizer}};
  return value.dump(2) + "\n";
}

absl::StatusOr<ShardIndex> ParseShardIndex(absl::string_view text) {
  const auto value = ParseObject(text);
  if (!value.ok()) {
    return value.status();
  }
  const json* map = ObjectIn(*value, "weight_map");
  if (map == nullptr || map->empty()) {
    return absl::DataLossError("'weight_map' is not an object with tensors");
  }
  ShardIndex index;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      return absl::DataLossError(absl::StrCat("tensor '", tensor, "' has no file name"));
    }
    auto name = file.get<std::string>();
    if (const absl::Status plain = CheckFileName(name); !plain.ok()) {
      return absl::DataLossError(absl::StrCat("tensor '", tensor, "': ", plain.message()));
    }
    index.emplace(tensor, std::move(name));
  }
  return index;
}

std::string ShardIndexJson(const ShardIndex& index, int64_t total_bytes) {
  return json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", index}}.dump(2) + "\n";
}

}  // namespace fusion::worker
