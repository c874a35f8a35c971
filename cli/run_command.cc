#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/child.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/plan_view.h"
#include "cli/planning.h"
#include "cli/profile_cache.h"
#include "cli/progress.h"
#include "cli/run_monitor.h"
#include "cli/run_view.h"
#include "nlohmann/json.hpp"
#include "operator/embedded.h"
#include "proto/engine.h"
#include "proto/json_mapper.h"

namespace fusion::cli {
namespace {

namespace fs = std::filesystem;

using Job = api::Declared<v1alpha1::FusionJob>;

/// The jobs of one `fusionctl run`, one after another.
class Run {
 public:
  Run(const Invocation& invocation, Console& console)
      : invocation_(invocation),
        console_(console),
        workdir_(invocation.Get("workdir", "fusion-work")),
        profiles_(workdir_, false, interrupt_, [] {}),
        view_(console) {}

  int Execute();

 private:
  /// What can be refused before anything starts or is written.
  absl::Status CheckBeforeStart();
  absl::Status Start();
  /// Those of the files; with --fit-emulation at speeds that fit this machine.
  absl::StatusOr<std::vector<v1alpha1::Compnode>> DeclaredCompnodes();
  /// One job to its end; the control plane works in a thread, this one shows it and waits for Ctrl-C.
  absl::StatusOr<op::JobResult> RunJob(const Job& job);
  absl::StatusOr<op::JobResult> Await(const Job& job, RunMonitor* monitor);

  const Invocation& invocation_;
  Console& console_;
  const std::string workdir_;
  const Interrupt interrupt_;
  ProfileCache profiles_;
  ProgressView view_;
  api::Manifest manifest_;
  std::optional<graph::v1::Plan> replay_;
  int64_t trace_step_ = 0;
  std::unique_ptr<op::EmbeddedControlPlane> plane_;
};

absl::Status Run::CheckBeforeStart() {
  if (invocation_.Has("resume") && invocation_.Has("overwrite")) {
    return absl::InvalidArgumentError(
        "--resume keeps what an earlier run left and --overwrite removes it; give one of them");
  }
  if (invocation_.Has("trace") &&
      (!absl::SimpleAtoi(invocation_.Get("trace", ""), &trace_step_) || trace_step_ < 1)) {
    return absl::InvalidArgumentError("--trace needs the number of a step, from 1");
  }
  if (invocation_.Has("plan")) {
    absl::StatusOr<graph::v1::Plan> plan = ReadPlan(invocation_.Get("plan", ""));
    if (!plan.ok()) return plan.status();
    if (manifest_.jobs.size() != 1 || manifest_.jobs[0].object.metadata().name() != plan->job()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--plan is of job \"", plan->job(), "\"; give the file of this job alone"));
    }
    replay_ = *std::move(plan);
  }
  for (const Job& job : manifest_.jobs) {
    const fs::path folder = fs::path(workdir_) / job.object.metadata().name();
    std::error_code ignored;
    if (fs::exists(folder, ignored) && !invocation_.Has("overwrite") && !invocation_.Has("resume")) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder.string(), " is there already; go on with --resume, or remove it with --overwrite"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1alpha1::Compnode>> Run::DeclaredCompnodes() {
  if (!invocation_.Has("fit-emulation")) return Compnodes(manifest_);
  double slowest = std::numeric_limits<double>::infinity();  // a job's own profile has its own measurement
  for (const Job& job : manifest_.jobs) {
    absl::StatusOr<graph::v1::Graph> graph = JobGraph(job);
    if (!graph.ok()) return graph.status();
    absl::StatusOr<scheduler::MachineProfile> machine =
        profiles_.Profile(*graph, job.object.spec().training().batch().micro());
    if (!machine.ok()) return machine.status();
    slowest = std::min(slowest, machine->flops);
  }
  return FittingCompnodes(manifest_, slowest, console_);
}

absl::Status Run::Start() {
  absl::StatusOr<std::string> worker = WorkerProgram();
  if (!worker.ok()) return worker.status();
  op::EmbeddedOptions options;
  options.workdir = workdir_;
  options.worker_binary = *std::move(worker);
  const absl::StatusOr<std::vector<v1alpha1::Compnode>> declared = DeclaredCompnodes();
  if (!declared.ok()) return declared.status();
  const std::vector<v1alpha1::Compnode>& compnodes = *declared;
  if (std::any_of(compnodes.begin(), compnodes.end(), [](const v1alpha1::Compnode& compnode) {
        return api::EngineOf(compnode) == api::kJaxEngine;
      })) {
    absl::StatusOr<std::string> jax_worker = JaxWorkerProgram();
    if (!jax_worker.ok()) return jax_worker.status();
    options.jax_worker_binary = *std::move(jax_worker);
  }
  options.profile = &profiles_;
  options.overwrite = invocation_.Has("overwrite");
  options.resume = invocation_.Has("resume");
  auto plane = op::EmbeddedControlPlane::Start(std::move(options), compnodes);
  if (!plane.ok()) return plane.status();
  plane_ = *std::move(plane);
  return absl::OkStatus();
}

absl::StatusOr<op::JobResult> Run::RunJob(const Job& job) {
  op::EmbeddedJob input;
  input.job = job.object;
  input.base_directory =
      job.file == "-" ? fs::current_path().string() : fs::absolute(job.file).parent_path().string();
  input.replay = replay_;
  input.trace_step = trace_step_;
  RunMonitor monitor;
  std::thread runner([&] { monitor.SetResult(plane_->Run(input, monitor.Callbacks())); });
  absl::StatusOr<op::JobResult> result = Await(job, &monitor);
  runner.join();
  view_.Clear();
  if (!result.ok()) return result;
  if (invocation_.Has("output")) {
    console_.out << op::ResultJson(*result).dump() << std::endl;
  } else {
    console_.out << RunSummary(*result, monitor.State(), ValidationLossBound(job.object)) << std::flush;
  }
  return result;
}

absl::StatusOr<op::JobResult> Run::Await(const Job& job, RunMonitor* monitor) {
  constexpr int kRefreshMilliseconds = 1000;
  bool plan_shown = false;
  size_t notes_shown = 0;
  while (true) {
    const JobState state = monitor->State();
    if (state.plan.has_value() && !plan_shown) {
      view_.Clear();
      console_.err << PlanText(*state.plan, false) << std::endl;
      plan_shown = true;
    }
    for (; notes_shown < state.notes.size(); ++notes_shown) {
      view_.Clear();
      console_.Note(absl::StrCat(job.object.metadata().name(), ": ", state.notes[notes_shown]));
    }
    if (auto result = monitor->Result(); result.has_value()) return *std::move(result);
    if (interrupt_.raised()) {
      plane_->Cancel();
      view_.Clear();
      console_.Note("interrupted: stopping the workers …");
      // The runner is joined by the caller; its result says Cancelled.
      return absl::CancelledError("interrupted");
    }
    view_.Show(ProgressOf(job.object.metadata().name(), job.object.spec().training().steps(), state),
               absl::Now());
    pollfd wait[2] = {{monitor->descriptor(), POLLIN, 0}, {interrupt_.descriptor(), POLLIN, 0}};
    poll(wait, 2, kRefreshMilliseconds);
  }
}

int Run::Execute() {
  manifest_ = LoadInputs(invocation_.All("filename"), {});
  if (!manifest_.errors.empty()) {
    PrintErrors(manifest_.errors, console_);
    return kInvalid;
  }
  absl::Status status = CheckBeforeStart();
  if (status.ok()) status = Start();
  int exit_code = kSuccess;
  for (const Job& job : manifest_.jobs) {
    if (!status.ok()) break;
    const absl::StatusOr<op::JobResult> result = RunJob(job);
    status = result.status();
    if (result.ok() && result->phase != "Succeeded") exit_code = kFailed;
  }
  plane_.reset();
  return status.ok() ? exit_code : Fail(status, console_);
}

}  // namespace

int RunCommand(const Invocation& invocation, Console& console) { return Run(invocation, console).Execute(); }

}  // namespace fusion::cli
