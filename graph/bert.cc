#include "graph/bert.h"

#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/builder.h"
#include "graph/model_config.h"

namespace fusion::graph {
namespace {

constexpr double kEpsilon = 1e-12;          // layer_norm_eps
constexpr double kInitializerRange = 0.02;  // initializer_range
constexpr int64_t kTokenTypes = 2;          // type_vocab_size
constexpr int64_t kPadding = 0;             // pad_token_id
constexpr int64_t kIgnored = -100;          // cross_entropy_loss's ignore_index
constexpr double kTemperature = 0.07;
// Of torch.nn.functional.normalize, and of sentence-transformers' mean pooling.
constexpr double kShortestLength = 1e-12;
constexpr double kFewestTokens = 1e-9;

struct Dimensions {
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t width = 0;
  int64_t context = 0;
  int64_t positions = 0;
  int64_t vocabulary = 0;
  int64_t intermediate = 0;
  double dropout = 0;
  bool towers = false;
  double temperature = kTemperature;
};

absl::Status CheckLoss(const v1alpha1::Model& model) {
  const bool two = model.config().towers() == 2;
  const auto loss = model.loss().type();
  if (loss == v1alpha1::Loss::MeanSquaredError) {
    return absl::InvalidArgumentError("spec.model.loss.type: family bert has CrossEntropy and InfoNCE");
  }
  if (loss == v1alpha1::Loss::InfoNCE && !two) {
    return absl::InvalidArgumentError(
        "spec.model.loss.type: InfoNCE compares two texts; set spec.model.config.towers to 2");
  }
  if (loss == v1alpha1::Loss::CrossEntropy && two) {
    return absl::InvalidArgumentError(
        "spec.model.loss.type: CrossEntropy is of one text; set spec.model.config.towers to 1, or the loss "
        "to "
        "InfoNCE");
  }
  if (model.loss().has_temperature() && !(model.loss().temperature() > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.model.loss.temperature: must be above 0, not ", model.loss().temperature()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Dimensions> ReadSizes(const v1alpha1::Model& model) {
  auto status = CheckFields(model, {"layers", "heads", "width", "context", "vocabulary"},
                            {"dropout", "intermediate", "towers", "positions"});
  if (!status.ok()) return status;
  const v1alpha1::ModelConfig& config = model.config();
  Dimensions sizes{.layers = config.layers(),
                   .heads = config.heads(),
                   .width = config.width(),
                   .context = config.context(),
                   .positions = config.has_positions() ? config.positions() : config.context(),
                   .vocabulary = config.vocabulary(),
                   .intermediate = config.has_intermediate() ? config.intermediate() : 4 * config.width(),
                   .dropout = config.dropout(),
                   .towers = config.towers() == 2,
                   .temperature = model.loss().has_temperature() ? model.loss().temperature() : kTemperature};
  status.Update(CheckRange("spec.model.config.layers", sizes.layers, 1, 1000));
  status.Update(CheckRange("spec.model.config.heads", sizes.heads, 1, 1024));
  status.Update(CheckRange("spec.model.config.width", sizes.width, 1, 65536));
  status.Update(CheckRange("spec.model.config.context", sizes.context, 1, 1048576));
  status.Update(CheckRange("spec.model.config.vocabulary", sizes.vocabulary, 2, 10'000'000));
  if (config.has_intermediate()) {
    status.Update(CheckRange("spec.model.config.intermediate", sizes.intermediate, 1, 1048576));
  }
  if (config.has_towers()) status.Update(CheckRange("spec.model.config.towers", config.towers(), 1, 2));
  status.Update(CheckRange("spec.model.config.positions", sizes.positions, sizes.context, 1048576));
  if (!status.ok()) return status;
  if (sizes.width % sizes.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.model.config.heads: ", sizes.heads, " does not divide the width ", sizes.width));
  }
  if (!(sizes.dropout >= 0 && sizes.dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.model.config.dropout: must be at least 0 and less than 1, not ", sizes.dropout));
  }
  if (status = CheckLoss(model); !status.ok()) return status;
  return sizes;
}

/// Emits every operator as late as its first reader allows, so that the order is a good line to cut.
class Bert {
 public:
  explicit Bert(const Dimensions& sizes) : sizes_(sizes), graph_("bert") {}

  absl::StatusOr<v1::Graph> BuildMaskedLanguageModel() {
    variables_ = operators_ = "bert.";
    const v1::ValueRef x = Encode(graph_.Placeholder("input", v1::INT64, {Batch(), sizes_.context}), {});
    variables_ = operators_ = "cls.predictions.";
    const v1::ValueRef hidden = Linear("transform.dense", x, sizes_.width, sizes_.width);
    const v1::ValueRef active =
        graph_.Add(operators_ + "transform.transform_act_fn", "aten.gelu", {Read(hidden)});
    const v1::ValueRef turned = LayerNorm("transform.LayerNorm", active);
    const v1::ValueRef bias = Variable("bias", {sizes_.vocabulary}, Zeros());
    const v1::ValueRef logits =
        graph_.Add(operators_ + "decoder", "aten.linear", {Read(turned), Read(words_), Read(bias)});
    const v1::ValueRef label = graph_.Placeholder("label", v1::INT64, {Batch(), sizes_.context});
    const v1::ValueRef target =
        graph_.Add("loss.target", "aten.view", {Read(label), graph::Sizes({Tokens()})});
    return graph_.Finish(graph_.Add("loss", "aten.cross_entropy_loss", {Read(logits), Read(target)},
                                    {{"ignore_index", Int(kIgnored)}}));
  }

  absl::StatusOr<v1::Graph> BuildTowers() {
    const v1::ValueRef anchor = Tower("anchor.", "input");
    const v1::ValueRef positive = Tower("positive.", "label");
    const v1::ValueRef turned =
        graph_.Add("similarity.turn", "aten.transpose.int", {Read(positive), Int(0), Int(1)});
    const v1::ValueRef cosines = graph_.Add("similarity", "aten.matmul", {Read(anchor), Read(turned)});
    const v1::ValueRef scaled =
        graph_.Add("similarity.scale", "aten.mul.Scalar", {Read(cosines), Double(1 / sizes_.temperature)});
    const v1::ValueRef own =
        graph_.Add("loss.target", "aten.arange", {Size(Batch())}, {{"dtype", Type(v1::INT64)}});
    return graph_.Finish(graph_.Add("loss", "aten.cross_entropy_loss", {Read(scaled), Read(own)}));
  }

 private:
  /// Which tokens are text, in the forms that their readers want; none is empty where no token is padding.
  struct Mask {
    v1::ValueRef kept;       ///< float [batch, context, 1]: 1, or 0 for padding
    v1::ValueRef attention;  ///< float [batch, 1, 1, context]: 0, or the lowest number for padding
  };

  int64_t Tokens() const { return Batch(sizes_.context); }

  /// A parameter of this name; the same one where it is asked for again.
  v1::ValueRef Variable(const std::string& name, const Shape& shape, const v1::Init& init) {
    const std::string path = variables_ + name;
    const auto [found, is_new] = known_.try_emplace(path);
    if (is_new) found->second = graph_.Variable(path, shape, init);
    return found->second;
  }

  /// [batch, width], rows of length 1.
  v1::ValueRef Tower(const std::string& name, const std::string& placeholder) {
    operators_ = name;
    const v1::ValueRef ids = graph_.Placeholder(placeholder, v1::INT64, {Batch(), sizes_.context});
    const v1::ValueRef padding = graph_.Add(name + "padding", "aten.eq.Scalar", {Read(ids), Int(kPadding)});
    const Mask mask{
        .kept = Filled("kept", "aten.ones", padding, 0, {Batch(), sizes_.context, 1}),
        .attention = Filled("attention_mask", "aten.zeros", padding, std::numeric_limits<float>::lowest(),
                            {Batch(), 1, 1, sizes_.context})};
    return Pool(Encode(ids, mask), mask.kept);
  }

  v1::ValueRef Filled(const std::string& name, const std::string& creator, const v1::ValueRef& padding,
                      double value, const Shape& shape) {
    const v1::ValueRef all =
        graph_.Add(operators_ + name + "." + creator.substr(5), creator, {graph::Sizes(shape)});
    const v1::ValueRef where =
        graph_.Add(operators_ + name + ".where", "aten.view", {Read(padding), graph::Sizes(shape)});
    return graph_.Add(operators_ + name, "aten.masked_fill.Scalar", {Read(all), Read(where), Double(value)});
  }

  v1::ValueRef Pool(const v1::ValueRef& rows, const v1::ValueRef& kept) {
    const std::string name = operators_ + "pooling";
    const v1::ValueRef tokens = graph_.Add(
        name + ".view", "aten.view", {Read(rows), graph::Sizes({Batch(), sizes_.context, sizes_.width})});
    const v1::ValueRef text = graph_.Add(name + ".text", "aten.mul.Tensor", {Read(tokens), Read(kept)});
    const v1::ValueRef sum =
        graph_.Add(name + ".sum", "aten.sum.dim_IntList", {Read(text), graph::Sizes({1})});
    const v1::ValueRef count =
        graph_.Add(name + ".count", "aten.sum.dim_IntList", {Read(kept), graph::Sizes({1})});
    const v1::ValueRef divisor =
        graph_.Add(name + ".divisor", "aten.clamp_min", {Read(count), Double(kFewestTokens)});
    const v1::ValueRef mean = graph_.Add(name, "aten.div.Tensor", {Read(sum), Read(divisor)});
    const v1::ValueRef length = graph_.Add(operators_ + "normalize.length", "aten.linalg_vector_norm",
                                           {Read(mean), Int(2), graph::Sizes({1}), Bool(true)});
    const v1::ValueRef safe = graph_.Add(operators_ + "normalize.divisor", "aten.clamp_min",
                                         {Read(length), Double(kShortestLength)});
    return graph_.Add(operators_ + "normalize", "aten.div.Tensor", {Read(mean), Read(safe)});
  }

  /// The last hidden states, one row a token.
  v1::ValueRef Encode(const v1::ValueRef& ids, const Mask& mask) {
    v1::ValueRef x = Embed(ids);
    for (int64_t layer = 0; layer < sizes_.layers; ++layer) {
      x = Layer(absl::StrCat("encoder.layer.", layer), x, mask);
    }
    return x;
  }

  v1::ValueRef Embed(const v1::ValueRef& ids) {
    const std::string name = operators_ + "embeddings.";
    v1::Init words = Normal(kInitializerRange);
    words.set_zero_rows(kPadding + 1);
    words_ = Variable("embeddings.word_embeddings.weight", {sizes_.vocabulary, sizes_.width}, words);
    const v1::ValueRef tokens =
        graph_.Add(name + "word_embeddings", "aten.embedding", {Read(words_), Read(ids), Int(kPadding)});
    const v1::ValueRef types = Variable("embeddings.token_type_embeddings.weight",
                                        {kTokenTypes, sizes_.width}, Normal(kInitializerRange));
    const v1::ValueRef type_ids = graph_.Add(name + "token_type_ids", "aten.zeros",
                                             {graph::Sizes({sizes_.context})}, {{"dtype", Type(v1::INT64)}});
    const v1::ValueRef of_type =
        graph_.Add(name + "token_type_embeddings", "aten.embedding", {Read(types), Read(type_ids)});
    const v1::ValueRef typed =
        graph_.Add(name + "token_type_embeddings.add", "aten.add.Tensor", {Read(tokens), Read(of_type)});
    const v1::ValueRef weight = Variable("embeddings.position_embeddings.weight",
                                         {sizes_.positions, sizes_.width}, Normal(kInitializerRange));
    const v1::ValueRef position_ids =
        graph_.Add(name + "position_ids", "aten.arange", {Int(sizes_.context)}, {{"dtype", Type(v1::INT64)}});
    const v1::ValueRef positions =
        graph_.Add(name + "position_embeddings", "aten.embedding", {Read(weight), Read(position_ids)});
    const v1::ValueRef sum =
        graph_.Add(name + "position_embeddings.add", "aten.add.Tensor", {Read(typed), Read(positions)});
    const v1::ValueRef rows =
        graph_.Add(name + "view", "aten.view", {Read(sum), graph::Sizes({Tokens(), sizes_.width})});
    return Dropout("embeddings.dropout", LayerNorm("embeddings.LayerNorm", rows), {Tokens(), sizes_.width});
  }

  v1::ValueRef Layer(const std::string& name, const v1::ValueRef& x, const Mask& mask) {
    const v1::ValueRef mixed = Attention(name + ".attention.self", x, mask);
    const v1::ValueRef middle = Output(name + ".attention.output", mixed, sizes_.width, x);
    const v1::ValueRef hidden =
        Linear(name + ".intermediate.dense", middle, sizes_.width, sizes_.intermediate);
    const v1::ValueRef active =
        graph_.Add(operators_ + name + ".intermediate.intermediate_act_fn", "aten.gelu", {Read(hidden)});
    return Output(name + ".output", active, sizes_.intermediate, middle);
  }

  /// LayerNorm(dropout(dense(x)) + residual).
  v1::ValueRef Output(const std::string& name, const v1::ValueRef& x, int64_t in,
                      const v1::ValueRef& residual) {
    const v1::ValueRef dense =
        Dropout(name + ".dropout", Linear(name + ".dense", x, in, sizes_.width), {Tokens(), sizes_.width});
    const v1::ValueRef sum =
        graph_.Add(operators_ + name + ".add", "aten.add.Tensor", {Read(dense), Read(residual)});
    return LayerNorm(name + ".LayerNorm", sum);
  }

  v1::ValueRef Attention(const std::string& name, const v1::ValueRef& x, const Mask& mask) {
    const v1::ValueRef query = Heads(name + ".query", x);
    const v1::ValueRef key = Heads(name + ".key", x);
    const v1::ValueRef value = Heads(name + ".value", x);
    const std::string path = operators_ + name;
    const bool masked = !mask.attention.operator_().empty();
    const v1::ValueRef mixed =
        sizes_.dropout > 0
            ? ExplicitAttention(name, query, key, value, mask)
            : graph_.Add(path, "aten.scaled_dot_product_attention",
                         {Read(query), Read(key), Read(value), masked ? Read(mask.attention) : None()});
    const v1::ValueRef tokens =
        graph_.Add(path + ".merge", "aten.transpose.int", {Read(mixed), Int(1), Int(2)});
    return graph_.Add(path + ".merge.view", "aten.view",
                      {Read(tokens), graph::Sizes({Tokens(), sizes_.width})});
  }

  /// Hugging Face drops attention weights between softmax and the product with the values, which the fused
  /// operator hides; so with dropout the steps are operators of their own, as in its eager implementation.
  v1::ValueRef ExplicitAttention(const std::string& name, const v1::ValueRef& query, const v1::ValueRef& key,
                                 const v1::ValueRef& value, const Mask& mask) {
    const std::string path = operators_ + name;
    const double scale = 1 / std::sqrt(static_cast<double>(sizes_.width / sizes_.heads));
    const v1::ValueRef turned =
        graph_.Add(path + ".key.turn", "aten.transpose.int", {Read(key), Int(-1), Int(-2)});
    const v1::ValueRef products = graph_.Add(path + ".scores", "aten.matmul", {Read(query), Read(turned)});
    v1::ValueRef scores = graph_.Add(path + ".scale", "aten.mul.Scalar", {Read(products), Double(scale)});
    if (!mask.attention.operator_().empty()) {
      scores = graph_.Add(path + ".masked", "aten.add.Tensor", {Read(scores), Read(mask.attention)});
    }
    const v1::ValueRef weights = graph_.Add(path + ".softmax", "aten.softmax.int", {Read(scores), Int(-1)});
    const v1::ValueRef dropped =
        Dropout(name + ".dropout", weights, {Batch(), sizes_.heads, sizes_.context, sizes_.context});
    return graph_.Add(path, "aten.matmul", {Read(dropped), Read(value)});
  }

  /// A projection of [batch x context, width] to [batch, heads, context, width / heads].
  v1::ValueRef Heads(const std::string& name, const v1::ValueRef& x) {
    const v1::ValueRef rows = Linear(name, x, sizes_.width, sizes_.width);
    const v1::ValueRef split = graph_.Add(
        operators_ + name + ".view", "aten.view",
        {Read(rows), graph::Sizes({Batch(), sizes_.context, sizes_.heads, sizes_.width / sizes_.heads})});
    return graph_.Add(operators_ + name + ".heads", "aten.transpose.int", {Read(split), Int(1), Int(2)});
  }

  v1::ValueRef Linear(const std::string& name, const v1::ValueRef& x, int64_t in, int64_t out) {
    const v1::ValueRef weight = Variable(name + ".weight", {out, in}, Normal(kInitializerRange));
    const v1::ValueRef bias = Variable(name + ".bias", {out}, Zeros());
    return graph_.Add(operators_ + name, "aten.linear", {Read(x), Read(weight), Read(bias)});
  }

  v1::ValueRef LayerNorm(const std::string& name, const v1::ValueRef& x) {
    const v1::ValueRef weight = Variable(name + ".weight", {sizes_.width}, Ones());
    const v1::ValueRef bias = Variable(name + ".bias", {sizes_.width}, Zeros());
    return graph_.Add(operators_ + name, "aten.layer_norm",
                      {Read(x), graph::Sizes({sizes_.width}), Read(weight), Read(bias), Double(kEpsilon)});
  }

  v1::ValueRef Dropout(const std::string& name, const v1::ValueRef& x, const Shape& shape) {
    if (sizes_.dropout == 0) return x;
    const v1::ValueRef mask =
        graph_.Add(operators_ + name + ".mask", "fusion.dropout_mask",
                   {graph::Sizes(shape), Double(sizes_.dropout), RandomKey(), Training()});
    return graph_.Add(operators_ + name, "aten.mul.Tensor", {Read(x), Read(mask)});
  }

  const Dimensions sizes_;
  GraphBuilder graph_;
  std::string variables_;  ///< in front of parameters' names
  std::string operators_;  ///< in front of operators' names
  std::map<std::string, v1::ValueRef> known_;
  v1::ValueRef words_;
};

}  // namespace

absl::StatusOr<v1::Graph> BuildBert(const v1alpha1::Model& model) {
  auto sizes = ReadSizes(model);
  if (!sizes.ok()) return sizes.status();
  Bert bert(*sizes);
  return sizes->towers ? bert.BuildTowers() : bert.BuildMaskedLanguageModel();
}

absl::StatusOr<std::string> BertConfigJson(const v1alpha1::Model& model) {
  auto sizes = ReadSizes(model);
  if (!sizes.ok()) return sizes.status();
  return absl::StrCat(R"({
  "model_type": "bert",
  "architectures": [")",
                      sizes->towers ? "BertModel" : "BertForMaskedLM", R"("],
  "hidden_act": "gelu",
  "num_hidden_layers": )",
                      sizes->layers, R"(,
  "num_attention_heads": )",
                      sizes->heads, R"(,
  "hidden_size": )",
                      sizes->width, R"(,
  "intermediate_size": )",
                      sizes->intermediate, R"(,
  "max_position_embeddings": )",
                      sizes->positions, R"(,
  "vocab_size": )",
                      sizes->vocabulary, R"(,
  "type_vocab_size": 2,
  "pad_token_id": 0,
  "hidden_dropout_prob": )",
                      sizes->dropout, R"(,
  "attention_probs_dropout_prob": )",
                      sizes->dropout, R"(,
  "layer_norm_eps": 1e-12,
  "initializer_range": 0.02,
  "position_embedding_type": "absolute",
  "tie_word_embeddings": true
}
)");
}

}  // namespace fusion::graph
