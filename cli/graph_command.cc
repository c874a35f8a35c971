#include <optional>
#include <ostream>
#include <string>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/graph_view.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/planning.h"
#include "cli/profile_cache.h"
#include "nlohmann/json.hpp"
#include "proto/json_mapper.h"
#include "proto/yaml.h"
#include "scheduler/planner.h"

namespace fusion::cli {
namespace {

using Job = api::Declared<v1alpha1::FusionJob>;

/// The plan that colours the drawing: the one of --plan, else the one that `plan` would make; none where the
/// files declare no compnodes.
absl::StatusOr<std::optional<graph::v1::Plan>> PlanFor(const Invocation& invocation,
                                                       const api::Manifest& manifest, const Job& job,
                                                       const graph::v1::Graph& graph, Console& console) {
  if (invocation.Has("plan")) {
    auto plan = ReadPlan(invocation.Get("plan", ""));
    if (!plan.ok()) return plan.status();
    if (plan->job() != job.object.metadata().name()) {
      return absl::InvalidArgumentError(absl::StrCat("--plan is of job \"", plan->job(), "\", not of \"",
                                                     job.object.metadata().name(), "\""));
    }
    return *std::move(plan);
  }
  if (manifest.compnodes.empty()) return std::nullopt;
  const Interrupt interrupt;
  ProfileCache profiles(invocation.Get("workdir", "fusion-work"), false, interrupt,
                        [&console] { console.Note(kMeasuring); });
  const v1alpha1::FusionJobSpec& spec = job.object.spec();
  const auto machine = profiles.Profile(graph, spec.training().batch().micro());
  if (!machine.ok()) return machine.status();
  auto result =
      scheduler::MakePlan({job.object.metadata().name(), spec, graph, Compnodes(manifest), *machine});
  if (!result.ok()) return result.status();
  return std::move(result->plan);
}

}  // namespace

int GraphCommand(const Invocation& invocation, Console& console) {
  const api::Manifest manifest = LoadInputs(invocation.All("filename"), {.compnodes = false, .data = false});
  if (!manifest.errors.empty()) {
    PrintErrors(manifest.errors, console);
    return kInvalid;
  }
  const std::string format = invocation.Get("output", "json");
  if (format == "svg" && manifest.jobs.size() > 1) {
    console.Error("an SVG has one drawing; give a file with one job");
    return kInvalid;
  }
  for (size_t i = 0; i < manifest.jobs.size(); ++i) {
    const auto graph = JobGraph(manifest.jobs[i]);
    if (!graph.ok()) return Fail(graph.status(), console);
    if (format == "dot" || format == "svg") {
      const auto plan = PlanFor(invocation, manifest, manifest.jobs[i], *graph, console);
      if (!plan.ok()) return Fail(plan.status(), console);
      const graph::v1::Plan* colors = plan->has_value() ? &**plan : nullptr;
      console.out << (format == "dot" ? GraphDot(*graph, colors) : GraphSvg(*graph, colors));
      continue;
    }
    const nlohmann::json value = api::ToJson(*graph);
    if (format == "yaml" && i > 0) console.out << "---\n";
    console.out << (format == "yaml" ? api::ToYaml(value) : value.dump(2) + "\n");
  }
  return kSuccess;
}

}  // namespace fusion::cli
