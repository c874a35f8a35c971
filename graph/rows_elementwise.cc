// Operators that compute each element on its own.
#include "absl/strings/str_cat.h"
#include "graph/operator_row.h"
#include "graph/shapes.h"

namespace fusion::graph {
namespace {

using Specs = absl::StatusOr<std::vector<v1::TensorSpec>>;

/// `forward` and `backward` operations an element. Backward reads the cotangent and, where `reads_saved`, the
/// input or the output, which are kept anyway.
OperatorCost UnaryCost(const Execution& e, absl::string_view argument, double forward, double backward,
                       bool reads_saved) {
  OperatorCost cost;
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = forward * e.OutputElements();
  cost.forward_bytes = e.Bytes(argument) + cost.output_bytes;
  if (e.Gradient(argument)) {
    cost.backward_flops = backward * e.OutputElements();
    cost.backward_bytes = (reads_saved ? 3 : 2) * cost.output_bytes;
  }
  return cost;
}

Specs BinaryShapes(const Call& call) {
  if (auto status = CheckFloating(call, "self"); !status.ok()) return status;
  if (auto status = CheckSameType(call, "self", "other"); !status.ok()) return status;
  auto shape = Broadcast(ShapeFrom(call.Tensor("self")), ShapeFrom(call.Tensor("other")));
  if (!shape.ok()) return shape.status();
  return std::vector<v1::TensorSpec>{MakeSpec(call.Tensor("self").dtype(), *shape)};
}

/// `product`: each operand's gradient is the cotangent times the other one.
OperatorCost BinaryCost(const Execution& e, bool product) {
  OperatorCost cost;
  cost.output_bytes = e.OutputBytes();
  cost.forward_flops = e.OutputElements();
  cost.forward_bytes = e.Bytes("self") + e.Bytes("other") + cost.output_bytes;
  for (const char* argument : {"self", "other"}) {
    if (!e.Gradient(argument)) continue;
    // A sum hands its cotangent on, and reduces it where the operand was broadcast.
    if (product || e.Elements(argument) < e.OutputElements()) cost.backward_flops += e.OutputElements();
    cost.backward_bytes += cost.output_bytes + e.Bytes(argument) + (product ? cost.output_bytes : 0);
  }
  return cost;
}

Specs GeluShapes(const Call& call) {
  const std::string& approximate = call.String("approximate");
  if (approximate != "none" && approximate != "tanh") {
    return absl::InvalidArgumentError(
        absl::StrCat("argument 'approximate' must be 'none' or 'tanh', not '", approximate, "'"));
  }
  return LikeSelf(call);
}

Specs MaskedFillShapes(const Call& call) {
  if (auto status = CheckFloating(call, "self"); !status.ok()) return status;
  const v1::TensorSpec& mask = call.Tensor("mask");
  const Shape self = ShapeFrom(call.Tensor("self"));
  auto shape = Broadcast(self, ShapeFrom(mask));
  if (mask.dtype() != v1::BOOL || !shape.ok() || *shape != self) return Mismatch(call, "self", "mask");
  return std::vector<v1::TensorSpec>{call.Tensor("self")};
}

Specs CodecShapes(const Call& call) {
  const v1::TensorSpec& value = call.Tensor("value");
  if ((value.dtype() != v1::FLOAT32 && value.dtype() != v1::BFLOAT16) || value.shape().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "argument 'value' must be float32 or bfloat16 with at least 1 dimension, not ", SpecText(value)));
  }
  if (call.String("codec").empty()) return absl::InvalidArgumentError("argument 'codec' must not be empty");
  return std::vector<v1::TensorSpec>{value};
}

/// The quotient needs both operands for the divisor's gradient, the divisor alone for its own.
SavedValues SavedByQuotient(const Execution& e) {
  SavedValues saved;
  if (e.Gradient("other")) saved.arguments.push_back("self");
  if (e.Gradient("self") || e.Gradient("other")) saved.arguments.push_back("other");
  return saved;
}

Specs EqualShapes(const Call& call) {
  const v1::TensorSpec& self = call.Tensor("self");
  return std::vector<v1::TensorSpec>{MakeSpec(v1::BOOL, ShapeFrom(self))};
}

SavedValues SavedInput(const Execution& e) {
  return e.Gradient("self") ? SavedValues{.arguments = {"self"}} : SavedValues();
}

SavedValues SavedOutput(const Execution& e) { return {.outputs = e.Gradient("self")}; }

constexpr OperatorRow kRows[] = {
    {.schema = "gelu(Tensor self, *, str approximate='none') -> Tensor",
     .summary = "x P(X <= x); 'tanh' is Hugging Face's gelu_new",
     .shapes = GeluShapes,
     .cost = [](const Execution& e) { return UnaryCost(e, "self", 12, 24, true); },
     .saves = SavedInput},
    {.schema = "relu(Tensor self) -> Tensor",
     .summary = "max(x, 0)",
     .shapes = LikeSelf,
     .cost = [](const Execution& e) { return UnaryCost(e, "self", 1, 1, true); },
     .saves = SavedOutput},
    {.schema = "tanh(Tensor self) -> Tensor",
     .summary = "tanh(x)",
     .shapes = LikeSelf,
     .cost = [](const Execution& e) { return UnaryCost(e, "self", 10, 3, true); },
     .saves = SavedOutput},
    {.schema = "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
     .summary = "self + alpha other, broadcast",
     .shapes = BinaryShapes,
     .cost = [](const Execution& e) { return BinaryCost(e, false); }},
    {.schema = "mul.Tensor(Tensor self, Tensor other) -> Tensor",
     .summary = "self x other, broadcast",
     .shapes = BinaryShapes,
     .cost = [](const Execution& e) { return BinaryCost(e, true); },
     .saves =
         [](const Execution& e) {
           SavedValues saved;
           if (e.Gradient("other")) saved.arguments.push_back("self");
           if (e.Gradient("self")) saved.arguments.push_back("other");
           return saved;
         }},
    {.schema = "mul.Scalar(Tensor self, Scalar other) -> Tensor",
     .summary = "self x a constant",
     .shapes = LikeSelf,
     .cost = [](const Execution& e) { return UnaryCost(e, "self", 1, 1, false); }},
    {.schema = "div.Tensor(Tensor self, Tensor other) -> Tensor",
     .summary = "self / other, broadcast",
     .shapes = BinaryShapes,
     .cost = [](const Execution& e) { return BinaryCost(e, true); },
     .saves = SavedByQuotient},
    {.schema = "clamp_min(Tensor self, Scalar min) -> Tensor",
     .summary = "max(self, min)",
     .shapes = LikeSelf,
     .cost = [](const Execution& e) { return UnaryCost(e, "self", 1, 1, true); },
     .saves = SavedInput},
    {.schema = "eq.Scalar(Tensor self, Scalar other) -> Tensor",
     .summary = "where self is a constant",
     .differentiable = false,
     .shapes = EqualShapes,
     .cost = [](const Execution& e) { return UnaryCost(e, "self", 1, 0, false); }},
    {.schema = "masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor",
     .summary = "value where mask, else self",
     .shapes = MaskedFillShapes,
     .cost = [](const Execution& e) { return UnaryCost(e, "self", 1, 1, false); },
     .saves =
         [](const Execution& e) {
           return e.Gradient("self") ? SavedValues{.arguments = {"mask"}} : SavedValues();
         }},
    {.schema = "fusion::codec(Tensor value, str codec, bool per_sample=False) -> Tensor",
     .summary =
         "what arrives when value is sent with a codec; the gradient likewise (one-process twin of a link)",
     .shapes = CodecShapes,
     .cost = [](const Execution& e) { return UnaryCost(e, "value", 8, 8, false); }},
};

}  // namespace

absl::Span<const OperatorRow> ElementwiseRows() { return kRows; }

}  // namespace fusion::graph
