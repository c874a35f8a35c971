#include "graph/autocast.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "graph/builder.h"
#include "graph/operator_row.h"
#include "graph/registry.h"

namespace fusion::graph {
namespace {

using Names = std::set<absl::string_view>;

/// aten/src/ATen/autocast_mode.h: AT_FORALL_LOWER_PRECISION_FP.
const Names& LowerPrecision() {
  static const auto& names = *new Names{"aten._convolution",
                                        "aten.conv1d",
                                        "aten.conv2d",
                                        "aten.conv3d",
                                        "aten.conv_tbc",
                                        "aten.conv_transpose1d",
                                        "aten.conv_transpose2d",
                                        "aten.conv_transpose3d",
                                        "aten.convolution",
                                        "aten.prelu",
                                        "aten.addmm",
                                        "aten.addmv",
                                        "aten.addr",
                                        "aten.matmul",
                                        "aten.einsum",
                                        "aten.mm",
                                        "aten.mv",
                                        "aten.linalg_vecdot",
                                        "aten.linear",
                                        "aten.addbmm",
                                        "aten.baddbmm",
                                        "aten.bmm",
                                        "aten.chain_matmul",
                                        "aten.linalg_multi_dot",
                                        "aten.scaled_dot_product_attention"};
  return names;
}

/// AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE, and what is said in the header.
const Names& HigherPrecision() {
  static const auto& names = *new Names{
      "aten.acos",
      "aten.asin",
      "aten.cosh",
      "aten.erfinv",
      "aten.exp",
      "aten.expm1",
      "aten.log",
      "aten.log10",
      "aten.log2",
      "aten.log1p",
      "aten.reciprocal",
      "aten.rsqrt",
      "aten.sinh",
      "aten.tan",
      "aten.pow",
      "aten.softplus",
      "aten.layer_norm",
      "aten.native_layer_norm",
      "aten.group_norm",
      "aten.frobenius_norm",
      "aten.nuclear_norm",
      "aten.cosine_similarity",
      "aten.poisson_nll_loss",
      "aten.cosine_embedding_loss",
      "aten.cross_entropy_loss",
      "aten.nll_loss",
      "aten.nll_loss2d",
      "aten.hinge_embedding_loss",
      "aten.kl_div",
      "aten.l1_loss",
      "aten.smooth_l1_loss",
      "aten.huber_loss",
      "aten.mse_loss",
      "aten.margin_ranking_loss",
      "aten.multilabel_margin_loss",
      "aten.soft_margin_loss",
      "aten.triplet_margin_loss",
      "aten.multi_margin_loss",
      "aten.binary_cross_entropy_with_logits",
      "aten.dist",
      "aten.pdist",
      "aten.cdist",
      "aten.renorm",
      "aten.logsumexp",
      "aten.prod",
      "aten.softmax",
      "aten.log_softmax",
      "aten.cumprod",
      "aten.cumsum",
      "aten.linalg_vector_norm",
      "aten.linalg_matrix_norm",
      "aten.norm",
      "aten.sum",
      "aten.mean",
      // Its fill of the lowest float has no bfloat16.
      "aten.masked_fill",
  };
  return names;
}

bool IsMixed(v1::DataType dtype) { return dtype == v1::FLOAT32 || dtype == v1::BFLOAT16; }

class Caster {
 public:
  explicit Caster(const v1::Graph& graph) : graph_(graph) {}

  absl::StatusOr<v1::Graph> Run() {
    result_.set_name(graph_.name());
    *result_.mutable_loss() = graph_.loss();
    for (const v1::Operator& op : graph_.operators()) {
      if (op.kind() == v1::Operator::PLACEHOLDER || op.kind() == v1::Operator::VARIABLE) {
        Add(op);
      } else if (absl::Status status = AddCast(op); !status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat("precision bf16: operator '", op.name(), "': ", status.message()));
      }
    }
    if (absl::Status status = ValidateGraph(result_); !status.ok()) return status;
    return std::move(result_);
  }

 private:
  template <typename Visit>
  static void ForEachReference(v1::Operator& op, Visit visit) {
    const auto argument = [&visit](v1::Argument& a) {
      if (a.has_value()) visit(*a.mutable_value());
      if (!a.has_values()) return;
      for (v1::ValueRef& item : *a.mutable_values()->mutable_items()) visit(item);
    };
    for (v1::Argument& a : *op.mutable_args()) argument(a);
    for (v1::NamedArgument& a : *op.mutable_kwargs()) argument(*a.mutable_argument());
  }

  /// The operator over the values that it shall read, and its results' types.
  absl::Status AddCast(v1::Operator op) {
    const CastRule rule = op.name() == graph_.loss().operator_() ? CastRule::kHigher : CastRuleOf(op);
    bool lower = true;  // all that it reads is
    ForEachReference(op,
                     [&](const v1::ValueRef& ref) { lower = lower && SpecOf(ref).dtype() != v1::FLOAT32; });
    bool first = true;
    bool parametric = false;  // what read a cast variable reads the cast now
    ForEachReference(op, [&](v1::ValueRef& ref) {
      const v1::DataType now = SpecOf(ref).dtype();
      v1::DataType wanted = IsMixed(now) ? v1::FLOAT32 : now;
      if (IsMixed(now) && (rule == CastRule::kLower || (rule == CastRule::kPromote && lower))) {
        wanted = v1::BFLOAT16;
      }
      if (rule == CastRule::kFirst && std::exchange(first, false)) wanted = now;
      if (rule == CastRule::kKeep) wanted = original_.at(ref.operator_()).outputs(ref.index()).dtype();
      if (now != wanted) ref = CastOf(ref, wanted, op.name());
      parametric =
          parametric || result_.operators(index_.at(ref.operator_())).kind() == v1::Operator::VARIABLE;
    });
    op.set_kind(parametric ? v1::Operator::PARAMETRIC : v1::Operator::NON_PARAMETRIC);
    const RegisteredOperator* entry = FindRegistered(op);
    if (entry != nullptr) {
      auto outputs = InferOutputs(*entry, op, [this](const v1::ValueRef& ref) {
        return absl::StatusOr<const v1::TensorSpec*>(&SpecOf(ref));
      });
      if (!outputs.ok()) return outputs.status();
      original_[op.name()] = op;
      op.mutable_outputs()->Assign(outputs->begin(), outputs->end());
    }
    Add(op);
    return absl::OkStatus();
  }

  v1::ValueRef CastOf(const v1::ValueRef& value, v1::DataType dtype, const std::string& reader) {
    const v1::Operator& source = result_.operators(index_.at(value.operator_()));
    const bool variable = source.kind() == v1::Operator::VARIABLE;
    std::string name =
        variable ? absl::StrCat(reader, ".cast.", next_cast_[reader]++)
                 : absl::StrCat(value.operator_(), value.index() > 0 ? absl::StrCat(".", value.index()) : "",
                                dtype == v1::BFLOAT16 ? ".bf16" : ".fp32");
    v1::ValueRef cast;
    cast.set_operator_(name);
    if (!variable && index_.contains(name)) return cast;
    v1::Operator op;
    op.set_name(std::move(name));
    op.set_kind(variable ? v1::Operator::PARAMETRIC : v1::Operator::NON_PARAMETRIC);
    op.set_type("aten.to");
    op.set_overload("dtype");
    *op.add_args() = Read(value);
    *op.add_args() = Type(dtype);
    v1::TensorSpec& spec = *op.add_outputs();
    spec = SpecOf(value);
    spec.set_dtype(dtype);
    Add(op);
    return cast;
  }

  void Add(const v1::Operator& op) {
    original_.try_emplace(op.name(), op);
    index_[op.name()] = result_.operators_size();
    *result_.add_operators() = op;
  }

  const v1::TensorSpec& SpecOf(const v1::ValueRef& ref) const {
    return result_.operators(index_.at(ref.operator_())).outputs(ref.index());
  }

  const v1::Graph& graph_;
  v1::Graph result_;
  std::map<std::string, int> index_;              ///< in result_
  std::map<std::string, v1::Operator> original_;  ///< with the results it had
  std::map<std::string, int> next_cast_;          ///< by reader
};

}  // namespace

CastRule CastRuleOf(const v1::Operator& op) {
  if (FindRegistered(op) == nullptr) return CastRule::kKeep;
  if (LowerPrecision().contains(op.type())) return CastRule::kLower;
  if (op.type() == "aten.batch_norm") return CastRule::kFirst;
  return HigherPrecision().contains(op.type()) ? CastRule::kHigher : CastRule::kPromote;
}

absl::StatusOr<v1::Graph> Autocast(const v1::Graph& graph) {
  if (absl::Status status = ValidateGraph(graph); !status.ok()) return status;
  return Caster(graph).Run();
}

absl::StatusOr<v1::Graph> ApplyPrecision(v1::Graph graph, const v1alpha1::Training& training) {
  if (training.precision() != v1alpha1::Training::bf16) return graph;
  return Autocast(graph);
}

}  // namespace fusion::graph
