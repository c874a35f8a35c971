#include "cli/profile_cache.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/child.h"
#include "nlohmann/json.hpp"
#include "operator/store/object_files.h"

namespace fusion::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kMeasurementLimit = absl::Minutes(5);

/// FNV-1a, the same in every process.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ULL;
  return hash;
}

std::string ReadText(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What a measurement depends on beside the graph: the processor.
std::string Machine() {
  for (absl::string_view line : absl::StrSplit(ReadText("/proc/cpuinfo"), '\n')) {
    if (line.substr(0, 10) == "model name") return std::string(line);
  }
  return "unknown";
}

/// A folder that is gone at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (fs::temp_directory_path() / "fusion-profile-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

absl::StatusOr<std::string> ProfileCache::Measure(const std::string& graph_bytes, int64_t samples) const {
  absl::StatusOr<std::string> worker = WorkerProgram();
  if (!worker.ok()) return worker.status();
  std::vector<std::string> arguments = {*worker, "profile", "-o", "json"};
  const ScratchFolder scratch;
  if (!graph_bytes.empty()) {
    const std::string file = (scratch.path() / "graph.pb").string();
    if (!(std::ofstream(file, std::ios::binary) << graph_bytes).flush()) {
      return absl::UnavailableError(absl::StrCat(file, " cannot be written"));
    }
    arguments.insert(arguments.end(), {"--graph", file, "--samples", absl::StrCat(samples)});
  }
  return CaptureOutput(arguments, kMeasurementLimit, interrupt_);
}

absl::StatusOr<scheduler::MachineProfile> ProfileCache::Load(const graph::v1::Graph* graph, int64_t samples) {
  const std::string graph_bytes = graph == nullptr ? "" : graph->SerializeAsString();
  const std::string key = absl::StrCat(Machine(), "\n", samples, "\n", graph_bytes);
  const fs::path path = fs::path(workdir_) / "profiles" / absl::StrFormat("%016x.json", Hash(key));
  if (!refresh_) {
    absl::StatusOr<scheduler::MachineProfile> kept = scheduler::ParseProfile(ReadText(path));
    if (kept.ok()) return kept;
  }
  on_measure_();
  const absl::StatusOr<std::string> text = Measure(graph_bytes, samples);
  if (!text.ok()) return text.status();
  absl::StatusOr<scheduler::MachineProfile> profile = scheduler::ParseProfile(*text);
  if (!profile.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("what fusion-worker prints is no profile: ", profile.status().message()));
  }
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return absl::UnavailableError(absl::StrCat(path.parent_path().string(), ": ", error.message()));
  const absl::Status written = op::WriteFileAtomically(path.string(), scheduler::ProfileJson(*profile));
  if (!written.ok()) return written;
  return profile;
}

}  // namespace fusion::cli
