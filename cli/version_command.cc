#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "nlohmann/json.hpp"
#include "proto/manifest.h"

#include <ostream>

namespace fusion::cli {

int VersionCommand(const Invocation& invocation, Console& console) {
  if (invocation.Has("output")) {
    const nlohmann::ordered_json version = {{"version", FUSION_VERSION},
                                            {"apiVersion", std::string(api::kApiVersion)}};
    console.out << version.dump(2) << "\n";
  } else {
    console.out << "fusionctl " << FUSION_VERSION << " (" << std::string(api::kApiVersion) << ")\n";
  }
  return kSuccess;
}

}  // namespace fusion::cli
