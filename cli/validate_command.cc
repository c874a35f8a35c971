#include <ostream>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/inputs.h"
#include "graph/families.h"
#include "nlohmann/json.hpp"

namespace fusion::cli {

int ValidateCommand(const Invocation& invocation, Console& console) {
  const api::Manifest manifest = LoadInputs(invocation.All("filename"), {.compnodes = false});
  if (invocation.Has("output")) {
    nlohmann::ordered_json errors = nlohmann::ordered_json::array();
    for (const api::ManifestError& error : manifest.errors) errors.push_back(error.ToJson());
    console.out << nlohmann::ordered_json({{"valid", manifest.errors.empty()}, {"errors", errors}}).dump(2)
                << "\n";
  } else if (manifest.errors.empty()) {
    console.out << "valid: " << manifest.jobs.size() << (manifest.jobs.size() == 1 ? " job, " : " jobs, ")
                << manifest.compnodes.size()
                << (manifest.compnodes.size() == 1 ? " compnode\n" : " compnodes\n");
  } else {
    PrintErrors(manifest.errors, console);
  }
  return manifest.errors.empty() ? kSuccess : kInvalid;
}

}  // namespace fusion::cli
