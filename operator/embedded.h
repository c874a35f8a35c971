// The control plane of `fusionctl run`: object store, reconcilers, broker and a launcher of child processes,
// all in this process.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fusion/graph/v1/plan.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "operator/broker/step_record.h"
#include "operator/client.h"
#include "scheduler/profile.h"

namespace fusion::op {

/// Where a working folder keeps its objects; operator/store/object_files.h reads them while a run goes on.
std::string ObjectsFolder(const std::string& workdir);

/// Where a job leaves plan.json, metrics.jsonl, logs and checkpoints: WORKDIR/JOB.
std::string JobFolder(const std::string& workdir, const std::string& job);

struct EmbeddedOptions {
  std::string workdir;         ///< made when it is missing
  std::string worker_program;  ///< path of fusion-worker
  /// After each step of a job (its metadata.name), from a thread of the control plane's; must not block.
  std::function<void(const std::string& job, const StepRecord& record)> on_step;
};

/// A job and what its object does not say.
struct EmbeddedJob {
  v1alpha1::FusionJob job;     ///< valid, with defaults
  std::string base_directory;  ///< of relative uris in its spec
  scheduler::MachineProfile machine;
  std::optional<graph::v1::Plan> plan;  ///< to replay; absent: one is made
  std::string trace_file;               ///< Chrome trace of one step; empty: none
  bool overwrite =
      false;  ///< what an earlier run of the same name left, its object included, is removed first
};

/// Thread-safe. The destructor stops what runs: no worker, port or partial file is left; objects keep their
/// last status.
class EmbeddedControlPlane {
 public:
  /// FAILED_PRECONDITION: another process uses the workdir.
  static absl::StatusOr<std::unique_ptr<EmbeddedControlPlane>> Start(
      EmbeddedOptions options, const std::vector<v1alpha1::Compnode>& compnodes);
  virtual ~EmbeddedControlPlane() = default;

  /// The objects; status is watched here.
  virtual Client& client() = 0;

  /// Creates the job's folder and object; its run starts. ALREADY_EXISTS: the folder is there and `overwrite`
  /// is not set.
  virtual absl::Status Submit(const EmbeddedJob& job) = 0;
};

}  // namespace fusion::op
