#include "cli/planning.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/exit_code.h"
#include "graph/autocast.h"
#include "graph/families.h"
#include "nlohmann/json.hpp"
#include "operator/controllers/planning.h"
#include "proto/json_mapper.h"

namespace fusion::cli {

absl::StatusOr<graph::v1::Graph> BuildModelOf(const api::Declared<v1alpha1::FusionJob>& job) {
  return graph::BuildModel(job.object.spec().model(), std::filesystem::path(job.file).parent_path().string());
}

absl::StatusOr<graph::v1::Graph> JobGraph(const api::Declared<v1alpha1::FusionJob>& job) {
  absl::StatusOr<graph::v1::Graph> graph = BuildModelOf(job);
  if (graph.ok()) graph = graph::ApplyPrecision(*std::move(graph), job.object.spec().training());
  if (graph.ok()) return graph;
  return absl::Status(graph.status().code(),
                      absl::StrCat(job.file, ":", job.document.index, ":", job.document.LineOf("spec.model"),
                                   ": ", graph.status().message()));
}

absl::StatusOr<graph::v1::Plan> ReadPlan(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(path, " is not JSON"));
  graph::v1::Plan plan;
  const absl::Status status = api::FromJson(value, api::Mode::kStrict, &plan);
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  return plan;
}

std::vector<v1alpha1::Compnode> Compnodes(const api::Manifest& manifest) {
  std::vector<v1alpha1::Compnode> compnodes;
  compnodes.reserve(manifest.compnodes.size());
  for (const auto& compnode : manifest.compnodes) compnodes.push_back(compnode.object);
  return compnodes;
}

std::vector<v1alpha1::Compnode> FittingCompnodes(const api::Manifest& manifest, double machine_flops,
                                                 Console& console) {
  std::vector<v1alpha1::Compnode> compnodes = Compnodes(manifest);
  const double factor = op::FitEmulation(op::UsableCores(), machine_flops, compnodes);
  if (factor < 1) {
    console.Note(absl::StrFormat(
        "the compnodes' emulation.flops are scaled by %.2g, so that this machine can imitate them", factor));
  }
  return compnodes;
}

int Fail(const absl::Status& status, Console& console) {
  if (absl::IsCancelled(status)) return kInterrupted;
  console.Error(std::string(status.message()));
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? kInvalid : kFailed;
}

}  // namespace fusion::cli
