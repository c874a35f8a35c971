// From a job and compnodes to a plan, and from a plan to what each worker is told.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/graph/v1/plan.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "fusion/wire/v1/broker.pb.h"
#include "operator/client.h"
#include "scheduler/profile.h"

namespace fusion::op {

/// What the machine that runs emulated compnodes can do. Thread-safe.
class ProfileSource {
 public:
  virtual ~ProfileSource() = default;
  /// The profile, with the operators of `graph` measured for micro-batches of `samples`, where the source
  /// measures them. May take seconds.
  virtual absl::StatusOr<scheduler::MachineProfile> Profile(const graph::v1::Graph& graph,
                                                            int64_t samples) = 0;
};

/// Thread-safe.
class Planning {
 public:
  virtual ~Planning() = default;

  /// NOT_FOUND: data that the job reads is missing. INVALID_ARGUMENT: the job contradicts itself.
  /// FAILED_PRECONDITION and RESOURCE_EXHAUSTED: no plan fits, and why, for each compnode. UNAVAILABLE: may
  /// pass.
  virtual absl::StatusOr<graph::v1::Plan> MakePlan(const v1alpha1::FusionJob& job,
                                                   const std::vector<v1alpha1::Compnode>& compnodes,
                                                   int64_t incarnation) = 0;

  /// By stage. A pure function of its arguments but for the machine's profile.
  virtual absl::StatusOr<std::vector<wire::v1::Assignment>> MakeAssignments(
      const v1alpha1::FusionJob& job, const std::vector<v1alpha1::Compnode>& compnodes,
      const graph::v1::Plan& plan) = 0;
};

/// Keeps whole plans; the status has a summary. Thread-safe.
class PlanArchive {
 public:
  virtual ~PlanArchive() = default;
  virtual absl::Status Save(const ObjectKey& job, const graph::v1::Plan& plan) = 0;
  /// NOT_FOUND: none of this incarnation.
  virtual absl::StatusOr<graph::v1::Plan> Load(const ObjectKey& job, int64_t incarnation) = 0;
};

/// Where a job's files are on this machine.
struct JobFiles {
  std::string base_directory;             ///< of relative URIs in the job
  std::string folder;                     ///< of its results
  std::optional<graph::v1::Plan> replay;  ///< a plan to take instead of making one
  int64_t trace_step = 0;                 ///< step whose Chrome trace is written; 0: none
  bool resume = false;                    ///< go on from the newest intact checkpoint in the folder
};

/// Planning by the scheduler for workers on this machine.
class LocalPlanning : public Planning {
 public:
  /// `cores` bounds the emulated speeds. `profile` outlives this.
  LocalPlanning(ProfileSource& profile, int cores) : profile_(profile), cores_(cores) {}

  /// REQUIRES: called before the job is planned.
  void SetFiles(const ObjectKey& job, JobFiles files);

  absl::StatusOr<graph::v1::Plan> MakePlan(const v1alpha1::FusionJob& job,
                                           const std::vector<v1alpha1::Compnode>& compnodes,
                                           int64_t incarnation) override;
  absl::StatusOr<std::vector<wire::v1::Assignment>> MakeAssignments(
      const v1alpha1::FusionJob& job, const std::vector<v1alpha1::Compnode>& compnodes,
      const graph::v1::Plan& plan) override;

 private:
  absl::StatusOr<JobFiles> FilesOf(const v1alpha1::FusionJob& job) const;
  absl::StatusOr<scheduler::MachineProfile> MeasuredProfile(const v1alpha1::FusionJob& job,
                                                            const graph::v1::Graph& graph);

  ProfileSource& profile_;
  const int cores_;
  mutable absl::Mutex mutex_;
  std::map<ObjectKey, JobFiles> files_ ABSL_GUARDED_BY(mutex_);
};

/// Cores that this process may use.
int UsableCores();

/// Scales the emulated speeds by one factor, rounded down to two digits, so that this machine can imitate
/// them all: see CheckEmulation. Returns the factor; 1 where they fit as they are.
double FitEmulation(int cores, double machine_flops, std::vector<v1alpha1::Compnode>& compnodes);

/// Refuses emulated speeds whose sum this machine cannot imitate: more than 0.6 x cores x flops of one
/// thread.
absl::Status CheckEmulation(const std::vector<v1alpha1::Compnode>& compnodes, int cores,
                            double machine_flops);

/// Names in WORKDIR/JOB.
std::string CheckpointFolder(const std::string& job_folder);
/// checkpoint.uri where the job has one, else the one in its folder.
std::string CheckpointFolder(const v1alpha1::FusionJobSpec& spec, const std::string& base_directory,
                             const std::string& job_folder);
std::string LinkStateFile(const std::string& job_folder);
std::string TraceFile(const std::string& job_folder, int stage);

}  // namespace fusion::op
