#include "graph/shapes.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fusion::graph {

Shape ShapeFrom(const v1::TensorSpec& spec) { return {spec.shape().begin(), spec.shape().end()}; }

v1::TensorSpec MakeSpec(v1::DataType dtype, absl::Span<const int64_t> shape) {
  v1::TensorSpec spec;
  spec.set_dtype(dtype);
  spec.mutable_shape()->Add(shape.begin(), shape.end());
  return spec;
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ", ",
                                    [](std::string* out, int64_t d) {
                                      if (d >= 0) {
                                        absl::StrAppend(out, d);
                                      } else if (d == -1) {
                                        absl::StrAppend(out, "batch");
                                      } else {
                                        absl::StrAppend(out, -static_cast<double>(d), " x batch");
                                      }
                                    }),
                      "]");
}

std::string SpecText(const v1::TensorSpec& spec) {
  return absl::StrCat(TypeText(spec.dtype()), ShapeText(ShapeFrom(spec)));
}

std::string TypeText(v1::DataType dtype) {
  const std::string name = v1::DataType_Name(dtype);
  return name.empty() ? absl::StrCat("dtype ", static_cast<int>(dtype)) : absl::AsciiStrToLower(name);
}

int64_t BytesPerElement(v1::DataType dtype) {
  switch (dtype) {
    case v1::FLOAT64:
    case v1::INT64:
      return 8;
    case v1::FLOAT32:
    case v1::INT32:
      return 4;
    case v1::FLOAT16:
    case v1::BFLOAT16:
      return 2;
    case v1::BOOL:
    case v1::UINT8:
      return 1;
    default:
      return 0;
  }
}

bool IsFloating(v1::DataType dtype) {
  return dtype == v1::FLOAT32 || dtype == v1::FLOAT16 || dtype == v1::BFLOAT16 || dtype == v1::FLOAT64;
}

absl::StatusOr<ElementCount> CountElements(absl::Span<const int64_t> shape) {
  ElementCount count;
  for (const int64_t d : shape) {
    if (d == 0) return absl::InvalidArgumentError(absl::StrCat("shape ", ShapeText(shape), " is empty"));
    if (d > kMaxElements || d < -kMaxElements || count.coefficient > kMaxElements / std::abs(d)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", ShapeText(shape), " has more than ", kMaxElements, " elements a sample"));
    }
    count.coefficient *= std::abs(d);
    count.power += d < 0 ? 1 : 0;
  }
  return count;
}

absl::StatusOr<int64_t> DimensionFrom(const v1::AffineInt& size) {
  if (size.times_batch() == 0 && size.value() > 0 && size.value() <= kMaxElements) return size.value();
  if (size.value() == 0 && size.times_batch() > 0 && size.times_batch() <= kMaxElements)
    return -size.times_batch();
  return absl::InvalidArgumentError(
      absl::StrCat("size ", size.value(), " + ", size.times_batch(),
                   " x batch is neither a positive constant nor a multiple of the batch"));
}

absl::StatusOr<Shape> Broadcast(absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  Shape result(std::max(a.size(), b.size()));
  for (size_t i = 0; i < result.size(); ++i) {  // from the last dimension
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("shapes ", ShapeText(a), " and ", ShapeText(b), " do not broadcast"));
    }
    result[result.size() - 1 - i] = x == 1 ? y : x;
  }
  return result;
}

absl::StatusOr<int> NormalizeAxis(int64_t index, size_t rank) {
  const auto dimensions = static_cast<int64_t>(rank);
  if (index < -dimensions || index >= dimensions) {
    return absl::InvalidArgumentError(absl::StrCat("dimension ", index, " of a tensor with ", rank));
  }
  return static_cast<int>(index < 0 ? index + dimensions : index);
}

absl::StatusOr<Shape> ViewShape(absl::Span<const int64_t> from, const std::vector<v1::AffineInt>& sizes) {
  auto total = CountElements(from);
  if (!total.ok()) return total.status();
  Shape shape;
  int inferred = -1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].value() == -1 && sizes[i].times_batch() == 0) {
      if (inferred >= 0) return absl::InvalidArgumentError("two sizes of a view are -1");
      inferred = static_cast<int>(i);
      shape.push_back(1);
      continue;
    }
    auto dimension = DimensionFrom(sizes[i]);
    if (!dimension.ok()) return dimension.status();
    shape.push_back(*dimension);
  }
  auto known = CountElements(shape);
  if (!known.ok()) return known.status();
  const int missing_power = total->power - known->power;
  const bool divides = total->coefficient % known->coefficient == 0;
  if (inferred >= 0 && divides && (missing_power == 0 || missing_power == 1)) {
    const int64_t d = total->coefficient / known->coefficient;
    shape[inferred] = missing_power == 1 ? -d : d;
    return shape;
  }
  if (inferred >= 0 || *known != *total) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", ShapeText(from), " cannot be viewed as ", ShapeText(shape)));
  }
  return shape;
}

}  // namespace fusion::graph
