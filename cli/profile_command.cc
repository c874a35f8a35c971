#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/inputs.h"
#include "cli/planning.h"
#include "cli/profile_cache.h"
#include "cli/table.h"
#include "proto/quantity.h"

namespace fusion::cli {
namespace {

std::string ProfileText(const scheduler::MachineProfile& profile) {
  Table table({{"MEASURE"}, {"VALUE", Align::kRight}});
  table.Add({"speed of one thread", absl::StrFormat("%.3g GFLOP/s", profile.flops / 1e9)});
  table.Add({"memory", absl::StrFormat("%.3g GB/s", profile.memory_bytes_per_second / 1e9)});
  table.Add({"cost of an operator", api::FormatSeconds(profile.operator_seconds)});
  table.Add(
      {"update of a parameter", absl::StrFormat("%.3g ns", profile.update_seconds_per_parameter * 1e9)});
  table.Add({"operators measured", absl::StrCat(profile.operators.size())});
  return table.Render();
}

}  // namespace

int ProfileCommand(const Invocation& invocation, Console& console) {
  std::vector<api::Declared<v1alpha1::FusionJob>> jobs;
  if (invocation.Has("filename")) {
    api::Manifest manifest = LoadInputs(invocation.All("filename"), {.compnodes = false, .data = false});
    if (!manifest.errors.empty()) {
      PrintErrors(manifest.errors, console);
      return kInvalid;
    }
    jobs = std::move(manifest.jobs);
  }
  const Interrupt interrupt;
  ProfileCache cache(invocation.Get("workdir", "fusion-work"), invocation.Has("refresh"), interrupt,
                     [&console] { console.Note(kMeasuring); });
  const auto print = [&](const absl::StatusOr<scheduler::MachineProfile>& profile) {
    if (!profile.ok()) return Fail(profile.status(), console);
    console.out << (invocation.Has("output") ? scheduler::ProfileJson(*profile) + "\n"
                                             : ProfileText(*profile));
    return static_cast<int>(kSuccess);
  };
  if (jobs.empty()) return print(cache.Profile());
  for (const auto& job : jobs) {
    const absl::StatusOr<graph::v1::Graph> graph = JobGraph(job);
    if (!graph.ok()) return Fail(graph.status(), console);
    const int exit_code = print(cache.Profile(*graph, job.object.spec().training().batch().micro()));
    if (exit_code != kSuccess) return exit_code;
  }
  return kSuccess;
}

}  // namespace fusion::cli
