#include "proto/manifests/resources.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace fusion::api {
namespace {

template <typename T>
std::string Comment(const T& descriptor) {
  google::protobuf::SourceLocation location;
  if (!descriptor.GetSourceLocation(&location)) return "";
  const std::string& text =
      location.leading_comments.empty() ? location.trailing_comments : location.leading_comments;
  std::vector<absl::string_view> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) lines.push_back(line);
  }
  return absl::StrJoin(lines, " ");
}

}  // namespace

const std::vector<ResourceDefinition>& ResourceDefinitions() {
  static const auto& definitions = *new std::vector<ResourceDefinition>{
      {"fusion.v1alpha1.FusionJob",
       "FusionJob",
       "fusionjobs",
       "fusionjob",
       "fj",
       true,
       {{"Phase", "string", ".status.phase"},
        {"Stages", "string", ".status.display.stagesReady"},
        {"Step", "integer", ".status.progress.step"},
        {"Loss", "string", ".status.display.loss"},
        {"Throughput", "string", ".status.display.throughput"},
        {"Clusters", "string", ".status.display.clusters"},
        {"Restarts", "integer", ".status.restarts"},
        {"Age", "date", ".metadata.creationTimestamp"}}},
      {"fusion.v1alpha1.Compnode",
       "Compnode",
       "compnodes",
       "compnode",
       "cn",
       false,
       {{"Cluster", "string", ".spec.cluster"},
        {"Class", "string", ".spec.class"},
        {"Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"},
        {"Age", "date", ".metadata.creationTimestamp"}}},
      {"fusion.v1alpha1.FusionCluster",
       "FusionCluster",
       "fusionclusters",
       "fusioncluster",
       "fc",
       false,
       {{"Connected", "string", ".status.conditions[?(@.type==\"Connected\")].status"},
        {"Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"},
        {"Age", "date", ".metadata.creationTimestamp"}}},
  };
  return definitions;
}

std::string CommentOf(const google::protobuf::FieldDescriptor& field) { return Comment(field); }
std::string CommentOf(const google::protobuf::Descriptor& message) { return Comment(message); }

}  // namespace fusion::api
