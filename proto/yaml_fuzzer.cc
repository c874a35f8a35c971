// Any bytes as a YAML text: never a crash; what is read can be written and read again, equal.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "proto/yaml.h"

namespace {

/// NaN is not equal to itself, and non-finite numbers have no JSON form.
bool AllFinite(const nlohmann::json& value) {
  if (value.is_number_float()) return std::isfinite(value.get<double>());
  return !value.is_structured() || std::all_of(value.begin(), value.end(), AllFinite);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto stream = fusion::api::ParseYaml({reinterpret_cast<const char*>(data), size});
  for (const auto& document : stream.documents) {
    if (!AllFinite(document.value)) continue;
    const auto again = fusion::api::ParseYaml(fusion::api::ToYaml(document.value));
    if (!again.errors.empty() || again.documents.size() != 1 || again.documents[0].value != document.value)
      std::abort();
  }
  return 0;
}
