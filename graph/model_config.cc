#include "graph/model_config.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fusion::graph {

absl::Status CheckFields(const v1alpha1::Model& model, absl::Span<const absl::string_view> required,
                         absl::Span<const absl::string_view> optional) {
  const v1alpha1::ModelConfig& config = model.config();
  const std::string& family = v1alpha1::Model::Family_Name(model.family());
  const auto* reflection = config.GetReflection();
  const auto contains = [](absl::Span<const absl::string_view> names, absl::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const absl::string_view name : required) {
    const auto* field = config.GetDescriptor()->FindFieldByName(std::string(name));
    const bool given =
        field->is_repeated() ? reflection->FieldSize(config, field) > 0 : reflection->HasField(config, field);
    if (!given) {
      return absl::InvalidArgumentError(
          absl::StrCat("spec.model.config.", field->json_name(), ": required for family ", family));
    }
  }
  std::vector<const google::protobuf::FieldDescriptor*> set;
  reflection->ListFields(config, &set);
  for (const auto* field : set) {
    if (!contains(required, field->name()) && !contains(optional, field->name())) {
      return absl::InvalidArgumentError(
          absl::StrCat("spec.model.config.", field->json_name(), ": family ", family, " has no such field"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRange(absl::string_view path, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": must be from ", low, " to ", high, ", not ", value));
}

}  // namespace fusion::graph
