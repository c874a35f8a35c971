#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/object_view.h"
#include "nlohmann/json.hpp"
#include "operator/client.h"
#include "operator/embedded.h"
#include "operator/object.h"
#include "operator/store/object_files.h"
#include "proto/yaml.h"

namespace fusion::cli {
namespace {

using nlohmann::json;

/// Names that were asked for and are not there.
std::vector<std::string> Missing(const std::vector<std::string>& names, const std::vector<json>& objects) {
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    const bool found = std::any_of(objects.begin(), objects.end(),
                                   [&](const json& object) { return op::KeyOf(object).name == name; });
    if (!found) missing.push_back(name);
  }
  return missing;
}

void Print(const std::vector<json>& objects, bool one, const std::string& format, bool jobs,
           Console& console) {
  if (format != "json" && format != "yaml") {
    console.out
        << (jobs ? JobTable(objects, format == "wide") : CompnodeTable(objects, format == "wide")).Render();
    return;
  }
  const json value = one ? objects.front() : json{{"apiVersion", "v1"}, {"kind", "List"}, {"items", objects}};
  console.out << (format == "json" ? value.dump(2) + "\n" : api::ToYaml(value));
}

}  // namespace

int GetCommand(const Invocation& invocation, Console& console) {
  const bool jobs = invocation.argument.find("job") != std::string::npos;
  const std::string workdir = invocation.Get("workdir", "fusion-work");
  const op::Resource& resource = jobs ? op::kFusionJobs : op::kCompnodes;
  absl::StatusOr<std::vector<json>> objects = op::ReadStoredObjects(op::ObjectsFolder(workdir), resource);
  if (!objects.ok()) {
    console.Error(absl::IsNotFound(objects.status()) ? absl::StrCat("no run has left objects in ", workdir,
                                                                    "; give its folder with --workdir")
                                                     : objects.status().message());
    return kInvalid;
  }
  if (!invocation.rest.empty()) {
    const std::vector<std::string> missing = Missing(invocation.rest, *objects);
    for (const std::string& name : missing)
      console.Error(absl::StrCat(resource.plural, " \"", name, "\" not found"));
    if (!missing.empty()) return kFailed;
    objects->erase(std::remove_if(objects->begin(), objects->end(),
                                  [&](const json& object) {
                                    const std::string name = op::KeyOf(object).name;
                                    return std::find(invocation.rest.begin(), invocation.rest.end(), name) ==
                                           invocation.rest.end();
                                  }),
                   objects->end());
  }
  const std::string format = invocation.Get("output", "");
  if (objects->empty() && format != "json" && format != "yaml") {
    console.err << "no " << resource.plural << " in " << workdir << "\n";
    return kSuccess;
  }
  Print(*objects, invocation.rest.size() == 1, format, jobs, console);
  return kSuccess;
}

}  // namespace fusion::cli
