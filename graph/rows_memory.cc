// Operators that move, view or create data without arithmetic on it.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "graph/operator_row.h"
#include "graph/shapes.h"

namespace fusion::graph {
namespace {

using Specs = absl::StatusOr<std::vector<v1::TensorSpec>>;

/// Contiguous input, contiguous output: a view of the same bytes.
OperatorCost AliasCost(const Execution&) { return {}; }

OperatorCost CopyCost(const Execution& e) {
  OperatorCost cost;
  cost.output_bytes = e.OutputBytes();
  cost.forward_bytes = 2 * cost.output_bytes;
  if (e.Gradient("self")) cost.backward_bytes = cost.output_bytes + e.Bytes("self");
  return cost;
}

OperatorCost CreateCost(const Execution& e) {
  OperatorCost cost;
  cost.output_bytes = e.OutputBytes();
  cost.forward_bytes = cost.output_bytes;
  return cost;
}

Specs EmbeddingShapes(const Call& call) {
  const v1::TensorSpec& weight = call.Tensor("weight");
  const v1::TensorSpec& indices = call.Tensor("indices");
  if (auto status = CheckFloating(call, "weight", 2); !status.ok()) return status;
  if (weight.shape_size() != 2 || (indices.dtype() != v1::INT64 && indices.dtype() != v1::INT32)) {
    return Mismatch(call, "weight", "indices");
  }
  if (call.Bool("sparse")) return absl::InvalidArgumentError("argument 'sparse' must be false");
  Shape shape = ShapeFrom(indices);
  shape.push_back(weight.shape(1));
  return std::vector<v1::TensorSpec>{MakeSpec(weight.dtype(), shape)};
}

OperatorCost EmbeddingCost(const Execution& e) {
  OperatorCost cost;
  cost.output_bytes = e.OutputBytes();
  cost.forward_bytes = 2 * cost.output_bytes + e.Bytes("indices");
  // The gradient is dense: zeros, then a sum into the rows that were read.
  if (e.Gradient("weight")) {
    cost.backward_flops = e.OutputElements();
    cost.backward_bytes = e.Bytes("weight") + 3 * cost.output_bytes;
  }
  return cost;
}

Specs ViewAs(const Call& call, absl::string_view sizes) {
  const v1::TensorSpec& self = call.Tensor("self");
  auto shape = ViewShape(ShapeFrom(self), call.Sizes(sizes));
  if (!shape.ok()) return shape.status();
  return std::vector<v1::TensorSpec>{MakeSpec(self.dtype(), *shape)};
}

Specs FlattenShapes(const Call& call) {
  const v1::TensorSpec& self = call.Tensor("self");
  const Shape shape = ShapeFrom(self);
  if (shape.empty()) return std::vector<v1::TensorSpec>{MakeSpec(self.dtype(), {1})};
  auto first = NormalizeAxis(call.Int("start_dim"), shape.size());
  if (!first.ok()) return first.status();
  auto last = NormalizeAxis(call.Int("end_dim"), shape.size());
  if (!last.ok()) return last.status();
  if (*first > *last) {
    return absl::InvalidArgumentError(
        absl::StrCat("argument 'start_dim' ", *first, " comes after 'end_dim' ", *last));
  }
  auto count = CountElements(absl::MakeConstSpan(shape).subspan(*first, *last - *first + 1));
  if (!count.ok()) return count.status();
  if (count->power > 1) {
    return absl::InvalidArgumentError(absl::StrCat("flattening ", ShapeText(shape), " from ", *first, " to ",
                                                   *last, " is quadratic in the batch"));
  }
  Shape flat(shape.begin(), shape.begin() + *first);
  flat.push_back(count->power == 1 ? -count->coefficient : count->coefficient);
  flat.insert(flat.end(), shape.begin() + *last + 1, shape.end());
  return std::vector<v1::TensorSpec>{MakeSpec(self.dtype(), flat)};
}

Specs SameAsSelf(const Call& call) { return std::vector<v1::TensorSpec>{call.Tensor("self")}; }

Specs CastShapes(const Call& call) {
  v1::TensorSpec spec = call.Tensor("self");
  spec.set_dtype(call.Type("dtype"));
  return std::vector<v1::TensorSpec>{spec};
}

Specs TransposeShapes(const Call& call) {
  const v1::TensorSpec& self = call.Tensor("self");
  Shape shape = ShapeFrom(self);
  auto a = NormalizeAxis(call.Int("dim0"), shape.size());
  if (!a.ok()) return a.status();
  auto b = NormalizeAxis(call.Int("dim1"), shape.size());
  if (!b.ok()) return b.status();
  std::swap(shape[*a], shape[*b]);
  return std::vector<v1::TensorSpec>{MakeSpec(self.dtype(), shape)};
}

/// The axis `dim`, which may not be a multiple of the micro-batch: samples are not taken apart.
absl::StatusOr<int> ConstantAxis(const Call& call) {
  const Shape shape = ShapeFrom(call.Tensor("self"));
  auto axis = NormalizeAxis(call.Int("dim"), shape.size());
  if (axis.ok() && shape[*axis] < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("dimension ", *axis, " of ", ShapeText(shape), " depends on the batch"));
  }
  return axis;
}

Specs SplitShapes(const Call& call) {
  auto axis = ConstantAxis(call);
  if (!axis.ok()) return axis.status();
  const v1::AffineInt size = call.Size("split_size");
  if (size.value() <= 0 || size.times_batch() != 0) {
    return absl::InvalidArgumentError("argument 'split_size' must be a positive constant");
  }
  const v1::TensorSpec& self = call.Tensor("self");
  Shape shape = ShapeFrom(self);
  const int64_t whole = shape[*axis];
  constexpr int64_t kMaxParts = 4096;
  if ((whole - 1) / size.value() >= kMaxParts) {
    return absl::InvalidArgumentError(
        absl::StrCat("splits ", whole, " into more than ", kMaxParts, " parts"));
  }
  std::vector<v1::TensorSpec> parts;
  for (int64_t start = 0; start < whole; start += size.value()) {
    shape[*axis] = std::min(size.value(), whole - start);
    parts.push_back(MakeSpec(self.dtype(), shape));
  }
  return parts;
}

Specs SliceShapes(const Call& call) {
  auto axis = ConstantAxis(call);
  if (!axis.ok()) return axis.status();
  const v1::TensorSpec& self = call.Tensor("self");
  Shape shape = ShapeFrom(self);
  const int64_t whole = shape[*axis];
  const auto bound = [&](absl::string_view name, int64_t otherwise) {
    if (!call.Has(name)) return otherwise;
    const int64_t at = call.Size(name).value();
    return std::clamp<int64_t>(at < 0 ? at + whole : at, 0, whole);
  };
  for (const char* name : {"start", "end", "step"}) {
    if (call.Has(name) && call.Size(name).times_batch() != 0) {
      return absl::InvalidArgumentError(absl::StrCat("argument '", name, "' must be a constant"));
    }
  }
  const int64_t step = call.Size("step").value();
  const int64_t start = bound("start", 0);
  const int64_t end = bound("end", whole);
  if (step <= 0 || end <= start) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice from ", start, " to ", end, " by ", step, " is empty or runs backwards"));
  }
  shape[*axis] = (end - start - 1) / step + 1;
  return std::vector<v1::TensorSpec>{MakeSpec(self.dtype(), shape)};
}

Specs Created(const Call& call, absl::string_view sizes, v1::DataType dtype) {
  Shape shape;
  for (const v1::AffineInt& size : call.Sizes(sizes)) {
    auto d = DimensionFrom(size);
    if (!d.ok()) return d.status();
    shape.push_back(*d);
  }
  return std::vector<v1::TensorSpec>{MakeSpec(dtype, shape)};
}

Specs ArangeShapes(const Call& call) {
  if (!call.HasInt("end")) return absl::InvalidArgumentError("argument 'end' must be an int");
  auto d = DimensionFrom(call.Size("end"));
  if (!d.ok()) return d.status();
  return std::vector<v1::TensorSpec>{MakeSpec(call.Has("dtype") ? call.Type("dtype") : v1::INT64, {*d})};
}

Specs TriuShapes(const Call& call) {
  if (call.Tensor("self").shape_size() < 2)
    return absl::InvalidArgumentError("argument 'self' must be a matrix");
  return SameAsSelf(call);
}

Specs DropoutMaskShapes(const Call& call) {
  const double p = call.Scalar("p");
  if (!(p >= 0 && p < 1))
    return absl::InvalidArgumentError(absl::StrCat("argument 'p' must be in [0, 1), not ", p));
  return Created(call, "shape", v1::FLOAT32);
}

/// Of ones and zeros.
Specs FillShapes(const Call& call) {
  return Created(call, "size", call.Has("dtype") ? call.Type("dtype") : v1::FLOAT32);
}

constexpr OperatorRow kRows[] = {
    {.schema =
         "embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, "
         "bool sparse=False) -> Tensor",
     .summary = "rows of weight; row padding_idx gets no gradient",
     .kind = OperatorClass::kMemory,
     .shapes = EmbeddingShapes,
     .cost = EmbeddingCost,
     .saves =
         [](const Execution& e) {
           return e.Gradient("weight") ? SavedValues{.arguments = {"indices"}} : SavedValues();
         }},
    {.schema = "view(Tensor self, SymInt[] size) -> Tensor",
     .summary = "the same bytes in another shape",
     .kind = OperatorClass::kMemory,
     .aliases = true,
     .shapes = [](const Call& call) { return ViewAs(call, "size"); },
     .cost = AliasCost},
    {.schema = "reshape(Tensor self, SymInt[] shape) -> Tensor",
     .summary = "another shape",
     .kind = OperatorClass::kMemory,
     .aliases = true,
     .shapes = [](const Call& call) { return ViewAs(call, "shape"); },
     .cost = AliasCost},
    {.schema = "flatten.using_ints(Tensor self, int start_dim=0, int end_dim=-1) -> Tensor",
     .summary = "dimensions from start_dim to end_dim as one",
     .kind = OperatorClass::kMemory,
     .aliases = true,
     .shapes = FlattenShapes,
     .cost = AliasCost},
    {.schema = "contiguous(Tensor self, *, MemoryFormat memory_format=None) -> Tensor",
     .summary = "nothing: values are contiguous",
     .kind = OperatorClass::kMemory,
     .aliases = true,
     .shapes = SameAsSelf,
     .cost = AliasCost},
    {.schema = "clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
     .summary = "a copy",
     .kind = OperatorClass::kMemory,
     .shapes = SameAsSelf,
     .cost = CopyCost},
    {.schema =
         "to.dtype(Tensor self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? "
         "memory_format=None) -> Tensor",
     .summary = "in another type",
     .kind = OperatorClass::kMemory,
     .shapes = CastShapes,
     .cost = CopyCost},
    {.schema = "transpose.int(Tensor self, int dim0, int dim1) -> Tensor",
     .summary = "two dimensions swapped",
     .kind = OperatorClass::kMemory,
     .shapes = TransposeShapes,
     .cost = CopyCost},
    {.schema = "split.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]",
     .summary = "parts of split_size along dim",
     .kind = OperatorClass::kMemory,
     .shapes = SplitShapes,
     .cost = CopyCost},
    {.schema = "slice.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> "
               "Tensor",
     .summary = "a part along dim",
     .kind = OperatorClass::kMemory,
     .shapes = SliceShapes,
     .cost = CopyCost},
    {.schema = "arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
               "bool? pin_memory=None) -> Tensor",
     .summary = "0, 1, … end - 1",
     .kind = OperatorClass::kMemory,
     .differentiable = false,
     .shapes = ArangeShapes,
     .cost = CreateCost},
    {.schema = "ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
               "bool? pin_memory=None) -> Tensor",
     .summary = "ones",
     .kind = OperatorClass::kMemory,
     .differentiable = false,
     .shapes = FillShapes,
     .cost = CreateCost},
    {.schema = "zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
               "bool? pin_memory=None) -> Tensor",
     .summary = "zeros",
     .kind = OperatorClass::kMemory,
     .differentiable = false,
     .shapes = FillShapes,
     .cost = CreateCost},
    {.schema = "triu(Tensor self, SymInt diagonal=0) -> Tensor",
     .summary = "the upper triangle",
     .kind = OperatorClass::kMemory,
     .shapes = TriuShapes,
     .cost = CopyCost},
    {.schema = "fusion::dropout_mask(SymInt[] shape, float p, Key key, Training training) -> Tensor",
     .summary = "0 with probability p, else 1 / (1 - p), drawn by position from (seed, step, micro-batch, "
                "operator); "
                "ones when evaluating",
     .kind = OperatorClass::kMemory,
     .differentiable = false,
     .shapes = DropoutMaskShapes,
     .cost = CreateCost},
};

}  // namespace

absl::Span<const OperatorRow> MemoryRows() { return kRows; }

}  // namespace fusion::graph
