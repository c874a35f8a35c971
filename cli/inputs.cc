#include "cli/inputs.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/planning.h"
#include "graph/graph_file.h"
#include "graph/job_data.h"

namespace fusion::cli {
namespace {

using Job = api::Declared<v1alpha1::FusionJob>;

/// Empty when the path can be read, else why not.
std::string WhyUnreadable(const std::string& path, bool folder_allowed) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return folder_allowed ? "" : absl::StrCat(path, " is a folder; give a file");
  }
  errno = 0;
  const std::ifstream file(path, std::ios::binary);
  return file ? "" : absl::StrCat(path, " cannot be read: ", std::strerror(errno));
}

void CheckSource(const Job& job, const std::string& field, const std::string& uri, bool folder_allowed,
                 std::vector<api::ManifestError>* errors) {
  const std::string path = api::ResolveUri(job.file, uri);
  const std::string wrong =
      absl::StrContains(path, "://")
          ? absl::StrCat("\"", uri, "\" is not supported yet; give a file of this machine")
          : WhyUnreadable(path, folder_allowed);
  if (!wrong.empty()) errors->push_back(job.Error({field, wrong}));
}

/// The graph itself, that the job's data fits it, and that the values beside it are there.
void CheckGraph(const Job& job, std::vector<api::ManifestError>* errors) {
  constexpr absl::string_view kField = "spec.model.graph.uri";
  const std::string& uri = job.object.spec().model().graph().uri();
  if (uri.empty()) return;  // said already
  const auto add = [&](const absl::Status& status) {
    absl::string_view message = status.message();
    const size_t colon = message.find(": ");
    const bool path = absl::StartsWith(message, "spec.") && colon != absl::string_view::npos;
    errors->push_back(job.Error({std::string(path ? message.substr(0, colon) : kField),
                                 std::string(path ? message.substr(colon + 2) : message)}));
  };
  const auto graph = BuildModelOf(job);
  if (!graph.ok()) return add(graph.status());
  v1alpha1::FusionJobSpec spec = job.object.spec();
  if (const absl::Status status = graph::CompleteSpec(*graph, &spec); !status.ok()) add(status);
  if (graph::HasStoredValues(*graph) && !job.object.spec().model().has_init_from())
    CheckSource(job, std::string(kField), graph::StoredValuesUri(uri), false, errors);
}

void CheckJobFiles(const Job& job, std::vector<api::ManifestError>* errors) {
  const v1alpha1::FusionJobSpec& spec = job.object.spec();
  if (spec.data().has_uri()) CheckSource(job, "spec.data.uri", spec.data().uri(), false, errors);
  if (spec.data().tokenizer().has_uri()) {
    CheckSource(job, "spec.data.tokenizer.uri", spec.data().tokenizer().uri(), false, errors);
  }
  if (spec.model().has_graph()) CheckGraph(job, errors);
  if (spec.model().init_from().has_uri()) {
    CheckSource(job, "spec.model.initFrom.uri", spec.model().init_from().uri(), true, errors);
  }
  if (absl::StrContains(api::ResolveUri(job.file, spec.checkpoint().uri()), "://")) {
    errors->push_back(job.Error(
        {"spec.checkpoint.uri", absl::StrCat("\"", spec.checkpoint().uri(),
                                             "\" is not supported yet; give a folder of this machine")}));
  }
  if (spec.training().resume_from().has_uri()) {
    CheckSource(job, "spec.training.resumeFrom.uri", spec.training().resume_from().uri(), true, errors);
  }
}

}  // namespace

api::Manifest LoadInputs(const std::vector<std::string>& files, const InputNeeds& needs) {
  api::Manifest manifest = api::LoadManifest(files);
  if (needs.data) {
    for (const Job& job : manifest.jobs) CheckJobFiles(job, &manifest.errors);
  }
  if (!manifest.errors.empty()) return manifest;
  if (manifest.jobs.empty()) {
    manifest.errors.push_back({files.front(), 0, 0, "", "has no FusionJob; add one"});
  } else if (needs.compnodes && manifest.compnodes.empty()) {
    manifest.errors.push_back(
        {files.front(), 0, 0, "", "has no Compnode; add one, or a second file with -f"});
  }
  return manifest;
}

void PrintErrors(const std::vector<api::ManifestError>& errors, Console& console) {
  for (const api::ManifestError& error : errors) console.err << error.ToString() << "\n";
  console.Error(errors.size() == 1 ? "1 problem in the input"
                                   : absl::StrCat(errors.size(), " problems in the input"));
}

}  // namespace fusion::cli
