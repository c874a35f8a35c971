#include "graph/families.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "graph/bert.h"
#include "graph/gpt2.h"
#include "graph/graph_file.h"
#include "graph/mlp.h"
#include "graph/resnet.h"
#include "nlohmann/json.hpp"

namespace fusion::graph {
namespace {

absl::Status Unsupported(const v1alpha1::Model& model) {
  if (!model.has_family()) return absl::InvalidArgumentError("spec.model.family: required");
  return absl::UnimplementedError(
      absl::StrCat("spec.model.family: ", v1alpha1::Model::Family_Name(model.family()),
                   " is not supported yet; use gpt2, bert, mlp or resnet"));
}

absl::StatusOr<v1::Graph> OwnGraph(absl::string_view uri, const std::string& base_directory) {
  constexpr absl::string_view kField = "spec.model.graph.uri: ";
  if (!absl::ConsumePrefix(&uri, "file://") && absl::StrContains(uri, "://")) {
    return absl::InvalidArgumentError(
        absl::StrCat(kField, "\"", uri, "\" is not supported yet; give a file of this machine"));
  }
  const bool relative = !absl::StartsWith(uri, "/") && !base_directory.empty();
  absl::StatusOr<v1::Graph> graph = ReadGraph(absl::StrCat(relative ? base_directory + "/" : "", uri));
  if (graph.ok()) return graph;
  return absl::Status(graph.status().code(), absl::StrCat(kField, graph.status().message()));
}

}  // namespace

absl::StatusOr<v1::Graph> BuildModel(const v1alpha1::Model& model, const std::string& base_directory) {
  if (model.has_graph()) return OwnGraph(model.graph().uri(), base_directory);
  switch (model.family()) {
    case v1alpha1::Model::bert:
      return BuildBert(model);
    case v1alpha1::Model::gpt2:
      return BuildGpt2(model);
    case v1alpha1::Model::mlp:
      return BuildMlp(model);
    case v1alpha1::Model::resnet:
      return BuildResnet(model);
    default:
      return Unsupported(model);
  }
}

absl::StatusOr<std::string> ModelConfigJson(const v1alpha1::Model& model) {
  if (model.has_graph()) {
    const nlohmann::json config = {{"model_type", "fusion-graph"}, {"graph", model.graph().uri()}};
    return config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  switch (model.family()) {
    case v1alpha1::Model::bert:
      return BertConfigJson(model);
    case v1alpha1::Model::gpt2:
      return Gpt2ConfigJson(model);
    case v1alpha1::Model::mlp:
      return MlpConfigJson(model);
    case v1alpha1::Model::resnet:
      return ResnetConfigJson(model);
    default:
      return Unsupported(model);
  }
}

}  // namespace fusion::graph
