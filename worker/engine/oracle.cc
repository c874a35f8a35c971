#include "worker/engine/oracle.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

at::Tensor ToTorch(const Tensor& tensor) {
  const at::ScalarType type = tensor.dtype == graph::v1::INT64 ? at::kLong : at::kFloat;
  return at::from_blob(tensor.data.get(), tensor.shape, at::TensorOptions().dtype(type)).clone();
}

Tensor FromTorch(const at::Tensor& tensor) {
  const at::Tensor source = tensor.detach().contiguous();
  const DataType dtype = source.scalar_type() == at::kLong ? graph::v1::INT64 : graph::v1::FLOAT32;
  Tensor result = AllocateTensor(dtype, source.sizes().vec());
  std::memcpy(result.data.get(), source.const_data_ptr(), static_cast<size_t>(result.bytes()));
  return result;
}

// The mask of engine/random.h, from its text.
uint64_t Finalize(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

uint64_t Mixed(uint64_t key, uint64_t number) { return Finalize(key ^ Finalize(number + kGolden)); }

struct DropoutKey {
  int64_t seed = 0;
  int64_t step = 0;
  int64_t micro_batch = 0;
};

at::Tensor Dropout(const at::Tensor& x, double p, const DropoutKey& key, const std::string& name) {
  if (p == 0) {
    return x;
  }
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name + ".mask") {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  const uint64_t start = Mixed(Mixed(Mixed(static_cast<uint64_t>(key.seed), static_cast<uint64_t>(key.step)),
                                     static_cast<uint64_t>(key.micro_batch)),
                               hash);
  at::Tensor mask = at::empty(x.sizes(), at::TensorOptions().dtype(at::kFloat));
  auto* data = mask.mutable_data_ptr<float>();
  for (int64_t i = 0; i < mask.numel(); ++i) {
    const uint64_t bits = Finalize(start + static_cast<uint64_t>(i + 1) * kGolden);
    data[i] = static_cast<double>(bits >> 11) * 0x1p-53 < p ? 0.0F : static_cast<float>(1 / (1 - p));
  }
  return x * mask;
}

struct Model : torch::nn::Module {
  virtual at::Tensor Loss(const at::Tensor& input, const at::Tensor& label, const DropoutKey& key) = 0;
};

struct Mlp : Model {
  explicit Mlp(const v1alpha1::Model& model) : config(model.config()), loss(model.loss().type()) {
    std::vector<int64_t> widths(config.hidden().begin(), config.hidden().end());
    widths.push_back(config.outputs());
    auto container = std::make_shared<torch::nn::Module>();
    int64_t in = config.inputs();
    for (size_t i = 0; i < widths.size(); ++i) {
      layers.push_back(torch::nn::Linear(in, widths[i]));
      container->register_module(absl::StrCat(2 * i), layers.back());
      in = widths[i];
    }
    register_module("layers", container);
  }

  at::Tensor Loss(const at::Tensor& input, const at::Tensor& label, const DropoutKey& /*key*/) override {
    at::Tensor x = input;
    for (size_t i = 0; i < layers.size(); ++i) {
      x = layers[i]->forward(x);
      if (i + 1 == layers.size()) {
        break;
      }
      switch (config.activation()) {
        case v1alpha1::ModelConfig::gelu:
          x = at::gelu(x);
          break;
        case v1alpha1::ModelConfig::tanh:
          x = at::tanh(x);
          break;
        default:
          x = at::relu(x);
      }
    }
    return loss == v1alpha1::Loss::CrossEntropy ? at::cross_entropy_loss(x, label) : at::mse_loss(x, label);
  }

  v1alpha1::ModelConfig config;
  v1alpha1::Loss::Type loss;
  std::vector<torch::nn::Linear> layers;
};

// Hugging Face's: a linear layer with its weight transposed.
struct Conv1D : torch::nn::Module {
  Conv1D(int64_t in, int64_t out)
      : weight(register_parameter("weight", at::empty({in, out}))),
        bias(register_parameter("bias", at::empty({out}))) {}
  at::Tensor forward(const at::Tensor& x) { return at::addmm(bias, x, weight); }
  at::Tensor weight;
  at::Tensor bias;
};

struct Attention : torch::nn::Module {
  explicit Attention(const v1alpha1::ModelConfig& config_)
      : config(config_),
        c_attn(register_module("c_attn", std::make_shared<Conv1D>(config.width(), 3 * config.width()))),
        c_proj(register_module("c_proj", std::make_shared<Conv1D>(config.width(), config.width()))) {}

  at::Tensor forward(const at::Tensor& x, const DropoutKey& key, const std::string& name) {
    const int64_t head_width = config.width() / config.heads();
    const auto heads = [&](const at::Tensor& part) {
      return part.contiguous()
          .view({-1, config.context(), config.heads(), head_width})
          .transpose(1, 2)
          .contiguous();
    };
    const std::vector<at::Tensor> parts = c_attn->forward(x).split(config.width(), 1);
    const at::Tensor query = heads(parts[0]);
    const at::Tensor keys = heads(parts[1]);
    const at::Tensor values = heads(parts[2]);
    at::Tensor mixed;
    if (config.dropout() == 0) {
      mixed = at::scaled_dot_product_attention(query, keys, values, std::nullopt, 0.0, true);
    } else {
      const at::Tensor scores = at::matmul(query, keys.transpose(-1, -2).contiguous()) *
                                (1 / std::sqrt(static_cast<double>(head_width)));
      const at::Tensor future = at::ones({config.context(), config.context()}, at::kBool).triu(1);
      const at::Tensor weights =
          at::softmax(scores.masked_fill(future, std::numeric_limits<float>::lowest()), -1);
      mixed = at::matmul(Dropout(weights, config.dropout(), key, name + ".attn_dropout"), values);
    }
    const at::Tensor rows = mixed.transpose(1, 2).contiguous().view({-1, config.width()});
    return Dropout(c_proj->forward(rows), config.dropout(), key, name + ".resid_dropout");
  }

  v1alpha1::ModelConfig config;
  std::shared_ptr<Conv1D> c_attn;
  std::shared_ptr<Conv1D> c_proj;
};

struct FeedForward : torch::nn::Module {
  explicit FeedForward(int64_t width)
      : c_fc(register_module("c_fc", std::make_shared<Conv1D>(width, 4 * width))),
        c_proj(register_module("c_proj", std::make_shared<Conv1D>(4 * width, width))) {}
  std::shared_ptr<Conv1D> c_fc;
  std::shared_ptr<Conv1D> c_proj;
};

struct Block : torch::nn::Module {
  explicit Block(const v1alpha1::ModelConfig& config_)
      : config(config_),
        ln_1(register_module("ln_1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width()})))),
        attn(register_module("attn", std::make_shared<Attention>(config))),
        ln_2(register_module("ln_2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width()})))),
        mlp(register_module("mlp", std::make_shared<FeedForward>(config.width()))) {}

  at::Tensor forward(const at::Tensor& x, const DropoutKey& key, const std::string& name) {
    const at::Tensor middle = attn->forward(ln_1->forward(x), key, name + ".attn") + x;
    const at::Tensor active = at::gelu(mlp->c_fc->forward(ln_2->forward(middle)), "tanh");
    return middle + Dropout(mlp->c_proj->forward(active), config.dropout(), key, name + ".mlp.dropout");
  }

  v1alpha1::ModelConfig config;
  torch::nn::LayerNorm ln_1;
  std::shared_ptr<Attention> attn;
  torch::nn::LayerNorm ln_2;
  std::shared_ptr<FeedForward> mlp;
};

struct Gpt2 : Model {
  explicit Gpt2(const v1alpha1::ModelConfig& config_)
      : config(config_),
        wte(config.vocabulary(), config.width()),
        wpe(config.context(), config.width()),
        ln_f(torch::nn::LayerNormOptions({config.width()})) {
    auto transformer = std::make_shared<torch::nn::Module>();
    auto h = std::make_shared<torch::nn::Module>();
    transformer->register_module("wte", wte);
    transformer->register_module("wpe", wpe);
    for (int64_t i = 0; i < config.layers(); ++i) {
      blocks.push_back(std::make_shared<Block>(config));
      h->register_module(absl::StrCat(i), blocks.back());
    }
    transformer->register_module("h", h);
    transformer->register_module("ln_f", ln_f);
    register_module("transformer", transformer);
  }

  at::Tensor Loss(const at::Tensor& input, const at::Tensor& label, const DropoutKey& key) override {
    const at::Tensor positions = at::arange(config.context(), at::kLong);
    at::Tensor x = (wte->forward(input) + wpe->forward(positions)).view({-1, config.width()});
    x = Dropout(x, config.dropout(), key, "transformer.drop");
    for (size_t i = 0; i < blocks.size(); ++i) {
      x = blocks[i]->forward(x, key, absl::StrCat("transformer.h.", i));
    }
    return at::cross_entropy_loss(at::linear(ln_f->forward(x), wte->weight), label.view({-1}));
  }

  v1alpha1::ModelConfig config;
  torch::nn::Embedding wte;
  torch::nn::Embedding wpe;
  std::vector<std::shared_ptr<Block>> blocks;
  torch::nn::LayerNorm ln_f;
};

// BERT with transformers' module tree.
struct BertLayer : torch::nn::Module {
  explicit BertLayer(const v1alpha1::ModelConfig& config_)
      : config(config_),
        query(Linear(config.width(), config.width())),
        keys(Linear(config.width(), config.width())),
        values(Linear(config.width(), config.width())),
        attended(Linear(config.width(), config.width())),
        attended_norm(Norm(config.width())),
        intermediate(Linear(config.width(), Inner())),
        output(Linear(Inner(), config.width())),
        output_norm(Norm(config.width())) {
    const auto group = [](std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> children) {
      auto module = std::make_shared<torch::nn::Module>();
      for (auto& [name, child] : children) {
        module->register_module(name, std::move(child));
      }
      return module;
    };
    register_module(
        "attention",
        group({{"self", group({{"query", query.ptr()}, {"key", keys.ptr()}, {"value", values.ptr()}})},
               {"output", group({{"dense", attended.ptr()}, {"LayerNorm", attended_norm.ptr()}})}}));
    register_module("intermediate", group({{"dense", intermediate.ptr()}}));
    register_module("output", group({{"dense", output.ptr()}, {"LayerNorm", output_norm.ptr()}}));
  }

  static torch::nn::Linear Linear(int64_t in, int64_t out) { return torch::nn::Linear(in, out); }
  static torch::nn::LayerNorm Norm(int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(1e-12));
  }
  int64_t Inner() const { return config.has_intermediate() ? config.intermediate() : 4 * config.width(); }

  /// `mask` is undefined, or [batch, 1, 1, context]: 0, or the lowest number for padding. `module` is the
  /// layer's path in the module tree, `key` of the dropout masks.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask, const DropoutKey& key,
                     const std::string& module) {
    const double p = config.dropout();
    const int64_t head_width = config.width() / config.heads();
    const auto heads = [&](const at::Tensor& rows) {
      return rows.view({-1, config.context(), config.heads(), head_width}).transpose(1, 2).contiguous();
    };
    const at::Tensor q = heads(query->forward(x));
    const at::Tensor k = heads(keys->forward(x));
    const at::Tensor v = heads(values->forward(x));
    at::Tensor mixed;
    if (p == 0) {
      mixed = at::scaled_dot_product_attention(
          q, k, v, mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt);
    } else {
      at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(head_width));
      if (mask.defined()) {
        scores = scores + mask;
      }
      mixed = at::matmul(Dropout(at::softmax(scores, -1), p, key, module + ".attention.self.dropout"), v);
    }
    const at::Tensor rows = mixed.transpose(1, 2).reshape({-1, config.width()});
    const at::Tensor middle = attended_norm->forward(
        Dropout(attended->forward(rows), p, key, module + ".attention.output.dropout") + x);
    const at::Tensor hidden = at::gelu(intermediate->forward(middle));
    return output_norm->forward(Dropout(output->forward(hidden), p, key, module + ".output.dropout") +
                                middle);
  }

  v1alpha1::ModelConfig config;
  torch::nn::Linear query;
  torch::nn::Linear keys;
  torch::nn::Linear values;
  torch::nn::Linear attended;
  torch::nn::LayerNorm attended_norm;
  torch::nn::Linear intermediate;
  torch::nn::Linear output;
  torch::nn::LayerNorm output_norm;
};

struct BertEncoder : torch::nn::Module {
  explicit BertEncoder(const v1alpha1::ModelConfig& config_)
      : config(config_),
        words(torch::nn::EmbeddingOptions(config.vocabulary(), config.width()).padding_idx(0)),
        positions(config.has_positions() ? config.positions() : config.context(), config.width()),
        types(2, config.width()),
        norm(BertLayer::Norm(config.width())) {
    auto embeddings = std::make_shared<torch::nn::Module>();
    embeddings->register_module("word_embeddings", words);
    embeddings->register_module("position_embeddings", positions);
    embeddings->register_module("token_type_embeddings", types);
    embeddings->register_module("LayerNorm", norm);
    register_module("embeddings", embeddings);
    auto stack = std::make_shared<torch::nn::Module>();
    for (int64_t i = 0; i < config.layers(); ++i) {
      layers.push_back(stack->register_module(absl::StrCat(i), std::make_shared<BertLayer>(config)));
    }
    auto encoder = std::make_shared<torch::nn::Module>();
    encoder->register_module("layer", stack);
    register_module("encoder", encoder);
  }

  at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask, const DropoutKey& key,
                     const std::string& module) {
    const at::Tensor type_ids = at::zeros({config.context()}, at::kLong);
    const at::Tensor place = at::arange(config.context(), at::kLong);
    at::Tensor x = words->forward(ids) + types->forward(type_ids) + positions->forward(place);
    x = norm->forward(x.view({-1, config.width()}));
    x = Dropout(x, config.dropout(), key, module + "embeddings.dropout");
    for (size_t i = 0; i < layers.size(); ++i) {
      x = layers[i]->forward(x, mask, key, absl::StrCat(module, "encoder.layer.", i));
    }
    return x;
  }

  v1alpha1::ModelConfig config;
  torch::nn::Embedding words;
  torch::nn::Embedding positions;
  torch::nn::Embedding types;
  torch::nn::LayerNorm norm;
  std::vector<std::shared_ptr<BertLayer>> layers;
};

struct BertForMaskedLm : Model {
  explicit BertForMaskedLm(const v1alpha1::ModelConfig& config_)
      : config(config_),
        bert(register_module("bert", std::make_shared<BertEncoder>(config))),
        dense(config.width(), config.width()),
        norm(BertLayer::Norm(config.width())) {
    auto transform = std::make_shared<torch::nn::Module>();
    transform->register_module("dense", dense);
    transform->register_module("LayerNorm", norm);
    auto predictions = std::make_shared<torch::nn::Module>();
    bias = predictions->register_parameter("bias", at::zeros({config.vocabulary()}));
    predictions->register_module("transform", transform);
    auto head = std::make_shared<torch::nn::Module>();
    head->register_module("predictions", predictions);
    register_module("cls", head);
  }

  /// The mean over the targets, by hand. In mixed precision layer_norm and log_softmax are in fp32, as
  /// autocast has them for CUDA.
  at::Tensor Loss(const at::Tensor& input, const at::Tensor& label, const DropoutKey& key) override {
    const at::Tensor x = bert->forward(input, at::Tensor(), key, "bert.");
    const at::Tensor hidden = norm->forward(at::gelu(dense->forward(x)).to(at::kFloat));
    const at::Tensor logits = at::linear(hidden, bert->words->weight, bias);
    const at::Tensor target = label.view({-1});
    const at::Tensor chosen = at::nonzero(target >= 0).view({-1});
    const at::Tensor log_probabilities = at::log_softmax(logits.index_select(0, chosen), 1, at::kFloat);
    return -log_probabilities.gather(1, target.index_select(0, chosen).view({-1, 1})).mean();
  }

  v1alpha1::ModelConfig config;
  std::shared_ptr<BertEncoder> bert;
  torch::nn::Linear dense;
  torch::nn::LayerNorm norm;
  at::Tensor bias;
};

// A siamese sentence encoder: one BertModel, mean pooling, cosines.
struct BertTowers : Model {
  explicit BertTowers(const v1alpha1::Model& model)
      : temperature(model.loss().has_temperature() ? model.loss().temperature() : 0.07),
        encoder(std::make_shared<BertEncoder>(model.config())) {
    for (const auto& child : encoder->named_children()) {
      register_module(child.key(), child.value());
    }
  }

  at::Tensor Embed(const at::Tensor& ids, const DropoutKey& key, const std::string& module) {
    const at::Tensor kept = (ids != 0).to(at::kFloat);
    const at::Tensor mask = ((1 - kept) * std::numeric_limits<float>::lowest()).view({-1, 1, 1, ids.size(1)});
    const at::Tensor tokens = encoder->forward(ids, mask, key, module).view({ids.size(0), ids.size(1), -1});
    const at::Tensor mean = (tokens * kept.unsqueeze(-1)).sum(1) / kept.sum(1, /*keepdim=*/true);
    return mean / mean.norm(2, 1, /*keepdim=*/true);
  }

  at::Tensor Loss(const at::Tensor& input, const at::Tensor& label, const DropoutKey& key) override {
    const at::Tensor cosines = at::mm(Embed(input, key, "anchor."), Embed(label, key, "positive.").t());
    // In fp32 also where the cosines are lower, as autocast has it for CUDA.
    return -at::log_softmax(cosines / temperature, 1, at::kFloat).diagonal().mean();
  }

  double temperature;
  std::shared_ptr<BertEncoder> encoder;
};

// torchvision's BasicBlock or Bottleneck.
struct ResidualBlock : torch::nn::Module {
  ResidualBlock(int64_t in, int64_t width, int64_t stride, bool bottleneck) {
    const int64_t out = bottleneck ? 4 * width : width;
    if (bottleneck) {
      Add(in, width, 1, 1);
      Add(width, width, 3, stride);
      Add(width, out, 1, 1);
    } else {
      Add(in, width, 3, stride);
      Add(width, width, 3, 1);
    }
    if (stride != 1 || in != out) {
      auto container = std::make_shared<torch::nn::Module>();
      shortcut.push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)));
      shortcut_norm.push_back(torch::nn::BatchNorm2d(out));
      container->register_module("0", shortcut.back());
      container->register_module("1", shortcut_norm.back());
      register_module("downsample", container);
    }
  }

  void Add(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    const auto options =
        torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false);
    convolutions.push_back(
        register_module(absl::StrCat("conv", convolutions.size() + 1), torch::nn::Conv2d(options)));
    norms.push_back(register_module(absl::StrCat("bn", norms.size() + 1), torch::nn::BatchNorm2d(out)));
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (size_t i = 0; i < convolutions.size(); ++i) {
      y = norms[i]->forward(convolutions[i]->forward(y));
      y = i + 1 < convolutions.size() ? at::relu(y) : y;
    }
    return at::relu(y + (shortcut.empty() ? x : shortcut_norm[0]->forward(shortcut[0]->forward(x))));
  }

  std::vector<torch::nn::Conv2d> convolutions;
  std::vector<torch::nn::BatchNorm2d> norms;
  std::vector<torch::nn::Conv2d> shortcut;  // one or none
  std::vector<torch::nn::BatchNorm2d> shortcut_norm;
};

struct Resnet : Model {
  explicit Resnet(const v1alpha1::ModelConfig& config)
      : small(config.stem() == v1alpha1::ModelConfig::small),
        conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(
                                                             config.channels(), config.width(), small ? 3 : 7)
                                                             .stride(small ? 1 : 2)
                                                             .padding(small ? 1 : 3)
                                                             .bias(false)))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(config.width()))) {
    int64_t in = config.width();
    for (int stage = 0; stage < config.blocks_size(); ++stage) {
      auto container = std::make_shared<torch::nn::Module>();
      const int64_t width = config.width() << stage;
      for (int64_t block = 0; block < config.blocks(stage); ++block) {
        blocks.push_back(
            std::make_shared<ResidualBlock>(in, width, stage > 0 && block == 0 ? 2 : 1, config.bottleneck()));
        container->register_module(absl::StrCat(block), blocks.back());
        in = config.bottleneck() ? 4 * width : width;
      }
      register_module(absl::StrCat("layer", stage + 1), container);
    }
    fc = register_module("fc", torch::nn::Linear(in, config.classes()));
  }

  at::Tensor Loss(const at::Tensor& input, const at::Tensor& label, const DropoutKey& /*key*/) override {
    at::Tensor x = at::relu(bn1->forward(conv1->forward(input)));
    x = small ? x : at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1});
    for (const auto& block : blocks) {
      x = block->forward(x);
    }
    x = at::flatten(at::adaptive_avg_pool2d(x, {1, 1}), 1);
    return at::cross_entropy_loss(fc->forward(x), label);
  }

  bool small;
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  std::vector<std::shared_ptr<ResidualBlock>> blocks;
  torch::nn::Linear fc{nullptr};
};

class ModuleOracle final : public Oracle {
 public:
  explicit ModuleOracle(const OracleOptions& options) : options_(options) {
    if (options.model.family() == v1alpha1::Model::gpt2) {
      model_ = std::make_shared<Gpt2>(options.model.config());
    } else if (options.model.family() == v1alpha1::Model::bert) {
      if (options.model.config().towers() == 2) {
        model_ = std::make_shared<BertTowers>(options.model);
      } else {
        model_ = std::make_shared<BertForMaskedLm>(options.model.config());
      }
    } else if (options.model.family() == v1alpha1::Model::resnet) {
      model_ = std::make_shared<Resnet>(options.model.config());
    } else {
      model_ = std::make_shared<Mlp>(options.model);
    }
    std::vector<at::Tensor> decayed;
    std::vector<at::Tensor> others;
    for (const auto& entry : model_->named_parameters()) {
      const bool other = (!options.decay_biases || options.bias_learning_rate.has_value()) &&
                         absl::EndsWith(entry.key(), ".bias");
      (other ? others : decayed).push_back(entry.value());
    }
    AddOptimizer(options.optimizer, decayed);
    v1alpha1::Optimizer of_others = options.optimizer;
    if (!options.decay_biases) {
      of_others.set_weight_decay(0);
    }
    of_others.set_learning_rate(options.bias_learning_rate.value_or(options.optimizer.learning_rate()));
    AddOptimizer(of_others, others);
  }

  void SetParameter(const std::string& name, const Tensor& value) override {
    const at::NoGradGuard no_gradients;
    auto parameters = model_->named_parameters();
    auto buffers = model_->named_buffers();
    at::Tensor* target = parameters.find(name);
    (target != nullptr ? *target : buffers[name]).copy_(ToTorch(value));
  }

  std::map<std::string, Tensor> Parameters() const override {
    std::map<std::string, Tensor> result;
    for (const auto& entry : model_->named_parameters()) {
      result[entry.key()] = FromTorch(entry.value());
    }
    for (const auto& entry : model_->named_buffers()) {
      result[entry.key()] = FromTorch(entry.value());
    }
    return result;
  }

  std::map<std::string, Tensor> Gradients() const override {
    std::map<std::string, Tensor> result;
    for (const auto& entry : model_->named_parameters()) {
      if (entry.value().grad().defined()) {
        result[entry.key()] = FromTorch(entry.value().grad());
      }
    }
    return result;
  }

  double ForwardBackward(int64_t step, const std::vector<OracleBatch>& batches) override {
    model_->zero_grad();
    double sum = 0;
    double weights = 0;
    for (size_t m = 0; m < batches.size(); ++m) {
      const DropoutKey key{options_.seed, step, static_cast<int64_t>(m)};
      at::autocast::set_autocast_enabled(at::kCPU, options_.autocast);
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_cache_enabled(false);  // else the uses of a weight are summed in bfloat16
      const at::Tensor loss = model_->Loss(ToTorch(batches[m].input), ToTorch(batches[m].label), key);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      (loss * batches[m].weight).backward();
      sum += batches[m].weight * loss.item().toDouble();
      weights += batches[m].weight;
    }
    return sum / weights;
  }

  double ClipGradients(double max_norm) override {
    return torch::nn::utils::clip_grad_norm_(model_->parameters(), max_norm);
  }

  void Update(double learning_rate_factor) override {
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      optimizers_[i]->param_groups().front().options().set_lr(rates_[i] * learning_rate_factor);
      optimizers_[i]->step();
    }
  }

  double Evaluate(const OracleBatch& batch) override {
    const at::NoGradGuard no_gradients;
    model_->eval();
    const double loss = model_->Loss(ToTorch(batch.input), ToTorch(batch.label), {}).item().toDouble();
    model_->train();
    return loss;
  }

 private:
  void AddOptimizer(const v1alpha1::Optimizer& settings, const std::vector<at::Tensor>& parameters) {
    if (parameters.empty()) {
      return;
    }
    const double rate = settings.learning_rate();
    rates_.push_back(rate);
    const double decay = settings.weight_decay();
    switch (settings.type()) {
      case v1alpha1::Optimizer::Adam:
        optimizers_.push_back(std::make_unique<torch::optim::Adam>(
            parameters, torch::optim::AdamOptions(rate).weight_decay(decay)));
        break;
      case v1alpha1::Optimizer::AdamW:
        optimizers_.push_back(std::make_unique<torch::optim::AdamW>(
            parameters, torch::optim::AdamWOptions(rate).weight_decay(decay)));
        break;
      default:
        optimizers_.push_back(
            std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(rate)
                                                                .momentum(settings.momentum())
                                                                .weight_decay(decay)
                                                                .nesterov(settings.nesterov())));
    }
  }

  OracleOptions options_;
  std::shared_ptr<Model> model_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<double> rates_;  ///< of the optimizers
};

}  // namespace

std::unique_ptr<Oracle> MakeOracle(const OracleOptions& options) {
  return std::make_unique<ModuleOracle>(options);
}

}  // namespace fusion::worker
