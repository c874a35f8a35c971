// The control plane inside one process, as `fusionctl run` uses it: the reconcilers, the planner and the
// broker of a cluster, over objects in files and workers that are child processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fusion/graph/v1/plan.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "nlohmann/json.hpp"
#include "operator/broker/step_record.h"
#include "operator/client.h"
#include "operator/controllers/planning.h"
#include "operator/launcher/launcher.h"

namespace fusion::op {

struct EmbeddedOptions {
  std::string workdir = "fusion-work";
  std::string worker_binary;         ///< path of fusion-worker
  std::string jax_worker_binary;     ///< of fusion-jax-worker; empty: no compnode has the engine jax
  ProfileSource* profile = nullptr;  ///< outlives the control plane
  bool overwrite = false;            ///< replace a job's folder that exists
  bool resume = false;               ///< keep it, and go on from its newest intact checkpoint
  int cores = 0;                     ///< for the bound on emulated speeds; 0: those of this process
  /// Program and arguments of a worker, given the broker's address; empty: the engine's worker with the
  /// arguments that broker.proto says.
  std::function<std::vector<std::string>(const WorkerSpec&, const std::string& broker)> worker_command;
};

/// One job to run.
struct EmbeddedJob {
  v1alpha1::FusionJob job;                ///< valid; namespace "default" where it has none
  std::string base_directory;             ///< of relative URIs: the folder of the job's file
  std::optional<graph::v1::Plan> replay;  ///< a plan to take instead of making one
  int64_t trace_step = 0;                 ///< step of which JOB/trace.json is written; 0: none
};

/// Called from threads of the control plane, one at a time; must not block for long.
struct JobCallbacks {
  std::function<void(const std::string& phase, const std::string& message)> on_phase;
  std::function<void(const graph::v1::Plan&)> on_plan;
  std::function<void(const StepRecord&)> on_step;
  /// For people, before the first step: what the run goes on from, what it skipped or left out, and why.
  std::function<void(const std::string& note)> on_note;
};

/// A job's end.
struct JobResult {
  std::string job;
  std::string phase;   ///< Succeeded | Failed
  std::string reason;  ///< one word, of the condition Complete or Failed: Infeasible, DataMissing,
                       ///< WorkerLost, Cancelled, …
  std::string message;
  int64_t step = 0;
  std::optional<double> loss;
  std::optional<double> validation_loss;
  std::optional<double> validation_accuracy;  ///< of a classification
  std::string checkpoint;                     ///< folder; empty: none
  std::string plan;                           ///< file; empty: none was made
  int64_t tasks = 0;                          ///< emulated, in the whole run
  int64_t overrun_tasks = 0;                  ///< of them, longer in fact than emulated
};

/// The object that `fusionctl run -o json` prints.
nlohmann::json ResultJson(const JobResult& result);

/// Folder in the workdir where objects are; see ReadStoredObjects.
std::string ObjectsFolder(const std::string& workdir);

/// WORKDIR/JOB/ gets plan.json, metrics.jsonl, checkpoints/ and logs/stage-N.log. Thread-safe.
class EmbeddedControlPlane {
 public:
  /// Starts with exactly these compnodes, in this order. FAILED_PRECONDITION: another run uses the workdir.
  static absl::StatusOr<std::unique_ptr<EmbeddedControlPlane>> Start(
      EmbeddedOptions options, const std::vector<v1alpha1::Compnode>& compnodes);
  /// Ends the job that runs, its workers, and the broker.
  virtual ~EmbeddedControlPlane() = default;

  virtual Client& client() = 0;

  /// Runs one job to its end; one at a time. A job that fails is a result; an error means that it did not
  /// begin: ALREADY_EXISTS, its folder is there and may be neither replaced nor gone on with.
  virtual absl::StatusOr<JobResult> Run(const EmbeddedJob& job, const JobCallbacks& callbacks) = 0;

  /// Makes the job that runs fail with reason Cancelled, and every later one at once. Returns at once; Run
  /// returns when no process is left, within seconds. Idempotent.
  virtual void Cancel() = 0;
};

}  // namespace fusion::op
