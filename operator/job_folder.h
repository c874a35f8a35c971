// The folder of one job's results: WORKDIR/JOB.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "nlohmann/json.hpp"
#include "operator/broker/step_record.h"
#include "operator/controllers/planning.h"

namespace fusion::op {

/// What becomes of a job's folder that is there already.
enum class ExistingFolder { kRefuse, kOverwrite, kKeep };

/// Makes the folder with logs/ in it, and the folder of its checkpoints, wherever that is. ALREADY_EXISTS
/// when it is there, or checkpoints are, and `existing` refuses it; kOverwrite sets it and the checkpoints
/// aside, and of a folder elsewhere nothing but them. What a killed run had set aside is put back first.
absl::Status MakeJobFolder(const std::string& folder, const std::string& checkpoints,
                           ExistingFolder existing);

/// The run that kOverwrite made room for has results of its own: what was set aside goes.
absl::Status DropReplaced(const std::string& folder, const std::string& checkpoints);

/// It never had any: what was set aside comes back, with the logs of the failed try as logs.failed/. False
/// where nothing was set aside.
absl::StatusOr<bool> PutBackReplaced(const std::string& folder, const std::string& checkpoints);

/// Removes what only a running job needs, and what an interrupted one left half done: link state, partial
/// checkpoints and traces, files aside. Joins the stages' traces into trace.json first.
absl::Status TidyJobFolder(const std::string& folder, const std::string& checkpoints, int stages);

/// Removes the oldest step-N beyond `keep`. Each goes out of the way whole before its files go.
absl::Status PruneCheckpoints(const std::string& checkpoints, int64_t keep);

/// metrics.jsonl: one line a step. Used by one thread.
class MetricsFile {
 public:
  explicit MetricsFile(std::string path) : path_(std::move(path)) {}

  /// A run begins after this step: lines of later steps and what is not a line are removed.
  absl::Status StartAfter(int64_t step);
  /// The line is in the file when this returns.
  absl::Status Append(const StepRecord& record);

  /// The last line that StartAfter kept; null: none.
  const nlohmann::json& last_kept() const { return last_kept_; }

 private:
  const std::string path_;
  std::ofstream file_;
  nlohmann::json last_kept_ = nullptr;
};

/// Plans in memory, the newest of each job also in its folder as plan.json.
class PlanFiles : public PlanArchive {
 public:
  void SetFolder(const ObjectKey& job, const std::string& folder);
  absl::Status Save(const ObjectKey& job, const graph::v1::Plan& plan) override;
  absl::StatusOr<graph::v1::Plan> Load(const ObjectKey& job, int64_t incarnation) override;

  static std::string FileIn(const std::string& folder) { return folder + "/plan.json"; }

 private:
  absl::Mutex mutex_;
  std::map<ObjectKey, std::string> folders_ ABSL_GUARDED_BY(mutex_);
  std::map<ObjectKey, graph::v1::Plan> plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fusion::op
