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
    MicroBatch batch{.feeds = {}, .samples = samples, .weight = static_cast<double>(samples) / 9};
    if (model.family() == v1alpha1::Model::gpt2) {
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
  return batches;
}

}  // namespace fusion::worker
