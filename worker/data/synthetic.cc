// Data made from the seed, with something to learn in it: to try a model, a plan or a machine without a file.
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/data/dataset.h"
#include "worker/data/sampling.h"

namespace fusion::worker {
namespace {

using v1alpha1::Model;

/// What a random number is for; training's samples are apart from validation's.
enum class Draw : uint64_t { kRules, kStart, kJump, kLength, kTopic, kWord, kColumn, kClass, kNoise };

class Synthetic : public Dataset {
 public:
  explicit Synthetic(const DatasetOptions& options) : options_(options) {}

 protected:
  /// In [0, bound), of one sample: its `counter`-th of the kind.
  uint64_t OfSample(uint64_t bound, Draw draw, const BatchSlice& slice, int64_t sample,
                    uint64_t counter) const {
    const auto index = static_cast<uint64_t>(SampleIndex(slice, options_.global_batch) + sample);
    return RandomBelow(bound, CounterRandom(Seed(), Stream(draw, slice.training), index), 0, counter);
  }
  /// In [0, bound), the same for all samples.
  uint64_t OfRules(uint64_t bound, uint64_t counter) const {
    return RandomBelow(bound, Seed(), Stream(Draw::kRules, true), counter);
  }
  /// From -1 to 1.
  static float Centred(uint64_t below_million) { return static_cast<float>(below_million) * 2e-6F - 1.0F; }
  static constexpr uint64_t kMillion = 1'000'000;

 private:
  uint64_t Seed() const { return static_cast<uint64_t>(options_.seed); }
  static uint64_t Stream(Draw draw, bool training) {
    return 0x73796e74ULL << 8 | (training ? 0x10U : 0U) | static_cast<uint64_t>(draw);
  }

  const DatasetOptions options_;
};

/// Chains of tokens: each follows from the one before by a fixed rule, but for one in eight. Ids are from 1
/// to `tokens`.
class Chains : public Synthetic {
 public:
  Chains(const DatasetOptions& options, int64_t context, int64_t tokens)
      : Synthetic(options), context_(context), tokens_(static_cast<uint64_t>(tokens)) {}

  Tensor Read(Placeholder placeholder, const BatchSlice& slice) const override {
    Tensor tensor = AllocateTensor(graph::v1::INT64, {slice.count, context_});
    auto* out = reinterpret_cast<int64_t*>(tensor.data.get());
    const int64_t shift = placeholder == Placeholder::kLabel ? 1 : 0;
    constexpr uint64_t kJumps = 8;
    for (int64_t i = 0; i < slice.count; ++i) {
      const int64_t sample = slice.first + i;
      uint64_t token = OfSample(tokens_, Draw::kStart, slice, sample, 0);
      for (int64_t t = 0; t < context_ + shift; ++t) {
        if (t >= shift) *out++ = static_cast<int64_t>(token) + 1;
        const bool jumps = OfSample(kJumps, Draw::kJump, slice, sample, static_cast<uint64_t>(t)) == 0;
        token = jumps ? OfSample(tokens_, Draw::kStart, slice, sample, static_cast<uint64_t>(t) + 1)
                      : OfRules(tokens_, token);
      }
    }
    return tensor;
  }

 private:
  const int64_t context_;
  const uint64_t tokens_;
};

/// Pairs of texts on one topic, which is eight words; padded with 0.
class Topics : public Synthetic {
 public:
  Topics(const DatasetOptions& options, int64_t context, int64_t tokens)
      : Synthetic(options), context_(context), tokens_(static_cast<uint64_t>(tokens)) {}

  Tensor Read(Placeholder placeholder, const BatchSlice& slice) const override {
    Tensor tensor = AllocateTensor(graph::v1::INT64, {slice.count, context_});
    auto* out = reinterpret_cast<int64_t*>(tensor.data.get());
    constexpr uint64_t kTopics = 1'000'000;
    constexpr uint64_t kWords = 8;
    const uint64_t text = placeholder == Placeholder::kLabel ? 1 : 0;
    const auto context = static_cast<uint64_t>(context_);
    for (int64_t i = 0; i < slice.count; ++i) {
      const int64_t sample = slice.first + i;
      const uint64_t topic = OfSample(kTopics, Draw::kTopic, slice, sample, 0);
      const uint64_t length =
          (context + 1) / 2 + OfSample(context / 2 + 1, Draw::kLength, slice, sample, text);
      for (uint64_t t = 0; t < context; ++t) {
        const uint64_t word = OfSample(kWords, Draw::kWord, slice, sample, text * context + t);
        *out++ =
            t < length ? static_cast<int64_t>(OfRules(tokens_, topic * kWords + word)) + 1 : kPaddingToken;
      }
    }
    return tensor;
  }

 private:
  const int64_t context_;
  const uint64_t tokens_;
};

/// Columns from -1 to 1. Targets are sines of weighted sums of them; the class is that of the largest sum.
class Columns : public Synthetic {
 public:
  Columns(const DatasetOptions& options, int64_t inputs, int64_t outputs, bool classes)
      : Synthetic(options), inputs_(inputs), outputs_(outputs), classes_(classes) {}

  Tensor Read(Placeholder placeholder, const BatchSlice& slice) const override {
    if (placeholder == Placeholder::kInput) {
      Tensor tensor = AllocateTensor(graph::v1::FLOAT32, {slice.count, inputs_});
      float* out = tensor.mutable_floats().data();
      for (int64_t i = 0; i < slice.count; ++i) {
        for (int64_t k = 0; k < inputs_; ++k) *out++ = Input(slice, slice.first + i, k);
      }
      return tensor;
    }
    if (!classes_) {
      Tensor tensor = AllocateTensor(graph::v1::FLOAT32, {slice.count, outputs_});
      float* out = tensor.mutable_floats().data();
      for (int64_t i = 0; i < slice.count; ++i) {
        for (int64_t k = 0; k < outputs_; ++k) *out++ = std::sin(Sum(slice, slice.first + i, k));
      }
      return tensor;
    }
    Tensor tensor = AllocateTensor(graph::v1::INT64, {slice.count});
    auto* out = reinterpret_cast<int64_t*>(tensor.data.get());
    for (int64_t i = 0; i < slice.count; ++i) {
      int64_t best = 0;
      for (int64_t k = 1; k < outputs_; ++k) {
        if (Sum(slice, slice.first + i, k) > Sum(slice, slice.first + i, best)) best = k;
      }
      *out++ = best;
    }
    return tensor;
  }

 private:
  float Input(const BatchSlice& slice, int64_t sample, int64_t column) const {
    return Centred(OfSample(kMillion, Draw::kColumn, slice, sample, static_cast<uint64_t>(column)));
  }
  float Sum(const BatchSlice& slice, int64_t sample, int64_t output) const {
    float sum = 0;
    for (int64_t k = 0; k < inputs_; ++k) {
      sum +=
          Centred(OfRules(kMillion, static_cast<uint64_t>(output * inputs_ + k))) * Input(slice, sample, k);
    }
    return sum;
  }

  const int64_t inputs_;
  const int64_t outputs_;
  const bool classes_;
};

/// Images of four by four patches, whose brightness is the class's, with noise of the same size.
class Patches : public Synthetic {
 public:
  Patches(const DatasetOptions& options, int64_t classes, int64_t channels, int64_t side)
      : Synthetic(options), classes_(static_cast<uint64_t>(classes)), channels_(channels), side_(side) {}

  Tensor Read(Placeholder placeholder, const BatchSlice& slice) const override {
    if (placeholder == Placeholder::kLabel) {
      Tensor tensor = AllocateTensor(graph::v1::INT64, {slice.count});
      auto* out = reinterpret_cast<int64_t*>(tensor.data.get());
      for (int64_t i = 0; i < slice.count; ++i) *out++ = static_cast<int64_t>(Class(slice, slice.first + i));
      return tensor;
    }
    Tensor tensor = AllocateTensor(graph::v1::FLOAT32, {slice.count, channels_, side_, side_});
    float* out = tensor.mutable_floats().data();
    constexpr int64_t kPatches = 4;
    for (int64_t i = 0; i < slice.count; ++i) {
      const int64_t sample = slice.first + i;
      const auto kind = static_cast<int64_t>(Class(slice, sample));
      for (int64_t pixel = 0; pixel < channels_ * side_ * side_; ++pixel) {
        const int64_t channel = pixel / (side_ * side_);
        const int64_t row = pixel / side_ % side_ * kPatches / side_;
        const int64_t column = pixel % side_ * kPatches / side_;
        const int64_t patch = ((kind * channels_ + channel) * kPatches + row) * kPatches + column;
        const auto noise = OfSample(kMillion, Draw::kNoise, slice, sample, static_cast<uint64_t>(pixel));
        *out++ = Centred(OfRules(kMillion, static_cast<uint64_t>(patch))) + Centred(noise);
      }
    }
    return tensor;
  }

 private:
  uint64_t Class(const BatchSlice& slice, int64_t sample) const {
    return OfSample(classes_, Draw::kClass, slice, sample, 0);
  }

  const uint64_t classes_;
  const int64_t channels_;
  const int64_t side_;
};

/// The family whose data a graph of one's own with these sizes reads.
Model::Family FamilyLike(const v1alpha1::ModelConfig& config) {
  if (config.inputs() > 0) return Model::mlp;
  if (config.classes() > 0) return Model::resnet;
  return config.context() > 0 && config.towers() == 2 ? Model::bert : Model::gpt2;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenSynthetic(const DatasetOptions& options, const Model& model) {
  const v1alpha1::ModelConfig& config = model.config();
  const auto wanting = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("data.kind synthetic needs ", what));
  };
  switch (model.has_family() ? model.family() : FamilyLike(config)) {
    case Model::gpt2:
      if (config.context() < 1 || config.vocabulary() < 2)
        return wanting("model.config.context and vocabulary");
      return std::make_unique<Chains>(options, config.context(), config.vocabulary() - 1);
    case Model::bert:
      if (config.context() < 1 || config.vocabulary() < 3) {
        return wanting("model.config.context and a vocabulary of 3 or more");
      }
      // 0 is padding and, of one tower, the last id is [MASK].
      if (config.towers() == 2) {
        return std::make_unique<Topics>(options, config.context(), config.vocabulary() - 1);
      }
      return std::make_unique<Chains>(options, config.context(), config.vocabulary() - 2);
    case Model::mlp:
      if (config.inputs() < 1 || config.outputs() < 1) return wanting("model.config.inputs and outputs");
      return std::make_unique<Columns>(options, config.inputs(), config.outputs(),
                                       model.loss().type() == v1alpha1::Loss::CrossEntropy);
    case Model::resnet:
      if (config.classes() < 1) return wanting("model.config.classes");
      return std::make_unique<Patches>(options, config.classes(),
                                       config.has_channels() ? config.channels() : 3,
                                       config.has_image_size() ? config.image_size() : 224);
    default:  // a graph of one's own: by the sizes that its job has (graph/job_data.h)
      return wanting("sizes in model.config: of tokens, columns or images");
  }
}

}  // namespace fusion::worker
