#include "graph/gpt2.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/builder.h"
#include "graph/model_config.h"

namespace fusion::graph {
namespace {

constexpr double kEpsilon = 1e-5;           // layer_norm_epsilon
constexpr double kInitializerRange = 0.02;  // initializer_range

struct Dimensions {
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t width = 0;
  int64_t context = 0;
  int64_t vocabulary = 0;
  double dropout = 0;
};

absl::StatusOr<Dimensions> ReadSizes(const v1alpha1::Model& model) {
  auto status = CheckFields(model, {"layers", "heads", "width", "context", "vocabulary"}, {"dropout"});
  if (!status.ok()) return status;
  const v1alpha1::ModelConfig& config = model.config();
  status.Update(CheckRange("spec.model.config.layers", config.layers(), 1, 1000));
  status.Update(CheckRange("spec.model.config.heads", config.heads(), 1, 1024));
  status.Update(CheckRange("spec.model.config.width", config.width(), 1, 65536));
  status.Update(CheckRange("spec.model.config.context", config.context(), 1, 1048576));
  status.Update(CheckRange("spec.model.config.vocabulary", config.vocabulary(), 2, 10'000'000));
  if (!status.ok()) return status;
  if (config.width() % config.heads() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("spec.model.config.heads: ", config.heads(),
                                                   " does not divide the width ", config.width()));
  }
  if (!(config.dropout() >= 0 && config.dropout() < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "spec.model.config.dropout: must be at least 0 and less than 1, not ", config.dropout()));
  }
  if (model.loss().has_type() && model.loss().type() != v1alpha1::Loss::CrossEntropy) {
    return absl::InvalidArgumentError("spec.model.loss.type: family gpt2 has CrossEntropy only");
  }
  return Dimensions{config.layers(),  config.heads(),      config.width(),
                    config.context(), config.vocabulary(), config.dropout()};
}

/// Emits every operator as late as its first reader allows, so that the order is a good line to cut.
class Gpt2 {
 public:
  explicit Gpt2(const Dimensions& sizes) : sizes_(sizes), graph_("gpt2") {}

  absl::StatusOr<v1::Graph> Build() {
    const v1::ValueRef embedding = graph_.Variable(
        "transformer.wte.weight", {sizes_.vocabulary, sizes_.width}, Normal(kInitializerRange));
    v1::ValueRef x = Embed(embedding);
    for (int64_t layer = 0; layer < sizes_.layers; ++layer)
      x = Block(absl::StrCat("transformer.h.", layer), x);
    x = LayerNorm("transformer.ln_f", x);
    const v1::ValueRef logits = graph_.Add("lm_head", "aten.linear", {Read(x), Read(embedding)});
    const v1::ValueRef label = graph_.Placeholder("label", v1::INT64, {Batch(), sizes_.context});
    const v1::ValueRef target =
        graph_.Add("loss.target", "aten.view", {Read(label), graph::Sizes({Batch(sizes_.context)})});
    return graph_.Finish(graph_.Add("loss", "aten.cross_entropy_loss", {Read(logits), Read(target)}));
  }

 private:
  int64_t Tokens() const { return Batch(sizes_.context); }

  v1::ValueRef Embed(const v1::ValueRef& embedding) {
    const v1::ValueRef input = graph_.Placeholder("input", v1::INT64, {Batch(), sizes_.context});
    const v1::ValueRef tokens =
        graph_.Add("transformer.wte", "aten.embedding", {Read(embedding), Read(input)});
    const v1::ValueRef weight =
        graph_.Variable("transformer.wpe.weight", {sizes_.context, sizes_.width}, Normal(kInitializerRange));
    const v1::ValueRef ids = graph_.Add("transformer.wpe.position_ids", "aten.arange", {Int(sizes_.context)},
                                        {{"dtype", Type(v1::INT64)}});
    const v1::ValueRef positions = graph_.Add("transformer.wpe", "aten.embedding", {Read(weight), Read(ids)});
    const v1::ValueRef sum =
        graph_.Add("transformer.wpe.add", "aten.add.Tensor", {Read(tokens), Read(positions)});
    const v1::ValueRef rows =
        graph_.Add("transformer.wpe.view", "aten.view", {Read(sum), graph::Sizes({Tokens(), sizes_.width})});
    return Dropout("transformer.drop", rows, {Tokens(), sizes_.width});
  }

  v1::ValueRef Block(const std::string& name, const v1::ValueRef& x) {
    const v1::ValueRef attention = Attention(name + ".attn", LayerNorm(name + ".ln_1", x));
    const v1::ValueRef middle = graph_.Add(name + ".attn.add", "aten.add.Tensor", {Read(attention), Read(x)});
    const v1::ValueRef hidden = Conv1D(name + ".mlp.c_fc", LayerNorm(name + ".ln_2", middle), sizes_.width,
                                       4 * sizes_.width, kInitializerRange);
    const v1::ValueRef active =
        graph_.Add(name + ".mlp.act", "aten.gelu", {Read(hidden)}, {{"approximate", Text("tanh")}});
    const v1::ValueRef projected =
        Dropout(name + ".mlp.dropout",
                Conv1D(name + ".mlp.c_proj", active, 4 * sizes_.width, sizes_.width, ProjectionRange()),
                {Tokens(), sizes_.width});
    return graph_.Add(name + ".mlp.add", "aten.add.Tensor", {Read(middle), Read(projected)});
  }

  v1::ValueRef Attention(const std::string& name, const v1::ValueRef& x) {
    const v1::ValueRef joined =
        Conv1D(name + ".c_attn", x, sizes_.width, 3 * sizes_.width, kInitializerRange);
    std::vector<v1::ValueRef> parts = graph_.AddMany(name + ".c_attn.split", "aten.split.Tensor",
                                                     {Read(joined), Int(sizes_.width), Int(1)});
    if (parts.size() != 3) return {};
    const v1::ValueRef query = Heads(name + ".query", parts[0]);
    const v1::ValueRef key = Heads(name + ".key", parts[1]);
    const v1::ValueRef value = Heads(name + ".value", parts[2]);
    const v1::ValueRef mixed =
        sizes_.dropout > 0 ? ExplicitAttention(name, query, key, value)
                           : graph_.Add(name, "aten.scaled_dot_product_attention",
                                        {Read(query), Read(key), Read(value), None(), Double(0), Bool(true)});
    const v1::ValueRef tokens =
        graph_.Add(name + ".merge", "aten.transpose.int", {Read(mixed), Int(1), Int(2)});
    const v1::ValueRef rows =
        graph_.Add(name + ".merge.view", "aten.view", {Read(tokens), graph::Sizes({Tokens(), sizes_.width})});
    return Dropout(name + ".resid_dropout",
                   Conv1D(name + ".c_proj", rows, sizes_.width, sizes_.width, ProjectionRange()),
                   {Tokens(), sizes_.width});
  }

  /// Hugging Face drops attention weights between softmax and the product with the values, which the fused
  /// operator hides; so with dropout the steps are operators of their own, as in its eager implementation.
  v1::ValueRef ExplicitAttention(const std::string& name, const v1::ValueRef& query, const v1::ValueRef& key,
                                 const v1::ValueRef& value) {
    const int64_t context = sizes_.context;
    const int64_t head_width = sizes_.width / sizes_.heads;
    const double scale = 1 / std::sqrt(static_cast<double>(head_width));
    const v1::ValueRef turned =
        graph_.Add(name + ".key.turn", "aten.transpose.int", {Read(key), Int(-1), Int(-2)});
    const v1::ValueRef products = graph_.Add(name + ".scores", "aten.matmul", {Read(query), Read(turned)});
    const v1::ValueRef scaled =
        graph_.Add(name + ".scale", "aten.mul.Scalar", {Read(products), Double(scale)});
    const v1::ValueRef ones = graph_.Add(name + ".mask.ones", "aten.ones", {graph::Sizes({context, context})},
                                         {{"dtype", Type(v1::BOOL)}});
    const v1::ValueRef future = graph_.Add(name + ".mask", "aten.triu", {Read(ones), Int(1)});
    const v1::ValueRef masked =
        graph_.Add(name + ".masked", "aten.masked_fill.Scalar",
                   {Read(scaled), Read(future), Double(std::numeric_limits<float>::lowest())});
    const v1::ValueRef weights = graph_.Add(name + ".softmax", "aten.softmax.int", {Read(masked), Int(-1)});
    const v1::ValueRef dropped =
        Dropout(name + ".attn_dropout", weights, {Batch(), sizes_.heads, context, context});
    return graph_.Add(name, "aten.matmul", {Read(dropped), Read(value)});
  }

  /// [batch x context, width] to [batch, heads, context, width / heads].
  v1::ValueRef Heads(const std::string& name, const v1::ValueRef& rows) {
    const v1::ValueRef split = graph_.Add(
        name + ".view", "aten.view",
        {Read(rows), graph::Sizes({Batch(), sizes_.context, sizes_.heads, sizes_.width / sizes_.heads})});
    return graph_.Add(name, "aten.transpose.int", {Read(split), Int(1), Int(2)});
  }

  v1::ValueRef Conv1D(const std::string& name, const v1::ValueRef& x, int64_t in, int64_t out, double range) {
    const v1::ValueRef weight = graph_.Variable(name + ".weight", {in, out}, Normal(range));
    const v1::ValueRef bias = graph_.Variable(name + ".bias", {out}, Zeros());
    return graph_.Add(name, "aten.addmm", {Read(bias), Read(x), Read(weight)});
  }

  v1::ValueRef LayerNorm(const std::string& name, const v1::ValueRef& x) {
    const v1::ValueRef weight = graph_.Variable(name + ".weight", {sizes_.width}, Ones());
    const v1::ValueRef bias = graph_.Variable(name + ".bias", {sizes_.width}, Zeros());
    return graph_.Add(name, "aten.layer_norm",
                      {Read(x), graph::Sizes({sizes_.width}), Read(weight), Read(bias), Double(kEpsilon)});
  }

  v1::ValueRef Dropout(const std::string& name, const v1::ValueRef& x, const Shape& shape) {
    if (sizes_.dropout == 0) return x;
    const v1::ValueRef mask =
        graph_.Add(name + ".mask", "fusion.dropout_mask",
                   {graph::Sizes(shape), Double(sizes_.dropout), RandomKey(), Training()});
    return graph_.Add(name, "aten.mul.Tensor", {Read(x), Read(mask)});
  }

  /// Hugging Face's _init_weights: residual projections are scaled by the number of residual layers.
  double ProjectionRange() const {
    return kInitializerRange / std::sqrt(2 * static_cast<double>(sizes_.layers));
  }

  const Dimensions sizes_;
  GraphBuilder graph_;
};

}  // namespace

absl::StatusOr<v1::Graph> BuildGpt2(const v1alpha1::Model& model) {
  auto sizes = ReadSizes(model);
  if (!sizes.ok()) return sizes.status();
  return Gpt2(*sizes).Build();
}

absl::StatusOr<std::string> Gpt2ConfigJson(const v1alpha1::Model& model) {
  auto sizes = ReadSizes(model);
  if (!sizes.ok()) return sizes.status();
  const double dropout = sizes->dropout;
  return absl::StrCat(R"({
  "model_type": "gpt2",
  "architectures": ["GPT2LMHeadModel"],
  "activation_function": "gelu_new",
  "n_layer": )",
                      sizes->layers, R"(,
  "n_head": )",
                      sizes->heads, R"(,
  "n_embd": )",
                      sizes->width, R"(,
  "n_positions": )",
                      sizes->context, R"(,
  "n_ctx": )",
                      sizes->context, R"(,
  "vocab_size": )",
                      sizes->vocabulary, R"(,
  "embd_pdrop": )",
                      dropout, R"(,
  "attn_pdrop": )",
                      dropout, R"(,
  "resid_pdrop": )",
                      dropout, R"(,
  "layer_norm_epsilon": 1e-05,
  "initializer_range": 0.02,
  "tie_word_embeddings": true
}
)");
}

}  // namespace fusion::graph
