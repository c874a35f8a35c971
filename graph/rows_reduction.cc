// Normalisations and losses.
#include "absl/strings/str_cat.h"
#include "graph/operator_row.h"
#include "graph/shapes.h"

namespace fusion::graph {
namespace {

using Specs = absl::StatusOr<std::vector<v1::TensorSpec>>;

Specs LayerNormShapes(const Call& call) {
  if (auto status = CheckFloating(call, "input", 1); !status.ok()) return status;
  const Shape shape = ShapeFrom(call.Tensor("input"));
  Shape tail;
  for (const v1::AffineInt& size : call.Sizes("normalized_shape")) {
    auto d = DimensionFrom(size);
    if (!d.ok()) return d.status();
    tail.push_back(*d);
  }
  if (tail.empty() || tail.size() > shape.size() || !std::equal(tail.rbegin(), tail.rend(), shape.rbegin())) {
    return absl::InvalidArgumentError(
        absl::StrCat("normalized_shape ", ShapeText(tail), " is not the end of ", ShapeText(shape)));
  }
  for (const char* name : {"weight", "bias"}) {
    if (!call.Has(name)) continue;
    if (auto status = CheckSameType(call, "input", name); !status.ok()) return status;
    if (ShapeFrom(call.Tensor(name)) != tail) return Mismatch(call, "input", name);
  }
  return std::vector<v1::TensorSpec>{call.Tensor("input")};
}

OperatorCost LayerNormCost(const Execution& e) {
  OperatorCost cost;
  const double elements = e.OutputElements();
  double row = 1;
  const auto tail = static_cast<int>(e.call.Sizes("normalized_shape").size());
  for (int axis = 1; axis <= tail; ++axis) row *= e.Dimension("input", -axis);
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = 8 * elements;
  cost.forward_bytes = e.Bytes("input") + cost.output_bytes;
  cost.saved_bytes = elements / row * 2 * 4;  // mean and 1 / standard deviation of each row
  if (e.Gradient("input") || e.Gradient("weight") || e.Gradient("bias")) {
    cost.backward_flops = 14 * elements;
    cost.backward_bytes = 3 * e.Bytes("input");
  }
  return cost;
}

Specs SoftmaxShapes(const Call& call) {
  if (call.Has("dtype")) return absl::InvalidArgumentError("argument 'dtype' must be none");
  auto axis = NormalizeAxis(call.Int("dim"), call.Tensor("self").shape_size());
  if (!axis.ok()) return axis.status();
  return LikeSelf(call);
}

OperatorCost SoftmaxCost(const Execution& e) {
  OperatorCost cost;
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = 5 * e.OutputElements();
  cost.forward_bytes = 2 * cost.output_bytes;
  if (e.Gradient("self")) {
    cost.backward_flops = 4 * e.OutputElements();
    cost.backward_bytes = 3 * cost.output_bytes;
  }
  return cost;
}

/// The shape without the dimensions of argument 'dim'; all of them where it is none.
Specs ReducedShapes(const Call& call) {
  if (auto status = CheckFloating(call, "self"); !status.ok()) return status;
  if (call.Has("dtype")) return absl::InvalidArgumentError("argument 'dtype' must be none");
  const Shape shape = ShapeFrom(call.Tensor("self"));
  std::vector<bool> reduced(shape.size(), !call.Has("dim") || call.Sizes("dim").empty());
  if (call.Has("dim")) {
    for (const v1::AffineInt& dim : call.Sizes("dim")) {
      if (dim.times_batch() != 0) return absl::InvalidArgumentError("argument 'dim' must be constants");
      auto axis = NormalizeAxis(dim.value(), shape.size());
      if (!axis.ok()) return axis.status();
      if (reduced[*axis]) {
        return absl::InvalidArgumentError(absl::StrCat("argument 'dim' has dimension ", *axis, " twice"));
      }
      reduced[*axis] = true;
    }
  }
  Shape kept;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!reduced[i]) kept.push_back(shape[i]);
    if (reduced[i] && call.Bool("keepdim")) kept.push_back(1);
  }
  return std::vector<v1::TensorSpec>{MakeSpec(call.Tensor("self").dtype(), kept)};
}

/// `forward` and `backward` operations an element of the input.
OperatorCost ReducedCost(const Execution& e, double forward, double backward) {
  OperatorCost cost;
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = forward * e.Elements("self");
  cost.forward_bytes = e.Bytes("self") + cost.output_bytes;
  if (e.Gradient("self")) {
    cost.backward_flops = backward * e.Elements("self");
    cost.backward_bytes = (backward > 0 ? 2 : 1) * e.Bytes("self") + cost.output_bytes;
  }
  return cost;
}

absl::Status CheckReduction(const Call& call) {
  const int64_t reduction = call.Int("reduction");
  if (reduction == 1 || reduction == 2) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("argument 'reduction' must be 1 (mean) or 2 (sum), not ", reduction));
}

Specs CrossEntropyShapes(const Call& call) {
  if (auto status = CheckReduction(call); !status.ok()) return status;
  if (auto status = CheckFloating(call, "self", 2); !status.ok()) return status;
  Shape classes_out = ShapeFrom(call.Tensor("self"));
  const int64_t classes = classes_out[1];
  classes_out.erase(classes_out.begin() + 1);
  const v1::TensorSpec& target = call.Tensor("target");
  if (target.dtype() != v1::INT64 || ShapeFrom(target) != classes_out)
    return Mismatch(call, "self", "target");
  if (call.Has("weight") && ShapeFrom(call.Tensor("weight")) != Shape{classes})
    return Mismatch(call, "self", "weight");
  return std::vector<v1::TensorSpec>{MakeSpec(call.Tensor("self").dtype(), {})};
}

OperatorCost CrossEntropyCost(const Execution& e) {
  OperatorCost cost;
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = 5 * e.Elements("self");
  cost.forward_bytes = 2 * e.Bytes("self") + e.Bytes("target");
  cost.saved_bytes = e.Bytes("self");  // the log-probabilities
  if (e.Gradient("self")) {
    cost.backward_flops = 4 * e.Elements("self");
    cost.backward_bytes = 4 * e.Bytes("self");
  }
  return cost;
}

Specs SquaredErrorShapes(const Call& call) {
  if (auto status = CheckReduction(call); !status.ok()) return status;
  if (auto status = CheckFloating(call, "self"); !status.ok()) return status;
  if (auto status = CheckSameType(call, "self", "target"); !status.ok()) return status;
  if (ShapeFrom(call.Tensor("self")) != ShapeFrom(call.Tensor("target")))
    return Mismatch(call, "self", "target");
  return std::vector<v1::TensorSpec>{MakeSpec(call.Tensor("self").dtype(), {})};
}

OperatorCost SquaredErrorCost(const Execution& e) {
  OperatorCost cost;
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = 3 * e.Elements("self");
  cost.forward_bytes = e.Bytes("self") + e.Bytes("target");
  if (e.Gradient("self")) {
    cost.backward_flops = 3 * e.Elements("self");
    cost.backward_bytes = 3 * e.Bytes("self");
  }
  return cost;
}

constexpr OperatorRow kRows[] = {
    {.schema = "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
               "float eps=1e-05, bool cudnn_enable=True) -> Tensor",
     .summary = "normalises the last dimensions",
     .kind = OperatorClass::kReduction,
     .shapes = LayerNormShapes,
     .cost = LayerNormCost,
     .saves =
         [](const Execution& e) {
           const bool any = e.Gradient("input") || e.Gradient("weight") || e.Gradient("bias");
           return any ? SavedValues{.arguments = {"input"}} : SavedValues();
         }},
    {.schema = "softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor",
     .summary = "exp(self) / its sum along dim",
     .kind = OperatorClass::kReduction,
     .shapes = SoftmaxShapes,
     .cost = SoftmaxCost,
     .saves = [](const Execution& e) { return SavedValues{.outputs = e.Gradient("self")}; }},
    {.schema = "sum.dim_IntList(Tensor self, int[]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> "
               "Tensor",
     .summary = "sum along dim",
     .kind = OperatorClass::kReduction,
     .shapes = ReducedShapes,
     .cost = [](const Execution& e) { return ReducedCost(e, 1, 0); }},
    {.schema = "mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
     .summary = "average along dim",
     .kind = OperatorClass::kReduction,
     .shapes = ReducedShapes,
     .cost = [](const Execution& e) { return ReducedCost(e, 1, 1); }},
    {.schema = "linalg_vector_norm(Tensor self, Scalar ord=2, int[]? dim=None, bool keepdim=False, *, "
               "ScalarType? dtype=None) -> Tensor",
     .summary = "length of the vectors along dim",
     .kind = OperatorClass::kReduction,
     .shapes = ReducedShapes,
     .cost = [](const Execution& e) { return ReducedCost(e, 2, 2); },
     .saves =
         [](const Execution& e) {
           return e.Gradient("self") ? SavedValues{.arguments = {"self"}, .outputs = true} : SavedValues();
         }},
    {.schema = "cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, "
               "SymInt ignore_index=-100, float label_smoothing=0.0) -> Tensor",
     .summary = "-log softmax(self) at the target class, over the targets that are not ignore_index",
     .kind = OperatorClass::kReduction,
     .shapes = CrossEntropyShapes,
     .cost = CrossEntropyCost,
     .saves =
         [](const Execution& e) {
           return e.Gradient("self") ? SavedValues{.arguments = {"target"}} : SavedValues();
         }},
    {.schema = "mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor",
     .summary = "(self - target)^2",
     .kind = OperatorClass::kReduction,
     .shapes = SquaredErrorShapes,
     .cost = SquaredErrorCost,
     .saves =
         [](const Execution& e) {
           return e.Gradient("self") ? SavedValues{.arguments = {"self", "target"}} : SavedValues();
         }},
};

}  // namespace

absl::Span<const OperatorRow> ReductionRows() { return kRows; }

}  // namespace fusion::graph
