#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/engine/engine.h"

namespace fusion::worker {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Candidates(const std::string& file) {
  std::vector<std::string> candidates;
  if (const char* folder = std::getenv(kEnginePathVariable); folder != nullptr && *folder != '\0') {
    candidates.push_back((fs::path(folder) / file).string());
    return candidates;
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    candidates.push_back((program.parent_path().parent_path() / "lib" / file).string());
    candidates.push_back((program.parent_path() / file).string());
  }
  return candidates;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> LoadEngine(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("engine '", name, "': the name of an engine has no '/'"));
  }
  const std::string file = absl::StrCat("libfusion_engine_", name, ".so");
  const std::vector<std::string> candidates = Candidates(file);
  for (const std::string& path : candidates) {
    if (access(path.c_str(), R_OK) != 0) {
      continue;
    }
    // Never closed: a framework's threads and destructors do not survive that.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      return absl::InternalError(absl::StrCat("engine '", name, "': cannot load ", path, ": ", dlerror()));
    }
    auto* create = reinterpret_cast<Engine* (*)()>(dlsym(library, kCreateEngineSymbol));
    if (create == nullptr) {
      return absl::InternalError(
          absl::StrCat("engine '", name, "': ", path, " does not export ", kCreateEngineSymbol));
    }
    std::unique_ptr<Engine> engine(create());
    if (engine == nullptr) {
      return absl::InternalError(absl::StrCat("engine '", name, "': ", path, " made no engine"));
    }
    return engine;
  }
  return absl::NotFoundError(
      absl::StrCat("engine '", name, "' is not installed; tried ", absl::StrJoin(candidates, ", "),
                   ". Build it with -DFUSION_TORCH=ON, or set ", kEnginePathVariable, " to its folder"));
}

}  // namespace fusion::worker
