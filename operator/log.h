// The operator's log lines. spdlog stays in log.cc: it costs seconds a translation unit.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fusion::op {

/// One line: a constant text, who says it, the object it is about, and the error.
void LogWarning(absl::string_view text, absl::string_view component, absl::string_view object,
                const absl::Status& status);

}  // namespace fusion::op
