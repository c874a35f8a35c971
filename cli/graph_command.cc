#include <ostream>
#include <string>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/inputs.h"
#include "cli/planning.h"
#include "nlohmann/json.hpp"
#include "proto/json_mapper.h"
#include "proto/yaml.h"

namespace fusion::cli {

int GraphCommand(const Invocation& invocation, Console& console) {
  const api::Manifest manifest = LoadInputs(invocation.All("filename"), {.compnodes = false, .data = false});
  if (!manifest.errors.empty()) {
    PrintErrors(manifest.errors, console);
    return kInvalid;
  }
  const bool yaml = invocation.Get("output", "json") == "yaml";
  for (size_t i = 0; i < manifest.jobs.size(); ++i) {
    const auto& job = manifest.jobs[i];
    const auto graph = JobGraph(job);
    if (!graph.ok()) {
      console.Error(std::string(graph.status().message()));
      return kInvalid;
    }
    const nlohmann::json value = api::ToJson(*graph);
    if (yaml && i > 0) console.out << "---\n";
    console.out << (yaml ? api::ToYaml(value) : value.dump(2) + "\n");
  }
  return kSuccess;
}

}  // namespace fusion::cli
