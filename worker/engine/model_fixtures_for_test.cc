#include "worker/engine/model_fixtures_for_test.h"

#include <cmath>
#include <functional>

#include "worker/engine/random.h"

namespace fusion::worker {

v1alpha1::Model SmallMlp(v1alpha1::Loss::Type loss) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::mlp);
  model.mutable_config()->set_inputs(5);
  model.mutable_config()->add_hidden(8);
  model.mutable_config()->add_hidden(6);
  model.mutable_config()->set_outputs(3);
  model.mutable_config()->set_activation(v1alpha1::ModelConfig::tanh);
  model.mutable_loss()->set_type(loss);
  return model;
}

v1alpha1::Model SmallGpt2(double dropout) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::gpt2);
  model.mutable_config()->set_layers(2);
  model.mutable_config()->set_heads(2);
  model.mutable_config()->set_width(16);
  model.mutable_config()->set_context(8);
  model.mutable_config()->set_vocabulary(13);
  model.mutable_config()->set_dropout(dropout);
  return model;
}

v1alpha1::Model SmallBert(int towers, double dropout) {
  v1alpha1::Model model = SmallGpt2(dropout);
  model.set_family(v1alpha1::Model::bert);
  model.mutable_config()->set_intermediate(24);
  model.mutable_config()->set_towers(towers);
  return model;
}

v1alpha1::Model SmallResnet(bool bottleneck, v1alpha1::ModelConfig::Stem stem) {
  v1alpha1::Model model;
  model.set_family(v1alpha1::Model::resnet);
  model.mutable_config()->add_blocks(1);
  model.mutable_config()->add_blocks(2);
  model.mutable_config()->set_bottleneck(bottleneck);
  model.mutable_config()->set_width(3);
  model.mutable_config()->set_classes(4);
  model.mutable_config()->set_image_size(8);
  model.mutable_config()->set_channels(2);
  model.mutable_config()->set_stem(stem);
  return model;
}

namespace {

/// Each token follows from the one before; 0 is padding.
int64_t After(int64_t token, int64_t vocabulary) { return 1 + (2 * token + 1) % (vocabulary - 1); }

/// Chains of which some tokens are hidden behind the last id.
void AddMasked(const v1alpha1::ModelConfig& config, const std::function<double()>& next, MicroBatch* batch) {
  std::vector<int64_t> input;
  std::vector<int64_t> label;
  int64_t targets = 0;
  for (int64_t s = 0; s < batch->samples; ++s) {
    auto token = 1 + static_cast<int64_t>(next() * static_cast<double>(config.vocabulary() - 1));
    for (int64_t t = 0; t < config.context(); ++t) {
      const bool hidden = t == 3 || next() < 0.3;
      input.push_back(hidden ? config.vocabulary() - 1 : token);
      label.push_back(hidden ? token : -100);
      targets += hidden ? 1 : 0;
      token = After(token, config.vocabulary());
    }
  }
  batch->weight = static_cast<double>(targets);
  batch->feeds["input"] = LongTensor({batch->samples, config.context()}, input);
  batch->feeds["label"] = LongTensor({batch->samples, config.context()}, label);
}

/// Two chains from one token, of unequal lengths.
void AddPairs(const v1alpha1::ModelConfig& config, const std::function<double()>& next, MicroBatch* batch) {
  std::vector<int64_t> texts[2];
  for (int64_t s = 0; s < batch->samples; ++s) {
    const auto first = 1 + static_cast<int64_t>(next() * static_cast<double>(config.vocabulary() - 1));
    for (std::vector<int64_t>& text : texts) {
      const auto length = 1 + static_cast<int64_t>(next() * static_cast<double>(config.context()));
      int64_t token = first;
      for (int64_t t = 0; t < config.context(); ++t) {
        text.push_back(t < length ? token : 0);
        token = After(token, config.vocabulary());
      }
    }
  }
  batch->feeds["input"] = LongTensor({batch->samples, config.context()}, texts[0]);
  batch->feeds["label"] = LongTensor({batch->samples, config.context()}, texts[1]);
}

// Noise, and a bright row that is the class.
void AddImages(const v1alpha1::ModelConfig& config, const std::function<double()>& next, MicroBatch& batch) {
  const int64_t side = config.image_size();
  std::vector<float> pixels;
  std::vector<int64_t> classes;
  for (int64_t s = 0; s < batch.samples; ++s) {
    classes.push_back(static_cast<int64_t>(next() * static_cast<double>(config.classes())));
    for (int64_t i = 0; i < config.channels() * side * side; ++i) {
      const bool bright = i / side % side == 2 * classes.back();
      pixels.push_back(static_cast<float>(next() - 0.5 + (bright ? 1.5 : 0)));
    }
  }
  batch.feeds["input"] = FloatTensor({batch.samples, config.channels(), side, side}, pixels);
  batch.feeds["label"] = LongTensor({batch.samples}, classes);
}

}  // namespace

std::vector<MicroBatch> BatchesFor(const v1alpha1::Model& model, int64_t step) {
  std::vector<MicroBatch> batches;
  const v1alpha1::ModelConfig& config = model.config();
  for (const int64_t samples : {3, 2, 4}) {
    uint64_t count = 0;
    const uint64_t key =
        engine::Combine(engine::Combine(99, static_cast<uint64_t>(step)), static_cast<uint64_t>(samples));
    const auto next = [&] { return engine::Uniform(engine::Bits(key, count++)); };
    MicroBatch batch{.feeds = {}, .samples = samples, .weight = static_cast<double>(samples)};
    if (model.family() == v1alpha1::Model::bert) {
      config.towers() == 2 ? AddPairs(config, next, &batch) : AddMasked(config, next, &batch);
    } else if (model.family() == v1alpha1::Model::gpt2) {
      // Each token follows from the one before, so there is something to learn.
      std::vector<int64_t> input;
      std::vector<int64_t> label;
      for (int64_t s = 0; s < samples; ++s) {
        auto token = static_cast<int64_t>(next() * static_cast<double>(config.vocabulary()));
        for (int64_t t = 0; t < config.context(); ++t) {
          input.push_back(token);
          token = (token * 2 + 1) % config.vocabulary();
          label.push_back(token);
        }
      }
      batch.feeds["input"] = LongTensor({samples, config.context()}, input);
      batch.feeds["label"] = LongTensor({samples, config.context()}, label);
    } else if (model.family() == v1alpha1::Model::resnet) {
      AddImages(config, next, batch);
    } else {
      std::vector<float> input;
      std::vector<float> target;
      std::vector<int64_t> classes;
      for (int64_t s = 0; s < samples; ++s) {
        double sum = 0;
        for (int64_t i = 0; i < config.inputs(); ++i) {
          input.push_back(static_cast<float>(2 * next() - 1));
          sum += input.back();
        }
        classes.push_back(sum < 0 ? 0 : 1);
        for (int64_t i = 0; i < config.outputs(); ++i) {
          target.push_back(static_cast<float>(std::sin(sum) + 0.5 * static_cast<double>(i)));
        }
      }
      batch.feeds["input"] = FloatTensor({samples, config.inputs()}, input);
      batch.feeds["label"] = model.loss().type() == v1alpha1::Loss::CrossEntropy
                                 ? LongTensor({samples}, classes)
                                 : FloatTensor({samples, config.outputs()}, target);
    }
    batches.push_back(std::move(batch));
  }
  double weights = 0;
  for (const MicroBatch& batch : batches) weights += batch.weight;
  for (MicroBatch& batch : batches) batch.weight /= weights;
  return batches;
}

}  // namespace fusion::worker
