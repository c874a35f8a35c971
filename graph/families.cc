#include "graph/families.h"

#include "absl/strings/str_cat.h"
#include "graph/bert.h"
#include "graph/gpt2.h"
#include "graph/mlp.h"
#include "graph/resnet.h"

namespace fusion::graph {
namespace {

absl::Status Unsupported(const v1alpha1::Model& model) {
  if (!model.has_family()) return absl::InvalidArgumentError("spec.model.family: required");
  return absl::UnimplementedError(
      absl::StrCat("spec.model.family: ", v1alpha1::Model::Family_Name(model.family()),
                   " is not supported yet; use gpt2, bert, mlp or resnet"));
}

}  // namespace

absl::StatusOr<v1::Graph> BuildModel(const v1alpha1::Model& model) {
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
