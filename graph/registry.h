// One row for each operator that the built-in families use: arity, shape rule, cost, what backward keeps.
// Validation, cost model, documentation and test enumeration are derived from these rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fusion/graph/v1/graph.pb.h"

namespace fusion::graph {

/// Operators of a class run at about the same share of a device's peak (lambda of the estimator).
enum class OperatorClass { kMatmul, kConvolution, kElementwise, kReduction, kMemory };

/// Cost of one execution at a given micro-batch.
struct OperatorCost {
  OperatorClass kind = OperatorClass::kElementwise;
  double forward_flops = 0;
  double backward_flops = 0;
  double forward_bytes = 0;  ///< read and written
  double backward_bytes = 0;
  double saved_bytes = 0;  ///< kept from forward to backward beyond its inputs, which their producers count
  double output_bytes = 0;
};

/// Cost of `graph.operators(index)` for `samples` samples: from the registry, else as declared; where nothing
/// is declared, one FLOP for each element read or written, and twice that backward.
absl::StatusOr<OperatorCost> CostOf(const v1::Graph& graph, int index, int64_t samples);

/// INVALID_ARGUMENT names an operator that cannot train on micro-batches of so many samples (BatchNorm over
/// one value).
absl::Status CheckTrains(const v1::Graph& graph, int64_t samples);

/// By operator: bytes of its outputs that stay until the micro-batch's backward pass, because it, or a reader
/// anywhere, saves them for its gradient (an operator outside the registry: whatever it reads). Other outputs
/// are freed after their last read. 0 for variables.
std::vector<double> KeptOutputBytes(const v1::Graph& graph, int64_t samples);

/// Bytes of a value for `samples` samples.
int64_t BytesOf(const v1::TensorSpec& spec, int64_t samples);
std::vector<int64_t> ShapeOf(const v1::TensorSpec& spec, int64_t samples);

/// value + times_batch x samples, saturated.
int64_t ValueAt(const v1::AffineInt& number, int64_t samples);

/// Operators with equal signatures at equal `samples` cost the same: type, overload, argument shapes and
/// constants.
std::string OperatorSignature(const v1::Graph& graph, int index, int64_t samples);

/// Values that training passes of an operator write to: what the registry says of its arguments, then its
/// counters. In a valid graph they are variables that are not trainable and that nothing else reads.
std::vector<v1::ValueRef> WrittenVariables(const v1::Operator& op);

/// Names, order, arguments, shapes, the one scalar loss; INVALID_ARGUMENT names the operator and what is
/// wrong. All other functions of this folder take graphs that it accepts.
absl::Status ValidateGraph(const v1::Graph& graph);

bool IsFloating(v1::DataType dtype);

/// Whether the registry has a row for the operator's type, also where the graph sets it aside.
bool IsRegistered(const v1::Operator& op);

/// By operator: whether a gradient of its floating outputs is of use, that is, a trainable variable lies
/// before it (or is it) on a path of operators through which gradients pass.
std::vector<bool> CarriesGradient(const v1::Graph& graph);

/// By operator: whether its output is images, [samples, channels, height, width], of which a codec sees each
/// sample as a whole: what operators over images give, and what others make of it without changing its shape.
std::vector<bool> HoldsImages(const v1::Graph& graph);

/// Trainable elements, tied ones once.
int64_t ParameterCount(const v1::Graph& graph);

}  // namespace fusion::graph
