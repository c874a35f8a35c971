#include "operator/controllers/planning.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/autocast.h"
#include "graph/families.h"
#include "graph/job_data.h"
#include "graph/slicing.h"
#include "scheduler/plan.h"
#include "scheduler/planner.h"

namespace fusion::op {
namespace {

using v1alpha1::Compnode;
using v1alpha1::FusionJob;
using v1alpha1::FusionJobSpec;

constexpr double kEmulationShare = 0.6;

double EmulationLimit(int cores, double machine_flops) { return kEmulationShare * cores * machine_flops; }

double EmulatedFlops(const std::vector<Compnode>& compnodes) {
  double sum = 0;
  for (const Compnode& compnode : compnodes) sum += compnode.spec().emulation().flops();
  return sum;
}

ObjectKey KeyOfJob(const FusionJob& job) { return {job.metadata().namespace_(), job.metadata().name()}; }

std::string LocalPath(const std::string& uri, const std::string& base_directory) {
  const std::string path = absl::StartsWith(uri, "file://") ? uri.substr(7) : uri;
  const bool relative = !absl::StartsWith(path, "/") && !base_directory.empty();
  return relative ? absl::StrCat(base_directory, "/", path) : path;
}

absl::Status CheckReadable(const std::string& field, const std::string& uri,
                           const std::string& base_directory) {
  if (absl::StrContains(uri, "://") && !absl::StartsWith(uri, "file://")) return absl::OkStatus();
  const std::string path = LocalPath(uri, base_directory);
  if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  const absl::Status reason = absl::ErrnoToStatus(errno, "");
  return absl::NotFoundError(absl::StrCat(field, ": cannot read ", path, reason.message(),
                                          "; relative paths are relative to the job's file"));
}

absl::Status CheckData(const FusionJobSpec& spec, const std::string& base_directory) {
  if (spec.data().has_uri()) {
    absl::Status status = CheckReadable("spec.data.uri", spec.data().uri(), base_directory);
    if (!status.ok()) return status;
  }
  if (spec.model().has_init_from()) {
    absl::Status status =
        CheckReadable("spec.model.initFrom.uri", spec.model().init_from().uri(), base_directory);
    if (!status.ok()) return status;
  }
  if (!spec.training().has_resume_from()) return absl::OkStatus();
  return CheckReadable("spec.training.resumeFrom.uri", spec.training().resume_from().uri(), base_directory);
}

std::vector<wire::v1::ModelVariable> VariablesOf(const graph::v1::Graph& graph) {
  std::vector<wire::v1::ModelVariable> variables;
  for (const graph::v1::Operator& op : graph.operators()) {
    if (op.kind() != graph::v1::Operator::VARIABLE) continue;
    wire::v1::ModelVariable& variable = variables.emplace_back();
    variable.set_tensor_name(op.variable().tensor_name());
    *variable.mutable_spec() = op.outputs(0);
    variable.set_trainable(op.variable().trainable());
  }
  return variables;
}

/// The graph, and the job as workers are told it: with what the graph says of its data.
struct Model {
  graph::v1::Graph graph;
  FusionJobSpec spec;
};

absl::StatusOr<Model> ModelOf(const FusionJob& job, const std::string& base_directory) {
  absl::StatusOr<graph::v1::Graph> graph = graph::BuildModel(job.spec().model(), base_directory);
  if (graph.ok()) graph = graph::ApplyPrecision(*std::move(graph), job.spec().training());
  if (!graph.ok()) return graph.status();
  Model model{*std::move(graph), job.spec()};
  absl::Status status = graph::CompleteSpec(model.graph, &model.spec);
  if (status.ok()) status = CheckData(model.spec, base_directory);
  if (!status.ok()) return status;
  return model;
}

const Compnode* FindCompnode(const std::vector<Compnode>& compnodes, const std::string& name) {
  const auto found = std::find_if(compnodes.begin(), compnodes.end(), [&](const Compnode& compnode) {
    return compnode.metadata().name() == name;
  });
  return found == compnodes.end() ? nullptr : &*found;
}

absl::StatusOr<std::vector<graph::v1::StageProgram>> MakePrograms(const graph::v1::Graph& graph,
                                                                  const graph::v1::Plan& plan) {
  absl::StatusOr<std::vector<graph::v1::StageProgram>> programs =
      graph::Slice(graph, graph::PlacementOf(plan));
  if (!programs.ok()) return programs.status();
  if (absl::Status status = graph::SetCodecs(plan, *programs); !status.ok()) return status;
  return programs;
}

}  // namespace

std::string CheckpointFolder(const std::string& job_folder) { return job_folder + "/checkpoints"; }

std::string CheckpointFolder(const FusionJobSpec& spec, const std::string& base_directory,
                             const std::string& job_folder) {
  return spec.checkpoint().has_uri() ? LocalPath(spec.checkpoint().uri(), base_directory)
                                     : CheckpointFolder(job_folder);
}
std::string LinkStateFile(const std::string& job_folder) { return job_folder + "/links.state"; }
std::string TraceFile(const std::string& job_folder, int stage) {
  return absl::StrCat(job_folder, "/trace-stage-", stage, ".json");
}

int UsableCores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

double FitEmulation(int cores, double machine_flops, std::vector<Compnode>& compnodes) {
  const double limit = EmulationLimit(cores, machine_flops);
  const double sum = EmulatedFlops(compnodes);
  if (sum <= limit) return 1;
  const double exact = limit / sum;
  const double digit = std::pow(10, std::floor(std::log10(exact)) - 1);
  const double factor = std::floor(exact / digit) * digit;
  for (Compnode& compnode : compnodes) {
    if (!compnode.spec().emulation().has_flops()) continue;
    v1alpha1::Emulation& emulation = *compnode.mutable_spec()->mutable_emulation();
    emulation.set_flops(emulation.flops() * factor);
  }
  return factor;
}

absl::Status CheckEmulation(const std::vector<Compnode>& compnodes, int cores, double machine_flops) {
  const double sum = EmulatedFlops(compnodes);
  const double limit = EmulationLimit(cores, machine_flops);
  if (sum <= limit) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "the compnodes' emulation.flops sum up to %.3g FLOP/s, but this machine can imitate at "
      "most %.3g (%.1f x %d cores x %.3g FLOP/s of one thread); scale them by %.3g or less, or run "
      "with --fit-emulation, which does",
      sum, limit, kEmulationShare, cores, machine_flops, limit / sum));
}

void LocalPlanning::SetFiles(const ObjectKey& job, JobFiles files) {
  absl::MutexLock lock(&mutex_);
  files_[job] = std::move(files);
}

absl::StatusOr<JobFiles> LocalPlanning::FilesOf(const FusionJob& job) const {
  absl::MutexLock lock(&mutex_);
  const auto found = files_.find(KeyOfJob(job));
  if (found == files_.end()) {
    return absl::InternalError(
        absl::StrCat("job ", KeyOfJob(job).ToString(), " was not started by this run"));
  }
  return found->second;
}

absl::StatusOr<scheduler::MachineProfile> LocalPlanning::MeasuredProfile(const FusionJob& job,
                                                                         const graph::v1::Graph& graph) {
  absl::StatusOr<scheduler::MachineProfile> profile =
      profile_.Profile(graph, job.spec().training().batch().micro());
  if (profile.ok()) return profile;
  return absl::InternalError(absl::StrCat("cannot measure this machine: ", profile.status().message()));
}

absl::StatusOr<graph::v1::Plan> LocalPlanning::MakePlan(const FusionJob& job,
                                                        const std::vector<Compnode>& compnodes,
                                                        int64_t incarnation) {
  absl::StatusOr<JobFiles> files = FilesOf(job);
  if (!files.ok()) return files.status();
  absl::StatusOr<Model> model = ModelOf(job, files->base_directory);
  if (!model.ok()) return model.status();
  absl::StatusOr<scheduler::MachineProfile> profile = MeasuredProfile(job, model->graph);
  if (!profile.ok()) return profile.status();
  if (absl::Status status = CheckEmulation(compnodes, cores_, profile->flops); !status.ok()) return status;

  const scheduler::PlanRequest request{.job = job.metadata().name(),
                                       .spec = job.spec(),
                                       .graph = model->graph,
                                       .compnodes = compnodes,
                                       .machine = *profile,
                                       .incarnation = incarnation};
  absl::StatusOr<scheduler::PlanResult> result =
      files->replay ? scheduler::ReplayPlan(request, *files->replay) : scheduler::MakePlan(request);
  if (!result.ok()) return result.status();
  graph::v1::Plan plan = std::move(result->plan);
  plan.set_job(job.metadata().name());
  *plan.mutable_spec() = job.spec();
  plan.set_incarnation(incarnation);
  return plan;
}

absl::StatusOr<std::vector<wire::v1::Assignment>> LocalPlanning::MakeAssignments(
    const FusionJob& job, const std::vector<Compnode>& compnodes, const graph::v1::Plan& plan) {
  absl::StatusOr<JobFiles> files = FilesOf(job);
  if (!files.ok()) return files.status();
  absl::StatusOr<Model> model = ModelOf(job, files->base_directory);
  if (!model.ok()) return model.status();
  absl::StatusOr<std::vector<graph::v1::StageProgram>> programs = MakePrograms(model->graph, plan);
  if (!programs.ok()) return programs.status();
  absl::StatusOr<std::string> model_config = graph::ModelConfigJson(job.spec().model());
  if (!model_config.ok()) return model_config.status();
  absl::StatusOr<scheduler::MachineProfile> profile = MeasuredProfile(job, model->graph);
  if (!profile.ok()) return profile.status();
  absl::StatusOr<std::vector<std::vector<wire::v1::EmulatedLink>>> links =
      scheduler::EmulatedLinksOf(compnodes, plan);
  if (!links.ok()) return links.status();

  const std::vector<wire::v1::ModelVariable> variables = VariablesOf(model->graph);
  std::vector<wire::v1::Assignment> assignments;
  for (int stage = 0; stage < plan.stages_size(); ++stage) {
    const Compnode& compnode =
        *FindCompnode(compnodes, plan.stages(stage).compnode());  // as EmulatedLinksOf found
    wire::v1::Assignment& assignment = assignments.emplace_back();
    assignment.set_job(KeyOfJob(job).ToString());
    assignment.set_incarnation(plan.incarnation());
    *assignment.mutable_spec() = model->spec;
    *assignment.mutable_program() = std::move((*programs)[stage]);
    assignment.set_base_directory(files->base_directory);
    assignment.set_checkpoint_directory(CheckpointFolder(job.spec(), files->base_directory, files->folder));
    assignment.set_emulated_flops(compnode.spec().emulation().flops());
    assignment.set_machine_flops(profile->flops);
    assignment.mutable_links()->Assign((*links)[stage].begin(), (*links)[stage].end());
    if (assignment.links_size() > 0) assignment.set_link_state_file(LinkStateFile(files->folder));
    assignment.set_memory_limit_bytes(plan.stages(stage).memory_limit_bytes());
    assignment.set_stages(plan.stages_size());
    if (files->trace_step > 0) {
      assignment.set_trace_file(TraceFile(files->folder, stage));
      assignment.set_trace_step(files->trace_step);
    }
    *assignment.mutable_plan() = plan;
    (*assignment.mutable_model_config_json())["config.json"] = *model_config;
    assignment.set_threads(1);
    // A later incarnation took over from one that may have saved something.
    assignment.set_resume(files->resume || plan.incarnation() > 1);
    assignment.mutable_variables()->Assign(variables.begin(), variables.end());
  }
  return assignments;
}

}  // namespace fusion::op
