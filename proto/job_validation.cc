#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"
#include "proto/validation.h"

namespace fusion::api {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using v1alpha1::Compression;
using v1alpha1::Data;
using v1alpha1::FusionJobSpec;
using v1alpha1::Loss;
using v1alpha1::Model;
using v1alpha1::ModelConfig;
using v1alpha1::Optimizer;

/// Which fields of ModelConfig a family has, and which of them it needs.
struct FamilyFields {
  std::set<std::string> needed;
  std::set<std::string> allowed;  ///< beside the needed ones
};

const std::map<Model::Family, FamilyFields>& Families() {
  static const auto& families = *new std::map<Model::Family, FamilyFields>{
      {Model::gpt2, {{"layers", "heads", "width", "context", "vocabulary"}, {"dropout"}}},
      {Model::bert,
       {{"layers", "heads", "width", "context", "vocabulary"},
        {"dropout", "intermediate", "towers", "positions"}}},
      {Model::mlp, {{"inputs", "outputs"}, {"hidden", "activation"}}},
      {Model::resnet,
       {{"classes"}, {"depth", "blocks", "bottleneck", "width", "imageSize", "channels", "stem"}}},
  };
  return families;
}

const std::map<Optimizer::Type, std::set<std::string>>& OptimizerFields() {
  static const auto& fields = *new std::map<Optimizer::Type, std::set<std::string>>{
      {Optimizer::SGD, {"type", "learningRate", "weightDecay", "momentum", "nesterov"}},
      {Optimizer::Adam, {"type", "learningRate", "weightDecay", "beta1", "beta2", "epsilon"}},
      {Optimizer::AdamW, {"type", "learningRate", "weightDecay", "beta1", "beta2", "epsilon"}},
  };
  return fields;
}

/// JSON names of the fields that are set.
std::vector<std::string> SetFields(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  std::vector<std::string> names;
  names.reserve(fields.size());
  for (const FieldDescriptor* field : fields) names.push_back(field->json_name());
  return names;
}

void CheckConfig(Model::Family family, const ModelConfig& config, FieldErrors* errors) {
  const std::string name = Model::Family_Name(family);
  const FamilyFields& fields = Families().at(family);
  std::set<std::string> missing = fields.needed;
  for (const std::string& field : SetFields(config)) {
    missing.erase(field);
    if (!fields.needed.contains(field) && !fields.allowed.contains(field)) {
      std::vector<std::string> known(fields.needed.begin(), fields.needed.end());
      known.insert(known.end(), fields.allowed.begin(), fields.allowed.end());
      errors->push_back(
          {MemberPath("spec.model.config", field),
           absl::StrCat("is no field of family ", name, "; it has ", absl::StrJoin(known, ", "))});
    }
  }
  for (const std::string& field : missing) {
    errors->push_back(
        {MemberPath("spec.model.config", field), absl::StrCat("is required for family ", name)});
  }
  if (config.has_heads() && config.has_width() && config.width() % config.heads() != 0) {
    errors->push_back(
        {"spec.model.config.heads",
         absl::StrCat("is ", config.heads(), ", which does not divide width ", config.width())});
  }
}

Loss::Type EffectiveLoss(const Model& model) {
  if (model.loss().has_type()) return model.loss().type();
  if (model.family() == Model::bert && model.config().towers() == 2) return Loss::InfoNCE;
  return model.family() == Model::mlp ? Loss::MeanSquaredError : Loss::CrossEntropy;
}

void CheckLoss(const Model& model, FieldErrors* errors) {
  const Loss::Type loss = EffectiveLoss(model);
  const bool text_family = model.family() == Model::gpt2 || model.family() == Model::bert;
  if (text_family && loss == Loss::MeanSquaredError) {
    errors->push_back(
        {"spec.model.loss.type", absl::StrCat("MeanSquaredError does not fit family ",
                                              Model::Family_Name(model.family()), "; use CrossEntropy")});
  }
  if (model.family() == Model::resnet && loss == Loss::MeanSquaredError) {
    errors->push_back(
        {"spec.model.loss.type", "MeanSquaredError does not fit family resnet; use CrossEntropy"});
  }
  if (loss == Loss::InfoNCE && model.family() != Model::bert) {
    errors->push_back(
        {"spec.model.loss.type", absl::StrCat("InfoNCE compares two texts and is of family bert, not of ",
                                              Model::Family_Name(model.family()))});
  }
  if (model.family() == Model::bert && (loss == Loss::InfoNCE) != (model.config().towers() == 2)) {
    errors->push_back(
        {"spec.model.config.towers",
         absl::StrCat("must be ", loss == Loss::InfoNCE ? 2 : 1, " for loss ", Loss::Type_Name(loss),
                      ": CrossEntropy predicts masked tokens of one text, ", "InfoNCE compares two")});
  }
  if (model.config().has_positions() && model.config().positions() < model.config().context()) {
    errors->push_back(
        {"spec.model.config.positions",
         absl::StrCat("is ", model.config().positions(), ", less than context ", model.config().context())});
  }
  if (model.family() == Model::mlp && loss == Loss::CrossEntropy && model.config().has_outputs() &&
      model.config().outputs() < 2) {
    errors->push_back(
        {"spec.model.config.outputs", "is 1; CrossEntropy needs one output for each of 2 or more classes"});
  }
  if (model.loss().has_temperature() && loss != Loss::InfoNCE) {
    errors->push_back({"spec.model.loss.temperature", "is of InfoNCE only; leave it out"});
  }
}

/// Fields of `optimizer` that its type has not.
void CheckOptimizerFields(Optimizer::Type type, const Optimizer& optimizer, const std::string& path,
                          FieldErrors* errors) {
  const auto known = OptimizerFields().find(type);
  if (known == OptimizerFields().end()) return;
  for (const std::string& field : SetFields(optimizer)) {
    if (!known->second.contains(field)) {
      errors->push_back(
          {MemberPath(path, field), absl::StrCat("is no field of ", Optimizer::Type_Name(type), "; it has ",
                                                 absl::StrJoin(known->second, ", "))});
    }
  }
}

/// An operator name, or glob, that both pins certainly take; empty when none is known.
std::string CommonOperator(const std::string& first, const std::string& second) {
  for (absl::string_view alternative : absl::StrSplit(second, '|')) {
    // A glob among the names of the other is the same glob or covers it.
    if (MatchesGlob(first, alternative)) return std::string(alternative);
  }
  for (absl::string_view alternative : absl::StrSplit(first, '|')) {
    if (MatchesGlob(second, alternative)) return std::string(alternative);
  }
  return "";
}

bool Sends(Compression::Type type) { return type != Compression::Need && type != Compression::None; }

}  // namespace

FieldErrors CheckModel(const Model& model) {
  FieldErrors errors;
  if (model.has_family() == model.has_graph()) {
    errors.push_back({"spec.model", model.has_family()
                                        ? "has both family and graph; give one of them"
                                        : "has neither family nor graph; give a family: gpt2, bert or mlp"});
    return errors;
  }
  if (!model.has_family()) {
    if (model.has_config())
      errors.push_back({"spec.model.config", "belongs to a family; leave it out beside graph"});
    if (model.has_loss())
      errors.push_back(
          {"spec.model.loss", "belongs to a family; a graph ends in its own loss, leave it out"});
    return errors;
  }
  CheckConfig(model.family(), model.config(), &errors);
  CheckLoss(model, &errors);
  return errors;
}

FieldErrors CheckData(const FusionJobSpec& spec) {
  FieldErrors errors;
  const Data& data = spec.data();
  if (!data.has_kind()) return errors;
  const std::string kind = Data::Kind_Name(data.kind());
  if (!data.has_uri() && data.kind() != Data::synthetic) {
    errors.push_back({"spec.data.uri", absl::StrCat("is required for data of kind ", kind)});
  }
  if (data.has_target() && data.kind() != Data::table) {
    errors.push_back({"spec.data.target", absl::StrCat("is of table data, not of ", kind, "; leave it out")});
  }
  if (data.has_standardize() && data.kind() != Data::table) {
    errors.push_back(
        {"spec.data.standardize", absl::StrCat("is of table data, not of ", kind, "; leave it out")});
  }
  if (data.has_scale() && data.kind() != Data::images) {
    errors.push_back({"spec.data.scale", absl::StrCat("is of images, not of ", kind, "; leave it out")});
  }
  if (data.has_tokenizer() && data.kind() != Data::textPairs) {
    errors.push_back(
        {"spec.data.tokenizer", absl::StrCat("is of textPairs, not of ", kind, "; leave it out")});
  }
  if (!spec.model().has_family() || data.kind() == Data::synthetic) return errors;
  const bool pairs = spec.model().config().towers() == 2;
  const v1alpha1::Loss& loss = spec.model().loss();
  std::vector<Data::Kind> texts = {pairs ? Data::textPairs : Data::text};
  if (loss.has_type() && pairs != (loss.type() == v1alpha1::Loss::InfoNCE)) {
    texts.push_back(pairs ? Data::text : Data::textPairs);  // which of the two is meant, another error asks
  }
  const std::map<Model::Family, std::vector<Data::Kind>> kinds = {
      {Model::gpt2, {Data::text}},
      {Model::bert, texts},
      {Model::mlp, {Data::table}},
      {Model::resnet, {Data::images}},
  };
  const std::vector<Data::Kind>& fitting = kinds.at(spec.model().family());
  if (std::find(fitting.begin(), fitting.end(), data.kind()) == fitting.end()) {
    errors.push_back({"spec.data.kind",
                      absl::StrCat(kind, " does not fit family ", Model::Family_Name(spec.model().family()),
                                   "; use ", Data::Kind_Name(fitting.front()))});
  }
  const bool bytes = (data.kind() == Data::text || data.kind() == Data::textPairs) && !data.has_tokenizer();
  if (bytes && spec.model().config().has_vocabulary() && spec.model().config().vocabulary() < 256) {
    errors.push_back({"spec.model.config.vocabulary", absl::StrCat("is ", spec.model().config().vocabulary(),
                                                                   "; text is read as bytes and needs 256")});
  }
  return errors;
}

FieldErrors CheckTask(const FusionJobSpec& spec) {
  FieldErrors errors;
  const v1alpha1::Training& training = spec.training();
  if (spec.task() == FusionJobSpec::Evaluate) {
    if (!spec.model().has_init_from()) {
      errors.push_back(
          {"spec.model.initFrom", "is required for task Evaluate; give the checkpoint to evaluate"});
    }
  } else {
    if (!training.has_steps()) errors.push_back({"spec.training.steps", "is required for task Train"});
    if (!training.optimizer().has_type()) {
      errors.push_back(
          {"spec.training.optimizer.type", "is required for task Train; give SGD, Adam or AdamW"});
    }
  }
  const v1alpha1::Batch& batch = training.batch();
  if (!batch.has_global()) errors.push_back({"spec.training.batch.global", "is required"});
  if (!batch.has_micro()) errors.push_back({"spec.training.batch.micro", "is required"});
  if (batch.has_global() && batch.has_micro() && batch.global() % batch.micro() != 0) {
    errors.push_back({"spec.training.batch.micro",
                      absl::StrCat("is ", batch.micro(), ", which does not divide global ", batch.global())});
  }
  if (batch.has_micro() && batch.micro() < 2 && EffectiveLoss(spec.model()) == Loss::InfoNCE) {
    errors.push_back(
        {"spec.training.batch.micro",
         absl::StrCat("is ", batch.micro(),
                      "; the negatives of InfoNCE are the other pairs of the micro-batch, so give "
                      "2 or more")});
  }
  return errors;
}

FieldErrors CheckOptimizer(const v1alpha1::Training& training) {
  FieldErrors errors;
  const Optimizer& optimizer = training.optimizer();
  const Optimizer::Type type = optimizer.type();
  CheckOptimizerFields(type, optimizer, "spec.training.optimizer", &errors);
  if (optimizer.nesterov() && optimizer.momentum() <= 0) {
    errors.push_back({"spec.training.optimizer.nesterov", "needs a momentum above 0"});
  }
  for (int i = 0; i < training.parameter_groups_size(); ++i) {
    const Optimizer& group = training.parameter_groups(i).optimizer();
    const std::string path = ItemPath("spec.training.parameterGroups", static_cast<size_t>(i)) + ".optimizer";
    if (group.has_type() && optimizer.has_type() && group.type() != type) {
      errors.push_back(
          {path + ".type", absl::StrCat(Optimizer::Type_Name(group.type()), " differs from the optimizer's ",
                                        Optimizer::Type_Name(type), "; leave it out")});
      continue;
    }
    CheckOptimizerFields(type, group, path, &errors);
  }
  return errors;
}

FieldErrors CheckLearningRateSchedule(const v1alpha1::Training& training) {
  FieldErrors errors;
  const v1alpha1::LearningRateSchedule& schedule = training.learning_rate_schedule();
  const std::string path = "spec.training.learningRateSchedule";
  if (schedule.type() == v1alpha1::LearningRateSchedule::Constant && schedule.has_final_fraction()) {
    errors.push_back({path + ".finalFraction", "is of Linear and Cosine, not of Constant; leave it out"});
  }
  if (training.has_steps() && schedule.warmup_steps() > training.steps()) {
    errors.push_back({path + ".warmupSteps", absl::StrCat("is ", schedule.warmup_steps(), "; the job has ",
                                                          training.steps(), " steps; give at most as many")});
  }
  return errors;
}

FieldErrors CheckPlacement(const v1alpha1::Placement& placement) {
  FieldErrors errors;
  std::set<std::string> clusters;
  for (int i = 0; i < placement.clusters_size(); ++i) {
    if (!clusters.insert(placement.clusters(i)).second) {
      errors.push_back({ItemPath("spec.placement.clusters", static_cast<size_t>(i)),
                        absl::StrCat("\"", placement.clusters(i), "\" is listed twice; remove one of them")});
    }
  }
  for (int i = 0; i < placement.pins_size(); ++i) {
    for (int k = 0; k < i; ++k) {
      if (placement.pins(i).compnode() == placement.pins(k).compnode()) continue;
      const std::string common = CommonOperator(placement.pins(k).operators(), placement.pins(i).operators());
      if (common.empty()) continue;
      errors.push_back({ItemPath("spec.placement.pins", static_cast<size_t>(i)) + ".operators",
                        absl::StrCat("pins ", common, " to ", placement.pins(i).compnode(), ", but pins[", k,
                                     "] pins it to ", placement.pins(k).compnode(), "; remove one of them")});
      break;
    }
  }
  return errors;
}

namespace {

FieldErrors CheckCompressionSettings(const Compression& compression, const std::string& path) {
  FieldErrors errors;
  const Compression::Type type = compression.has_type() ? compression.type() : Compression::Need;
  const std::string name = Compression::Type_Name(type);
  const bool sparse = type == Compression::AdaTopK || type == Compression::TopK;
  if (sparse && !compression.has_ratio()) {
    errors.push_back({path + ".ratio",
                      absl::StrCat("is required for ", name, "; give how many times fewer bytes to send")});
  }
  if (!sparse && compression.has_ratio()) {
    errors.push_back(
        {path + ".ratio", absl::StrCat("is of AdaTopK and TopK, not of ", name, "; leave it out")});
  }
  if (!Sends(type) && compression.has_values()) {
    errors.push_back({path + ".values",
                      absl::StrCat("is of AdaTopK, TopK and Quantize, not of ", name, "; leave it out")});
  }
  if (!sparse && compression.error_feedback()) {
    errors.push_back(
        {path + ".errorFeedback", absl::StrCat("is of AdaTopK and TopK, not of ", name, "; leave it out")});
  }
  if (!sparse && compression.mask() == Compression::Independent) {
    errors.push_back(
        {path + ".mask", absl::StrCat("is of AdaTopK and TopK, not of ", name, "; leave it out")});
  }
  if (type == Compression::Quantize && compression.values() != Compression::int8 &&
      compression.values() != Compression::int4) {
    errors.push_back({path + ".values", compression.has_values()
                                            ? absl::StrCat(Compression::Values_Name(compression.values()),
                                                           " is no quantized type; give int8 or int4")
                                            : "is required for Quantize; give int8 or int4"});
  }
  return errors;
}

}  // namespace

FieldErrors CheckCompression(const Compression& compression) {
  const std::string path = "spec.communication.compression";
  Compression base = compression;
  base.clear_schedule();
  if (compression.schedule_size() > 0) {  // of the sparse entries
    base.clear_mask();
    base.clear_error_feedback();
  }
  FieldErrors errors = CheckCompressionSettings(base, path);
  int64_t before = 0;
  for (int i = 0; i < compression.schedule_size(); ++i) {
    const v1alpha1::CompressionChange& change = compression.schedule(i);
    const std::string entry = ItemPath(path + ".schedule", static_cast<size_t>(i));
    Compression settings;
    if (change.has_type()) settings.set_type(change.type());
    if (change.has_ratio()) settings.set_ratio(change.ratio());
    if (change.has_values()) settings.set_values(change.values());
    const FieldErrors found = CheckCompressionSettings(settings, entry);
    errors.insert(errors.end(), found.begin(), found.end());
    if (change.from_step() <= before) {
      errors.push_back({entry + ".fromStep", absl::StrCat("is ", change.from_step(),
                                                          ", not after that of the entry before, ", before)});
    }
    before = change.from_step();
  }
  return errors;
}

FieldErrors ValidateJob(const v1alpha1::FusionJob& job) {
  const FusionJobSpec& spec = job.spec();
  FieldErrors errors;
  for (const FieldErrors& found :
       {spec.has_model() ? CheckModel(spec.model()) : FieldErrors(), CheckData(spec), CheckTask(spec),
        CheckOptimizer(spec.training()), CheckLearningRateSchedule(spec.training()),
        CheckPlacement(spec.placement()), CheckCompression(spec.communication().compression())}) {
    errors.insert(errors.end(), found.begin(), found.end());
  }
  return errors;
}

}  // namespace fusion::api
