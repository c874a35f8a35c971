// One operator of the graph bound to LibTorch's dispatcher: found by its name and overload, its arguments
// matched to the schema once. There is no code for single operators; an operator that LibTorch knows, the
// engine can run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fusion/graph/v1/graph.pb.h"

namespace fusion::worker::engine {

/// What arguments may depend on beside tensors.
struct CallContext {
  int64_t samples = 0;
  int64_t random_key = 0;
  bool training = true;
  /// False: a second forward of the same micro-batch. Operators that write to variables (BatchNorm's
  /// statistics) get copies of them, and nothing is counted.
  bool updates_variables = true;
};

/// Immutable after Bind.
class OperatorCall {
 public:
  /// NOT_FOUND: LibTorch has no such operator. INVALID_ARGUMENT: it writes to its arguments (in-place and out
  /// variants), or an argument does not fit its schema. Both name the operator.
  static absl::StatusOr<OperatorCall> Bind(const graph::v1::Operator& op);

  /// The values that the operator reads, each once, in order of first use.
  const std::vector<graph::v1::ValueRef>& inputs() const { return inputs_; }

  /// `inputs` matches inputs(). Tensor lists among the results are flattened; an absent result is an
  /// undefined tensor. Throws what LibTorch throws.
  std::vector<at::Tensor> Run(const CallContext& context, absl::Span<const at::Tensor> inputs) const;

 private:
  struct Input {
    int index;
  };
  struct InputList {
    std::vector<int> indexes;
    bool optional_elements;
  };
  struct AffineNumber {
    graph::v1::AffineInt number;
    bool real;  ///< the schema wants a double
  };
  struct AffineList {
    std::vector<graph::v1::AffineInt> numbers;
  };
  struct RandomKey {};
  struct Training {};
  using Slot = std::variant<c10::IValue, Input, InputList, AffineNumber, AffineList, RandomKey, Training>;

  explicit OperatorCall(c10::OperatorHandle handle) : handle_(std::move(handle)) {}

  int InputIndex(const graph::v1::ValueRef& ref);
  /// `wanted` is the type that the schema gives the argument.
  absl::StatusOr<Slot> MakeSlot(const graph::v1::Argument& argument, const c10::TypePtr& wanted);
  static c10::IValue Evaluate(const Slot& slot, const CallContext& context,
                              absl::Span<const at::Tensor> inputs);

  c10::OperatorHandle handle_;
  std::vector<graph::v1::ValueRef> inputs_;
  std::vector<Slot> arguments_;  ///< one for each argument of the schema
};

/// "operator 'h.0.ln_1' (aten.layer_norm)".
std::string DescribeOperator(const graph::v1::Operator& op);

}  // namespace fusion::worker::engine
