#include "operator/job_folder.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "operator/object.h"
#include "operator/store/object_files.h"
#include "proto/json_mapper.h"

namespace fusion::op {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

absl::Status FileError(absl::string_view what, const std::string& path, const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", error.message()));
}

std::vector<fs::path> EntriesOf(const std::string& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  return entries;
}

absl::Status RemoveAll(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? FileError("remove", path.string(), error) : absl::OkStatus();
}

// step-N folders, the newest first.
std::vector<std::pair<int64_t, fs::path>> CheckpointsIn(const std::string& folder) {
  std::vector<std::pair<int64_t, fs::path>> checkpoints;
  for (const fs::path& path : EntriesOf(folder)) {
    const std::string name = path.filename().string();
    int64_t step = 0;
    if (absl::StartsWith(name, "step-") && absl::SimpleAtoi(name.substr(5), &step))
      checkpoints.emplace_back(step, path);
  }
  std::sort(checkpoints.rbegin(), checkpoints.rend());
  return checkpoints;
}

absl::Status Rename(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  return error ? FileError("rename", from.string(), error) : absl::OkStatus();
}

constexpr char kReplaced[] = ".replaced";  // set aside, and comes back unless the new run begins
constexpr char kDropped[] = ".old";        // on its way out

// The hidden neighbour of a job's folder.
fs::path Beside(const std::string& folder, absl::string_view suffix) {
  const fs::path path(folder);
  return path.parent_path() / absl::StrCat(".", path.filename().string(), suffix);
}

// Checkpoints set aside, .step-N.replaced, and the names they had.
std::vector<std::pair<fs::path, fs::path>> ReplacedCheckpoints(const std::string& checkpoints) {
  std::vector<std::pair<fs::path, fs::path>> replaced;
  for (const fs::path& path : EntriesOf(checkpoints)) {
    const std::string name = path.filename().string();
    if (!absl::StartsWith(name, ".step-") || !absl::EndsWith(name, kReplaced)) continue;
    replaced.emplace_back(
        path, path.parent_path() / name.substr(1, name.size() - 1 - absl::string_view(kReplaced).size()));
  }
  return replaced;
}

absl::Status JoinTraces(const std::string& folder, int stages) {
  json events = json::array();
  for (int stage = 0; stage < stages; ++stage) {
    absl::StatusOr<std::string> text = ReadFile(TraceFile(folder, stage));
    if (!text.ok()) continue;  // none was asked for, or the stage ended before
    const json trace = json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!trace.is_object() || !trace.contains("traceEvents")) continue;
    for (const json& event : trace["traceEvents"]) events.push_back(event);
  }
  if (events.empty()) return absl::OkStatus();
  return WriteFileAtomically(folder + "/trace.json", json({{"traceEvents", events}}).dump());
}

}  // namespace

absl::Status MakeJobFolder(const std::string& folder, const std::string& checkpoints,
                           ExistingFolder existing) {
  std::error_code error;
  if (auto back = PutBackReplaced(folder, checkpoints); !back.ok()) return back.status();
  if (absl::Status status = RemoveAll(Beside(folder, kDropped)); !status.ok()) return status;
  const bool there = fs::exists(fs::symlink_status(folder, error));
  const std::vector<std::pair<int64_t, fs::path>> saved = CheckpointsIn(checkpoints);
  if (existing == ExistingFolder::kRefuse && (there || !saved.empty())) {
    return absl::AlreadyExistsError(
        there ? absl::StrCat(folder, " exists; use --resume, --overwrite, or another --workdir or name")
              : absl::StrCat("spec.checkpoint.uri: ", saved.front().second.string(),
                             " exists; use --resume, --overwrite, or another folder"));
  }
  if (existing == ExistingFolder::kOverwrite) {
    absl::Status status = there ? Rename(folder, Beside(folder, kReplaced)) : absl::OkStatus();
    for (const auto& [step, path] : CheckpointsIn(checkpoints)) {  // those elsewhere
      status.Update(
          Rename(path, path.parent_path() / absl::StrCat(".", path.filename().string(), kReplaced)));
    }
    if (!status.ok()) return status;
  }
  for (const std::string& path : {folder + "/logs", checkpoints}) {
    fs::create_directories(path, error);
    if (error) return FileError("make the folder", path, error);
  }
  return absl::OkStatus();
}

absl::Status DropReplaced(const std::string& folder, const std::string& checkpoints) {
  // Renamed first: what a kill leaves half removed must not come back.
  const fs::path dropped = Beside(folder, kDropped);
  absl::Status status;
  std::error_code error;
  if (fs::exists(fs::symlink_status(Beside(folder, kReplaced), error))) {
    status = Rename(Beside(folder, kReplaced), dropped);
    status.Update(RemoveAll(dropped));
  }
  for (const auto& [aside, path] : ReplacedCheckpoints(checkpoints)) {
    const fs::path partial =
        aside.parent_path() / absl::StrCat(".", path.filename().string(), ".old.partial");
    status.Update(Rename(aside, partial));
    status.Update(RemoveAll(partial));
  }
  return status;
}

absl::StatusOr<bool> PutBackReplaced(const std::string& folder, const std::string& checkpoints) {
  const fs::path aside = Beside(folder, kReplaced);
  const std::vector<std::pair<fs::path, fs::path>> saved = ReplacedCheckpoints(checkpoints);
  std::error_code error;
  const bool whole = fs::exists(fs::symlink_status(aside, error));
  absl::Status status;
  if (whole) {
    if (fs::exists(folder + "/logs", error)) {
      status.Update(RemoveAll(aside / "logs.failed"));
      status.Update(Rename(folder + "/logs", aside / "logs.failed"));
    }
    status.Update(RemoveAll(folder));
    if (status.ok()) status = Rename(aside, folder);
  }
  for (const auto& [from, to] : saved) status.Update(Rename(from, to));
  if (!status.ok()) return status;
  return whole || !saved.empty();
}

absl::Status TidyJobFolder(const std::string& folder, const std::string& checkpoints, int stages) {
  absl::Status status = JoinTraces(folder, stages);
  for (int stage = 0; stage < stages; ++stage) status.Update(RemoveAll(TraceFile(folder, stage)));
  for (const fs::path& path : EntriesOf(folder)) {
    const std::string name = path.filename().string();
    if (absl::StartsWith(path.string(), LinkStateFile(folder)) || absl::EndsWith(name, ".new")) {
      status.Update(RemoveAll(path));
    }
  }
  for (const fs::path& path : EntriesOf(checkpoints)) {
    const std::string name = path.filename().string();
    if (absl::StartsWith(name, ".step-") && absl::EndsWith(name, ".partial")) status.Update(RemoveAll(path));
  }
  return status;
}

absl::Status PruneCheckpoints(const std::string& checkpoints, int64_t keep) {
  const std::vector<std::pair<int64_t, fs::path>> saved = CheckpointsIn(checkpoints);
  absl::Status status;
  for (size_t i = static_cast<size_t>(std::max<int64_t>(1, keep)); i < saved.size(); ++i) {
    const fs::path& path = saved[i].second;
    const fs::path aside = path.parent_path() / absl::StrCat(".", path.filename().string(), ".old.partial");
    std::error_code error;
    fs::rename(path, aside, error);
    status.Update(error ? FileError("rename", path.string(), error) : RemoveAll(aside));
  }
  return status;
}

absl::Status MetricsFile::StartAfter(int64_t step) {
  file_.close();
  last_kept_ = nullptr;
  std::error_code error;
  std::string kept;
  if (fs::exists(path_, error)) {
    absl::StatusOr<std::string> text = ReadFile(path_);
    if (!text.ok()) return text.status();
    for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
      json value = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
      const int64_t of_step = IntAt(value, {"step"});
      if (of_step < 1 || of_step > step) continue;
      absl::StrAppend(&kept, line, "\n");
      last_kept_ = std::move(value);
    }
    if (absl::Status status = WriteFileAtomically(path_, kept); !status.ok()) return status;
  }
  file_.clear();
  file_.open(path_, std::ios::app);
  return absl::OkStatus();
}

absl::Status MetricsFile::Append(const StepRecord& record) {
  if (!file_.is_open()) file_.open(path_, std::ios::app);
  errno = 0;
  file_ << MetricsLine(record) << '\n' << std::flush;
  return file_ ? absl::OkStatus() : absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
}

void PlanFiles::SetFolder(const ObjectKey& job, const std::string& folder) {
  absl::MutexLock lock(&mutex_);
  folders_[job] = folder;
}

absl::Status PlanFiles::Save(const ObjectKey& job, const graph::v1::Plan& plan) {
  absl::MutexLock lock(&mutex_);
  const auto folder = folders_.find(job);
  if (folder == folders_.end())
    return absl::NotFoundError(absl::StrCat("job ", job.ToString(), " has no folder"));
  absl::Status status = WriteFileAtomically(FileIn(folder->second), api::ToJson(plan).dump(2) + "\n");
  if (!status.ok()) return status;
  plans_[job] = plan;
  return absl::OkStatus();
}

absl::StatusOr<graph::v1::Plan> PlanFiles::Load(const ObjectKey& job, int64_t incarnation) {
  absl::MutexLock lock(&mutex_);
  const auto plan = plans_.find(job);
  if (plan == plans_.end() || plan->second.incarnation() != incarnation) {
    return absl::NotFoundError(
        absl::StrCat("no plan of incarnation ", incarnation, " of job ", job.ToString()));
  }
  return plan->second;
}

}  // namespace fusion::op
