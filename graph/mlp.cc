#include "graph/mlp.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/builder.h"
#include "graph/model_config.h"

namespace fusion::graph {
namespace {

constexpr int64_t kMaxColumns = 10'000'000;
constexpr int64_t kMaxHidden = 1'048'576;

absl::Status CheckModel(const v1alpha1::Model& model) {
  if (auto status = CheckFields(model, {"inputs", "outputs"}, {"hidden", "activation"}); !status.ok())
    return status;
  const v1alpha1::ModelConfig& config = model.config();
  absl::Status status = CheckRange("spec.model.config.inputs", config.inputs(), 1, kMaxColumns);
  status.Update(CheckRange("spec.model.config.outputs", config.outputs(), 1, kMaxColumns));
  for (int i = 0; i < config.hidden_size(); ++i) {
    status.Update(
        CheckRange(absl::StrCat("spec.model.config.hidden[", i, "]"), config.hidden(i), 1, kMaxHidden));
  }
  if (model.loss().type() == v1alpha1::Loss::InfoNCE) {
    status.Update(absl::InvalidArgumentError(
        "spec.model.loss.type: family mlp has MeanSquaredError and CrossEntropy, not InfoNCE"));
  }
  return status;
}

v1::ValueRef Linear(GraphBuilder& graph, const std::string& name, const v1::ValueRef& x, int64_t in,
                    int64_t out) {
  const double bound = 1 / std::sqrt(static_cast<double>(in));  // torch.nn.Linear.reset_parameters
  const v1::ValueRef weight = graph.Variable(name + ".weight", {out, in}, Uniform(-bound, bound));
  const v1::ValueRef bias = graph.Variable(name + ".bias", {out}, Uniform(-bound, bound));
  return graph.Add(name, "aten.linear", {Read(x), Read(weight), Read(bias)});
}

absl::string_view ActivationType(v1alpha1::ModelConfig::Activation activation) {
  switch (activation) {
    case v1alpha1::ModelConfig::gelu:
      return "aten.gelu";
    case v1alpha1::ModelConfig::tanh:
      return "aten.tanh";
    default:
      return "aten.relu";
  }
}

}  // namespace

absl::StatusOr<v1::Graph> BuildMlp(const v1alpha1::Model& model) {
  if (auto status = CheckModel(model); !status.ok()) return status;
  const v1alpha1::ModelConfig& config = model.config();
  std::vector<int64_t> widths(config.hidden().begin(), config.hidden().end());
  widths.push_back(config.outputs());

  GraphBuilder graph("mlp");
  v1::ValueRef x = graph.Placeholder("input", v1::FLOAT32, {Batch(), config.inputs()});
  int64_t in = config.inputs();
  int module = 0;
  for (const int64_t out : widths) {
    if (module > 0) {
      x = graph.Add(absl::StrCat("layers.", module++), ActivationType(config.activation()), {Read(x)});
    }
    x = Linear(graph, absl::StrCat("layers.", module++), x, in, out);
    in = out;
  }
  if (model.loss().type() == v1alpha1::Loss::CrossEntropy) {
    const v1::ValueRef label = graph.Placeholder("label", v1::INT64, {Batch()});
    return graph.Finish(graph.Add("loss", "aten.cross_entropy_loss", {Read(x), Read(label)}));
  }
  const v1::ValueRef label = graph.Placeholder("label", v1::FLOAT32, {Batch(), config.outputs()});
  return graph.Finish(graph.Add("loss", "aten.mse_loss", {Read(x), Read(label)}));
}

absl::StatusOr<std::string> MlpConfigJson(const v1alpha1::Model& model) {
  if (auto status = CheckModel(model); !status.ok()) return status;
  const v1alpha1::ModelConfig& config = model.config();
  const auto activation = config.has_activation() ? config.activation() : v1alpha1::ModelConfig::relu;
  return absl::StrCat("{\n  \"model_type\": \"mlp\",\n  \"inputs\": ", config.inputs(), ",\n  \"hidden\": [",
                      absl::StrJoin(config.hidden(), ", "), "],\n  \"outputs\": ", config.outputs(),
                      ",\n  \"activation\": \"", v1alpha1::ModelConfig::Activation_Name(activation),
                      "\"\n}\n");
}

}  // namespace fusion::graph
