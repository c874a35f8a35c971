// Checks shared by the families: which fields of spec.model a family has, and their values.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::graph {

/// INVALID_ARGUMENT "spec.model.config.FIELD: …" where a field of `required` is absent or where one is set
/// that is in neither list. Names are those of the proto.
absl::Status CheckFields(const v1alpha1::Model& model, absl::Span<const absl::string_view> required,
                         absl::Span<const absl::string_view> optional);

/// INVALID_ARGUMENT "PATH: must be from LOW to HIGH, not VALUE".
absl::Status CheckRange(absl::string_view path, int64_t value, int64_t low, int64_t high);

}  // namespace fusion::graph
