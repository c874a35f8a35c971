// "Did you mean …?" for misspelt names.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace fusion::api {

/// The candidate that differs least from `name`, case and separators aside by at most a third of its letters;
/// empty when none is near. The first wins a tie.
std::string ClosestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace fusion::api
