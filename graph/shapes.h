// Arithmetic on shapes whose dimensions may be multiples of the micro-batch (graph.proto: d < 0 stands for -d
// samples). Such a dimension is equal to another one only if both are the same multiple: a rule must hold for
// every micro-batch size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fusion/graph/v1/graph.pb.h"
#include "graph/registry.h"

namespace fusion::graph {

using Shape = std::vector<int64_t>;

/// Most elements that a tensor may have per sample; larger ones are refused before any arithmetic overflows.
inline constexpr int64_t kMaxElements = int64_t{1} << 44;

Shape ShapeFrom(const v1::TensorSpec& spec);
v1::TensorSpec MakeSpec(v1::DataType dtype, absl::Span<const int64_t> shape);

/// "float32[batch, 64 x batch, 128]".
std::string ShapeText(absl::Span<const int64_t> shape);
std::string SpecText(const v1::TensorSpec& spec);
/// "float32"; PyTorch's names.
std::string TypeText(v1::DataType dtype);
int64_t BytesPerElement(v1::DataType dtype);

/// Elements of a shape: coefficient x samples^power.
struct ElementCount {
  int64_t coefficient = 1;
  int power = 0;
  bool operator==(const ElementCount&) const = default;
};
/// INVALID_ARGUMENT for an empty dimension or more than kMaxElements.
absl::StatusOr<ElementCount> CountElements(absl::Span<const int64_t> shape);

/// The dimension that a size is; INVALID_ARGUMENT where it is neither a positive constant nor a multiple of
/// the batch.
absl::StatusOr<int64_t> DimensionFrom(const v1::AffineInt& size);

/// Shape of an element-wise result by NumPy's rules.
absl::StatusOr<Shape> Broadcast(absl::Span<const int64_t> a, absl::Span<const int64_t> b);

/// `index` counted from the end when negative; INVALID_ARGUMENT outside the shape.
absl::StatusOr<int> NormalizeAxis(int64_t index, size_t rank);

/// Shape of `from` viewed as `sizes`, one of which may be -1.
absl::StatusOr<Shape> ViewShape(absl::Span<const int64_t> from, const std::vector<v1::AffineInt>& sizes);

}  // namespace fusion::graph
