#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/inputs.h"
#include "cli/plan_view.h"
#include "cli/planning.h"
#include "cli/profile_cache.h"
#include "nlohmann/json.hpp"
#include "proto/json_mapper.h"
#include "proto/yaml.h"
#include "scheduler/planner.h"

namespace fusion::cli {
namespace {

using v1alpha1::FusionJobSpec;
using v1alpha1::Placement;

/// Everything about one job but its placement policy.
struct Subject {
  std::string name;
  FusionJobSpec spec;
  graph::v1::Graph graph;
  std::vector<v1alpha1::Compnode> compnodes;
  scheduler::MachineProfile machine;

  absl::StatusOr<graph::v1::Plan> Plan() const {
    absl::StatusOr<scheduler::PlanResult> result =
        scheduler::MakePlan({name, spec, graph, compnodes, machine});
    if (!result.ok()) return result.status();
    return std::move(result->plan);
  }
};

/// Prints results one after another in the format asked for.
class Printer {
 public:
  Printer(std::string format, Console& console) : format_(std::move(format)), console_(console) {}

  bool structured() const { return format_ == "json" || format_ == "yaml"; }
  bool wide() const { return format_ == "wide"; }
  void Print(const nlohmann::json& value) {
    if (format_ == "json") {
      console_.out << value.dump(2) << "\n";
    } else {
      console_.out << (first_ ? "" : "---\n") << api::ToYaml(value);
    }
    first_ = false;
  }
  void Print(const std::string& text) {
    console_.out << (first_ ? "" : "\n") << text;
    first_ = false;
  }

 private:
  const std::string format_;
  Console& console_;
  bool first_ = true;
};

int Compare(Subject subject, Printer* printer) {
  std::vector<ComparedPlan> plans;
  nlohmann::json value = {{"plans", nlohmann::json::array()}};
  for (const Placement::Policy policy :
       {Placement::OpFence, Placement::EqualNumber, Placement::EqualCompute, Placement::DtFm}) {
    subject.spec.mutable_placement()->set_policy(policy);
    ComparedPlan compared;
    compared.policy = Placement::Policy_Name(policy);
    absl::StatusOr<graph::v1::Plan> plan = subject.Plan();
    if (plan.ok()) {
      value["plans"].push_back(api::ToJson(*plan));
      compared.plan = *std::move(plan);
    } else {
      compared.infeasible = std::string(plan.status().message());
      value["infeasible"].push_back({{"policy", compared.policy}, {"reason", compared.infeasible}});
    }
    plans.push_back(std::move(compared));
  }
  printer->structured() ? printer->Print(value)
                        : printer->Print(absl::StrCat(subject.name, "\n\n", ComparisonText(plans)));
  return value["plans"].empty() ? kFailed : kSuccess;
}

}  // namespace

int PlanCommand(const Invocation& invocation, Console& console) {
  const api::Manifest manifest = LoadInputs(invocation.All("filename"), {});
  if (!manifest.errors.empty()) {
    PrintErrors(manifest.errors, console);
    return kInvalid;
  }
  Printer printer(invocation.Get("output", ""), console);
  const Interrupt interrupt;
  ProfileCache profiles(invocation.Get("workdir", "fusion-work"), false, interrupt,
                        [&console] { console.Note(kMeasuring); });
  int exit_code = kSuccess;
  for (const auto& job : manifest.jobs) {
    const FusionJobSpec& spec = job.object.spec();
    absl::StatusOr<graph::v1::Graph> graph = JobGraph(job);
    if (!graph.ok()) return Fail(graph.status(), console);
    absl::StatusOr<scheduler::MachineProfile> machine =
        profiles.Profile(*graph, spec.training().batch().micro());
    if (!machine.ok()) return Fail(machine.status(), console);
    Subject subject{job.object.metadata().name(), spec, *std::move(graph),
                    invocation.Has("fit-emulation") ? FittingCompnodes(manifest, machine->flops, console)
                                                    : Compnodes(manifest),
                    *std::move(machine)};
    if (invocation.Has("compare")) {
      exit_code = std::max(exit_code, Compare(std::move(subject), &printer));
      continue;
    }
    const absl::StatusOr<graph::v1::Plan> plan = subject.Plan();
    if (!plan.ok()) {
      exit_code = std::max(exit_code, Fail(plan.status(), console));
    } else {
      printer.structured() ? printer.Print(api::ToJson(*plan))
                           : printer.Print(PlanText(*plan, printer.wide()));
    }
  }
  return exit_code;
}

}  // namespace fusion::cli
