#include "worker/data/dataset.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/data/masking.h"
#include "worker/mapped_file.h"

namespace fusion::worker {
namespace {

using v1alpha1::Data;
using v1alpha1::FusionJobSpec;
using v1alpha1::ModelConfig;

constexpr double kDefaultValidationFraction = 0.05;
constexpr int64_t kDefaultValidationBatches = 20;
constexpr int64_t kDefaultChannels = 3;  // of resnet
constexpr int64_t kDefaultImageSize = 224;

absl::Status Missing(absl::string_view kind, absl::string_view fields) {
  return absl::InvalidArgumentError(
      absl::StrCat("data.kind ", kind, " needs model.config.", fields, ", which this model does not have"));
}

bool IsMaskedLanguageModel(const v1alpha1::Model& model) {
  return model.family() == v1alpha1::Model::bert && model.config().towers() != 2;
}

/// With the last id for [MASK].
MaskingOptions MaskingOf(const FusionJobSpec& spec) {
  return {.seed = spec.training().seed(),
          .global_batch = spec.training().batch().global(),
          .context = spec.model().config().context(),
          .mask_token = spec.model().config().vocabulary() - 1};
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenPairs(const FusionJobSpec& spec, const DatasetOptions& options,
                                                   const std::string& base_directory) {
  const Data& data = spec.data();
  PairOptions pairs{.context = spec.model().config().context(),
                    .vocabulary = spec.model().config().vocabulary(),
                    .lowercase = !data.tokenizer().has_lowercase() || data.tokenizer().lowercase()};
  if (data.has_tokenizer()) {
    auto path = ResolvePath("data.tokenizer.uri", data.tokenizer().uri(), base_directory);
    if (!path.ok()) return path.status();
    pairs.tokenizer = *std::move(path);
  }
  return OpenTextPairs(options, pairs);
}

bool ClassLabels(const v1alpha1::Model& model) { return model.loss().type() == v1alpha1::Loss::CrossEntropy; }

}  // namespace

int64_t ValidationBatches(const FusionJobSpec& spec) {
  if (!spec.training().has_validation() && spec.task() != FusionJobSpec::Evaluate) {
    return 0;
  }
  const v1alpha1::Validation& validation = spec.training().validation();
  return validation.has_batches() ? validation.batches() : kDefaultValidationBatches;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const FusionJobSpec& spec,
                                                     const std::string& base_directory) {
  const Data& data = spec.data();
  DatasetOptions options{.validation_fraction = data.has_validation_fraction() ? data.validation_fraction()
                                                                               : kDefaultValidationFraction,
                         .seed = spec.training().seed(),
                         .global_batch = spec.training().batch().global(),
                         .validation_batches = ValidationBatches(spec)};
  const ModelConfig& config = spec.model().config();
  if (data.kind() == Data::synthetic) {
    auto made = OpenSynthetic(options, spec.model());
    if (made.ok() && IsMaskedLanguageModel(spec.model())) {
      return Masked(*std::move(made), MaskingOf(spec));
    }
    return made;
  }
  auto path = ResolvePath("data.uri", data.uri(), base_directory);
  if (!path.ok()) {
    return path.status();
  }
  options.path = *std::move(path);
  switch (data.kind()) {
    case Data::text:
      if (!config.has_context() || !config.has_vocabulary()) {
        return Missing("text", "context and vocabulary");
      }
      return IsMaskedLanguageModel(spec.model())
                 ? OpenMaskedText(options, config.context(), config.vocabulary())
                 : OpenText(options, config.context(), config.vocabulary());
    case Data::textPairs:
      if (!config.has_context() || !config.has_vocabulary()) {
        return Missing("textPairs", "context and vocabulary");
      }
      return OpenPairs(spec, options, base_directory);
    case Data::table:
      if (!config.has_inputs() || !config.has_outputs()) {
        return Missing("table", "inputs and outputs");
      }
      return OpenTable(options, {.target = data.target(),
                                 .standardize = !data.has_standardize() || data.standardize(),
                                 .inputs = config.inputs(),
                                 .outputs = config.outputs(),
                                 .class_labels = ClassLabels(spec.model())});
    case Data::images:
      if (!config.has_classes()) {
        return Missing("images", "classes");
      }
      return OpenImages(options,
                        {.channels = config.has_channels() ? config.channels() : kDefaultChannels,
                         .image_size = config.has_image_size() ? config.image_size() : kDefaultImageSize,
                         .classes = config.classes(),
                         .scale = data.has_scale() ? data.scale() : 1});
    default:
      return absl::UnimplementedError(
          absl::StrCat("data.kind ", Data::Kind_Name(data.kind()), " is not supported yet"));
  }
}

TargetCounter TargetsOf(const FusionJobSpec& spec) {
  if (!IsMaskedLanguageModel(spec.model())) {
    return [](const BatchSlice& slice) { return slice.count; };
  }
  return [masking = Masking(MaskingOf(spec))](const BatchSlice& slice) { return masking.Count(slice); };
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenMaskedText(const DatasetOptions& options, int64_t context,
                                                        int64_t vocabulary) {
  auto windows = OpenText(options, context, vocabulary - 1);
  if (!windows.ok()) {
    return windows;
  }
  return Masked(*std::move(windows), {.seed = options.seed,
                                      .global_batch = options.global_batch,
                                      .context = context,
                                      .mask_token = vocabulary - 1});
}

}  // namespace fusion::worker
