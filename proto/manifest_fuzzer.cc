// Any text as a manifest: never a crash; an object without errors keeps its JSON form through the mapper.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "nlohmann/json.hpp"
#include "proto/json_mapper.h"
#include "proto/manifest.h"

namespace {

template <typename T>
void CheckStable(const T& object) {
  T read;
  if (!fusion::api::FromJson(fusion::api::ToJson(object), fusion::api::Mode::kStrict, &read).ok())
    std::abort();
  if (fusion::api::ToJson(read) != fusion::api::ToJson(object)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto manifest = fusion::api::ParseManifest({{"fuzz", text}});
  for (const auto& error : manifest.errors) (void)error.ToString();
  if (!manifest.errors.empty()) return 0;
  for (const auto& job : manifest.jobs) CheckStable(job.object);
  for (const auto& compnode : manifest.compnodes) CheckStable(compnode.object);
  return 0;
}
