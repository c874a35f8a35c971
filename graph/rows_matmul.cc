// Operators whose time is matrix products.
#include "absl/strings/str_cat.h"
#include "graph/operator_row.h"
#include "graph/shapes.h"

namespace fusion::graph {
namespace {

using Specs = absl::StatusOr<std::vector<v1::TensorSpec>>;

/// A product of `multiplications` multiply-adds; each operand's gradient costs as much again.
OperatorCost ProductCost(const Execution& e, double multiplications, absl::string_view a, absl::string_view b,
                         absl::string_view bias) {
  OperatorCost cost;
  const double out = e.OutputBytes();
  const bool has_bias = !bias.empty() && e.call.Has(bias);
  cost.output_bytes = out;
  cost.forward_flops = 2 * multiplications + (has_bias ? e.OutputElements() : 0);
  cost.forward_bytes = e.Bytes(a) + e.Bytes(b) + (has_bias ? e.Bytes(bias) : 0) + out;
  if (e.Gradient(a)) {
    cost.backward_flops += 2 * multiplications;
    cost.backward_bytes += out + e.Bytes(b) + e.Bytes(a);
  }
  if (e.Gradient(b)) {
    cost.backward_flops += 2 * multiplications;
    cost.backward_bytes += out + e.Bytes(a) + e.Bytes(b);
  }
  if (has_bias && e.Gradient(bias)) {
    cost.backward_flops += e.OutputElements();
    cost.backward_bytes += out + e.Bytes(bias);
  }
  return cost;
}

Specs LinearShapes(const Call& call) {
  if (auto status = CheckFloating(call, "input", 1); !status.ok()) return status;
  if (auto status = CheckSameType(call, "input", "weight"); !status.ok()) return status;
  Shape shape = ShapeFrom(call.Tensor("input"));
  const v1::TensorSpec& weight = call.Tensor("weight");
  if (weight.shape_size() != 2 || weight.shape(1) != shape.back()) return Mismatch(call, "input", "weight");
  if (call.Has("bias")) {
    if (auto status = CheckSameType(call, "weight", "bias"); !status.ok()) return status;
    const v1::TensorSpec& bias = call.Tensor("bias");
    if (bias.shape_size() != 1 || bias.shape(0) != weight.shape(0)) return Mismatch(call, "weight", "bias");
  }
  shape.back() = weight.shape(0);
  return std::vector<v1::TensorSpec>{MakeSpec(call.Tensor("input").dtype(), shape)};
}

Specs AddmmShapes(const Call& call) {
  if (auto status = CheckFloating(call, "mat1", 2); !status.ok()) return status;
  for (const char* other : {"mat2", "self"}) {
    if (auto status = CheckSameType(call, "mat1", other); !status.ok()) return status;
  }
  const v1::TensorSpec& a = call.Tensor("mat1");
  const v1::TensorSpec& b = call.Tensor("mat2");
  if (a.shape_size() != 2 || b.shape_size() != 2 || a.shape(1) != b.shape(0))
    return Mismatch(call, "mat1", "mat2");
  const Shape shape = {a.shape(0), b.shape(1)};
  auto sum = Broadcast(ShapeFrom(call.Tensor("self")), shape);
  if (!sum.ok() || *sum != shape) return Mismatch(call, "self", "mat2");
  return std::vector<v1::TensorSpec>{MakeSpec(a.dtype(), shape)};
}

Specs MatmulShapes(const Call& call) {
  if (auto status = CheckFloating(call, "self", 2); !status.ok()) return status;
  if (auto status = CheckFloating(call, "other", 2); !status.ok()) return status;
  if (auto status = CheckSameType(call, "self", "other"); !status.ok()) return status;
  Shape a = ShapeFrom(call.Tensor("self"));
  Shape b = ShapeFrom(call.Tensor("other"));
  const int64_t rows = a[a.size() - 2];
  const int64_t columns = b.back();
  if (a.back() != b[b.size() - 2]) return Mismatch(call, "self", "other");
  a.resize(a.size() - 2);
  b.resize(b.size() - 2);
  auto shape = Broadcast(a, b);
  if (!shape.ok()) return Mismatch(call, "self", "other");
  shape->push_back(rows);
  shape->push_back(columns);
  return std::vector<v1::TensorSpec>{MakeSpec(call.Tensor("self").dtype(), *shape)};
}

Specs AttentionShapes(const Call& call) {
  if (auto status = CheckFloating(call, "query", 3); !status.ok()) return status;
  Shape q = ShapeFrom(call.Tensor("query"));
  const Shape k = ShapeFrom(call.Tensor("key"));
  const Shape v = ShapeFrom(call.Tensor("value"));
  const size_t rank = q.size();
  for (const char* other : {"key", "value"}) {
    if (auto status = CheckSameType(call, "query", other); !status.ok()) return status;
    if (ShapeFrom(call.Tensor(other)).size() != rank) return Mismatch(call, "query", other);
  }
  for (size_t i = 0; i + 2 < rank; ++i) {
    if (k[i] != q[i]) return Mismatch(call, "query", "key");
    if (v[i] != q[i]) return Mismatch(call, "query", "value");
  }
  if (k[rank - 1] != q[rank - 1]) return Mismatch(call, "query", "key");
  if (v[rank - 2] != k[rank - 2]) return Mismatch(call, "key", "value");
  if (call.Scalar("dropout_p") != 0) {
    return absl::InvalidArgumentError(
        "argument 'dropout_p' must be 0: randomness is an operator (fusion.dropout_mask)");
  }
  if (call.Bool("enable_gqa")) return absl::InvalidArgumentError("argument 'enable_gqa' must be false");
  if (call.Has("attn_mask")) {
    if (call.Bool("is_causal"))
      return absl::InvalidArgumentError("'attn_mask' and 'is_causal' exclude each other");
    Shape scores = q;
    scores.back() = k[rank - 2];
    auto masked = Broadcast(ShapeFrom(call.Tensor("attn_mask")), scores);
    if (!masked.ok() || *masked != scores) return Mismatch(call, "attn_mask", "query");
  }
  q.back() = v.back();
  return std::vector<v1::TensorSpec>{MakeSpec(call.Tensor("query").dtype(), q)};
}

/// The fused kernel never stores the scores: it saves one log-sum-exp a row and computes them again in
/// backward, five products instead of two. A causal mask halves them all.
OperatorCost AttentionCost(const Execution& e) {
  OperatorCost cost;
  const double rows = e.Elements("query") / e.Dimension("query", -1);
  const double share = e.call.Bool("is_causal") ? 0.5 : 1;
  const double scores = rows * e.Dimension("key", -2) * share;
  const double inner = e.Dimension("query", -1) + e.Dimension("value", -1);
  constexpr double kSoftmaxFlops = 5;
  const double inputs = e.Bytes("query") + e.Bytes("key") + e.Bytes("value");
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = scores * (2 * inner + kSoftmaxFlops);
  cost.forward_bytes = inputs + cost.output_bytes;
  cost.saved_bytes = rows * 4;
  if (e.Gradient("query") || e.Gradient("key") || e.Gradient("value")) {
    cost.backward_flops = scores * (5 * inner + kSoftmaxFlops);
    cost.backward_bytes = 2 * inputs + 2 * cost.output_bytes;
  }
  return cost;
}

/// Each operand of a product, where the other one's gradient is of use.
SavedValues SavedFactors(const Execution& e, absl::string_view a, absl::string_view b) {
  SavedValues saved;
  if (e.Gradient(b)) saved.arguments.push_back(a);
  if (e.Gradient(a)) saved.arguments.push_back(b);
  return saved;
}

SavedValues SavedByAttention(const Execution& e) {
  if (!e.Gradient("query") && !e.Gradient("key") && !e.Gradient("value")) return {};
  return {.arguments = {"query", "key", "value"}, .outputs = true};
}

constexpr OperatorRow kRows[] = {
    {.schema = "linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
     .summary = "input x weight^T + bias",
     .kind = OperatorClass::kMatmul,
     .shapes = LinearShapes,
     .cost =
         [](const Execution& e) {
           return ProductCost(e, e.Elements("input") * e.Dimension("weight", 0), "input", "weight", "bias");
         },
     .saves = [](const Execution& e) { return SavedFactors(e, "input", "weight"); }},
    {.schema = "addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
     .summary = "beta self + alpha mat1 x mat2",
     .kind = OperatorClass::kMatmul,
     .shapes = AddmmShapes,
     .cost =
         [](const Execution& e) {
           return ProductCost(e, e.Elements("mat1") * e.Dimension("mat2", 1), "mat1", "mat2", "self");
         },
     .saves = [](const Execution& e) { return SavedFactors(e, "mat1", "mat2"); }},
    {.schema = "matmul(Tensor self, Tensor other) -> Tensor",
     .summary = "batched matrix product",
     .kind = OperatorClass::kMatmul,
     .shapes = MatmulShapes,
     .cost =
         [](const Execution& e) {
           return ProductCost(e, e.OutputElements() * e.Dimension("self", -1), "self", "other", "");
         },
     .saves = [](const Execution& e) { return SavedFactors(e, "self", "other"); }},
    {.schema =
         "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
         "float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
     .summary = "softmax(query x key^T / sqrt(width)) x value",
     .kind = OperatorClass::kMatmul,
     .shapes = AttentionShapes,
     .cost = AttentionCost,
     .saves = SavedByAttention},
};

}  // namespace

absl::Span<const OperatorRow> MatmulRows() { return kRows; }

}  // namespace fusion::graph
