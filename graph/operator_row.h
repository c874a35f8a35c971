// What the registry knows of one operator. Rows lie in rows_*.cc, by kind; everything else is derived from
// them.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fusion/graph/v1/graph.pb.h"
#include "graph/registry.h"
#include "graph/schema.h"

namespace fusion::graph {

/// One execution of an operator whose cost is asked: its arguments and outputs at a given micro-batch.
class Execution {
 public:
  using NeedsGradient = std::function<bool(const v1::ValueRef&)>;
  /// Holds references: for use within one expression's call tree.
  Execution(const Call& call, const v1::Operator& op, int64_t samples, const NeedsGradient& needs_gradient)
      : call(call), op_(op), samples_(samples), needs_gradient_(needs_gradient) {}

  const Call& call;

  double Elements(absl::string_view argument) const;
  double Bytes(absl::string_view argument) const;  ///< 0 where the argument is None
  double OutputElements() const;                   ///< of all outputs
  double OutputBytes() const;
  /// Size of dimension `axis` (negative: from the end) of a tensor argument.
  double Dimension(absl::string_view argument, int axis) const;
  /// Whether backward computes a gradient for the argument (false for data, ids, None).
  bool Gradient(absl::string_view argument) const;

 private:
  const v1::Operator& op_;
  int64_t samples_;
  const NeedsGradient& needs_gradient_;
};

/// What an operator's gradient formula keeps of the values around it.
struct SavedValues {
  std::vector<absl::string_view> arguments = {};
  bool outputs = false;
};

struct OperatorRow {
  const char* schema;   ///< ATen's text, see ParseSchema; our own operators begin with fusion::
  const char* summary;  ///< one phrase for docs/operators.md
  OperatorClass kind = OperatorClass::kElementwise;
  bool differentiable = true;  ///< false: no gradient passes, whatever it reads
  bool aliases = false;        ///< its output is its input's memory
  bool images = false;         ///< an output of four dimensions is images
  /// Arguments that an execution with `training` true writes to. Each must be a variable that is not
  /// trainable and that nothing else reads, so that its values follow the order of micro-batches under any
  /// cut.
  std::array<absl::string_view, 2> updates = {};
  /// Specs of the outputs; INVALID_ARGUMENT says which argument does not fit.
  absl::StatusOr<std::vector<v1::TensorSpec>> (*shapes)(const Call&) = nullptr;
  /// Fills all but `kind`.
  OperatorCost (*cost)(const Execution&) = nullptr;
  /// Null: nothing.
  SavedValues (*saves)(const Execution&) = nullptr;
  /// Null: any micro-batch trains. INVALID_ARGUMENT says why this one does not.
  absl::Status (*trains)(const Execution&) = nullptr;
};

absl::Span<const OperatorRow> ImageRows();
absl::Span<const OperatorRow> MatmulRows();
absl::Span<const OperatorRow> ReductionRows();
absl::Span<const OperatorRow> ElementwiseRows();
absl::Span<const OperatorRow> MemoryRows();

/// A row with its schema parsed.
struct RegisteredOperator {
  Schema schema;
  const OperatorRow* row = nullptr;
};

/// Parses rows and sorts them by type and overload. ALREADY_EXISTS names an operator with two rows.
absl::StatusOr<std::vector<RegisteredOperator>> MakeRegistry(
    absl::Span<const absl::Span<const OperatorRow>> tables);

/// All rows, by type and overload.
const std::vector<RegisteredOperator>& Registry();

/// Null for an operator outside the registry.
const RegisteredOperator* FindRegistered(absl::string_view type, absl::string_view overload);
/// Null also where the graph says that the row does not apply (Operator.recorded).
const RegisteredOperator* FindRegistered(const v1::Operator& op);

/// Specs of the outputs by the row's rule.
absl::StatusOr<std::vector<v1::TensorSpec>> InferOutputs(const RegisteredOperator& entry,
                                                         const v1::Operator& op,
                                                         const Call::Resolve& resolve);

/// docs/operators.md.
std::string RegistryMarkdown();

// Rules that several rows share.

/// Checks that an argument is floating and has at least `rank` dimensions.
absl::Status CheckFloating(const Call& call, absl::string_view argument, size_t rank = 0);
/// Checks that two arguments have one type.
absl::Status CheckSameType(const Call& call, absl::string_view a, absl::string_view b);
/// INVALID_ARGUMENT that shows both specs.
absl::Status Mismatch(const Call& call, absl::string_view a, absl::string_view b);

/// The output is like the argument `self`, which must be floating.
absl::StatusOr<std::vector<v1::TensorSpec>> LikeSelf(const Call& call);

}  // namespace fusion::graph
