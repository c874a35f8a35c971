#include "graph/job_data.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/graph_file.h"
#include "graph/graph_index.h"
#include "graph/shapes.h"

namespace fusion::graph {
namespace {

using v1alpha1::Data;
using v1alpha1::Loss;
using v1alpha1::ModelConfig;

constexpr int64_t kMaxClasses = 10'000'000;
constexpr int64_t kBytesVocabulary = 256;

const v1::TensorSpec* SpecOf(const v1::Graph& graph, const GraphIndex& index, absl::string_view name) {
  const int position = index.Find(name);
  return position < 0 ? nullptr : &graph.operators(position).outputs(0);
}

/// float32[batch, 4] and the like: `rank` dimensions, of which all but the first are constants.
bool Is(const v1::TensorSpec* spec, v1::DataType dtype, int rank) {
  if (spec == nullptr || spec->dtype() != dtype || spec->shape_size() != rank) return false;
  for (int i = 1; i < rank; ++i) {
    if (spec->shape(i) < 0) return false;
  }
  return true;
}

absl::Status Misfit(absl::string_view kind, absl::string_view feeds, absl::string_view name,
                    const v1::TensorSpec* spec) {
  return absl::InvalidArgumentError(absl::StrCat("spec.data.kind: ", kind, " feeds ", feeds,
                                                 "; the graph's '", name, "' is ",
                                                 spec == nullptr ? "not there" : SpecText(*spec)));
}

/// The classes that the loss tells apart: of the first cross-entropy that reads `label`, else unknown.
int64_t ClassesOf(const v1::Graph& graph, const GraphIndex& index) {
  for (const v1::Operator& op : graph.operators()) {
    const bool entropy = absl::StartsWith(op.type(), "aten.cross_entropy") || op.type() == "aten.nll_loss";
    if (!entropy || op.args_size() < 2 || op.args(1).value().operator_() != "label" ||
        !op.args(0).has_value()) {
      continue;
    }
    const v1::ValueRef& scores = op.args(0).value();
    const v1::TensorSpec& spec = index.At(index.Find(scores.operator_())).outputs(scores.index());
    if (spec.shape_size() >= 2 && spec.shape(1) > 0) return spec.shape(1);
  }
  return kMaxClasses;
}

/// Rows of the smallest table that a placeholder's ids are looked up in, directly or in another shape; 0:
/// none.
int64_t VocabularyOf(const v1::Graph& graph, const GraphIndex& index, absl::string_view placeholder) {
  constexpr std::array<absl::string_view, 6> kReshaping = {"aten.view",       "aten.reshape", "aten.flatten",
                                                           "aten.contiguous", "aten.clone",   "aten.to"};
  absl::flat_hash_set<std::string> ids = {std::string(placeholder)};
  const auto reads = [&ids](const v1::Operator& op, int argument) {
    return op.args_size() > argument && op.args(argument).has_value() &&
           ids.contains(op.args(argument).value().operator_());
  };
  int64_t vocabulary = 0;
  for (const v1::Operator& op : graph.operators()) {
    if (absl::c_linear_search(kReshaping, op.type()) && reads(op, 0)) ids.insert(op.name());
    if (op.type() != "aten.embedding" || !reads(op, 1) || !op.args(0).has_value()) continue;
    const v1::ValueRef& table = op.args(0).value();
    const v1::TensorSpec& spec = index.At(index.Find(table.operator_())).outputs(table.index());
    if (spec.shape_size() == 2 && spec.shape(0) > 0 && (vocabulary == 0 || spec.shape(0) < vocabulary)) {
      vocabulary = spec.shape(0);
    }
  }
  return vocabulary;
}

absl::Status SizeText(const v1::TensorSpec* input, const v1::TensorSpec* label, ModelConfig* config) {
  constexpr absl::string_view kFeeds = "input and label int64[batch, tokens], the label one byte on";
  if (!Is(input, v1::INT64, 2)) return Misfit("text", kFeeds, "input", input);
  if (label != nullptr && (!Is(label, v1::INT64, 2) || label->shape(1) != input->shape(1)))
    return Misfit("text", kFeeds, "label", label);
  config->set_context(input->shape(1));
  config->set_vocabulary(kBytesVocabulary);
  return absl::OkStatus();
}

absl::Status SizeTable(const v1::TensorSpec* input, const v1::TensorSpec* label, int64_t classes,
                       v1alpha1::Model* model) {
  constexpr absl::string_view kFeeds =
      "input float32[batch, columns] and label float32[batch, targets] or int64[batch] of classes";
  if (!Is(input, v1::FLOAT32, 2)) return Misfit("table", kFeeds, "input", input);
  model->mutable_config()->set_inputs(input->shape(1));
  if (Is(label, v1::INT64, 1)) {
    model->mutable_loss()->set_type(Loss::CrossEntropy);
    model->mutable_config()->set_outputs(classes);
    return absl::OkStatus();
  }
  if (!Is(label, v1::FLOAT32, 2)) return Misfit("table", kFeeds, "label", label);
  model->mutable_loss()->set_type(Loss::MeanSquaredError);
  model->mutable_config()->set_outputs(label->shape(1));
  return absl::OkStatus();
}

absl::Status SizeImages(const v1::TensorSpec* input, const v1::TensorSpec* label, int64_t classes,
                        v1alpha1::Model* model) {
  constexpr absl::string_view kFeeds =
      "input float32[batch, channels, side, side] and label int64[batch] of classes";
  if (!Is(input, v1::FLOAT32, 4) || input->shape(2) != input->shape(3))
    return Misfit("images", kFeeds, "input", input);
  if (!Is(label, v1::INT64, 1)) return Misfit("images", kFeeds, "label", label);
  model->mutable_loss()->set_type(Loss::CrossEntropy);
  model->mutable_config()->set_channels(input->shape(1));
  model->mutable_config()->set_image_size(input->shape(2));
  model->mutable_config()->set_classes(classes);
  return absl::OkStatus();
}

absl::Status SizePairs(const v1::Graph& graph, const GraphIndex& index, bool tokenizer, ModelConfig* config) {
  constexpr absl::string_view kFeeds = "input and label int64[batch, tokens], the two texts of each pair";
  const v1::TensorSpec* input = SpecOf(graph, index, "input");
  const v1::TensorSpec* label = SpecOf(graph, index, "label");
  if (!Is(input, v1::INT64, 2)) return Misfit("textPairs", kFeeds, "input", input);
  if (!Is(label, v1::INT64, 2) || label->shape(1) != input->shape(1))
    return Misfit("textPairs", kFeeds, "label", label);
  config->set_context(input->shape(1));
  config->set_towers(2);
  int64_t vocabulary = tokenizer ? kMaxClasses : kBytesVocabulary;
  for (const char* text : {"input", "label"}) {
    if (const int64_t rows = VocabularyOf(graph, index, text); rows > 0)
      vocabulary = std::min(vocabulary, rows);
  }
  config->set_vocabulary(vocabulary);
  return absl::OkStatus();
}

/// What is made follows from the placeholders: tokens, pairs of texts where the label's tokens are looked up
/// too, images, or columns.
absl::Status SizeSynthetic(const v1::Graph& graph, const GraphIndex& index, v1alpha1::Model* model) {
  const v1::TensorSpec* input = SpecOf(graph, index, "input");
  const v1::TensorSpec* label = SpecOf(graph, index, "label");
  if (Is(input, v1::INT64, 2)) {
    const int64_t rows = VocabularyOf(graph, index, "input");
    if (rows == 0) {
      return absl::InvalidArgumentError(
          "spec.data.kind: synthetic text needs to know how many tokens there are; the graph has no "
          "aten.embedding that looks up 'input'");
    }
    const absl::Status sized = VocabularyOf(graph, index, "label") > 0
                                   ? SizePairs(graph, index, /*tokenizer=*/true, model->mutable_config())
                                   : SizeText(input, label, model->mutable_config());
    if (!sized.ok()) return sized;
    if (model->config().towers() != 2) model->mutable_config()->set_vocabulary(rows);
    return absl::OkStatus();
  }
  const int64_t classes = ClassesOf(graph, index);
  if (Is(label, v1::INT64, 1) && classes == kMaxClasses) {
    return absl::InvalidArgumentError(
        "spec.data.kind: synthetic classes need to know how many there are; the graph has no cross-entropy "
        "that reads 'label'");
  }
  return Is(input, v1::FLOAT32, 4) ? SizeImages(input, label, classes, model)
                                   : SizeTable(input, label, classes, model);
}

}  // namespace

absl::Status CompleteSpec(const v1::Graph& graph, v1alpha1::FusionJobSpec* spec) {
  v1alpha1::Model* model = spec->mutable_model();
  if (!model->has_graph()) return absl::OkStatus();
  if (HasStoredValues(graph) && !model->has_init_from())
    model->mutable_init_from()->set_uri(StoredValuesUri(model->graph().uri()));
  const GraphIndex index(graph);
  const v1::TensorSpec* input = SpecOf(graph, index, "input");
  const v1::TensorSpec* label = SpecOf(graph, index, "label");
  switch (spec->data().kind()) {
    case Data::text:
      return SizeText(input, label, model->mutable_config());
    case Data::table:
      return SizeTable(input, label, ClassesOf(graph, index), model);
    case Data::images:
      return SizeImages(input, label, ClassesOf(graph, index), model);
    case Data::textPairs:
      return SizePairs(graph, index, spec->data().has_tokenizer(), model->mutable_config());
    case Data::synthetic:
      return SizeSynthetic(graph, index, model);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "spec.data.kind: a graph of one's own reads text, textPairs, table, images or synthetic, not ",
          Data::Kind_Name(spec->data().kind())));
  }
}

}  // namespace fusion::graph
