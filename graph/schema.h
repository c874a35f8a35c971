// Signatures of operators, written as ATen writes them: "linear(Tensor input, Tensor weight, Tensor?
// bias=None) -> Tensor". The text is the single source of an operator's arity, argument types and defaults.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fusion/graph/v1/graph.pb.h"

namespace fusion::graph {

enum class ParameterKind {
  kTensor,
  kTensors,   ///< Tensor[]
  kInt,       ///< int: a constant
  kSize,      ///< SymInt: may depend on the micro-batch
  kSizes,     ///< SymInt[] or int[]
  kScalar,    ///< Scalar or float: an int or a double
  kBool,      ///< bool; one named `training` also takes Argument.training
  kString,    ///< str
  kDataType,  ///< ScalarType
  kKey,       ///< Key: Argument.random_key, of our own operators
  kTraining,  ///< Training: Argument.training, of our own operators
  kAbsent,    ///< Layout, Device, MemoryFormat: only None, the engine decides
};

struct Parameter {
  std::string name;
  ParameterKind kind = ParameterKind::kTensor;
  bool optional = false;                      ///< "?": None is a value
  bool keyword_only = false;                  ///< after "*"
  std::optional<v1::Argument> default_value;  ///< absent: the argument must be given
};

struct Schema {
  std::string type;      ///< namespace.name: aten.add
  std::string overload;  ///< Tensor; empty for the default one
  std::vector<Parameter> parameters;
  bool returns_list = false;  ///< Tensor[]: one or more outputs; else exactly one
};

/// Parses "[NAMESPACE::]NAME[.OVERLOAD](PARAMETERS) -> Tensor|Tensor[]"; the namespace is aten where none is
/// given.
absl::StatusOr<Schema> ParseSchema(absl::string_view text);

/// The arguments of one operator by the schema's names, with defaults filled in. Accessors take names that
/// the schema has with the kind that it has; anything else is a mistake in a registry row and ends the
/// program.
class Call {
 public:
  /// Finds the spec of an argument's value; never null for an operator that was checked.
  using Resolve = std::function<absl::StatusOr<const v1::TensorSpec*>(const v1::ValueRef&)>;

  /// INVALID_ARGUMENT says which argument is missing, unknown, given twice or of the wrong type. `schema` and
  /// the specs must outlive the call.
  static absl::StatusOr<Call> Bind(const Schema& schema, const v1::Operator& op, const Resolve& resolve);

  bool Has(absl::string_view name) const;  ///< given or defaulted to something else than None
  const v1::TensorSpec& Tensor(absl::string_view name) const;
  const v1::ValueRef& Reference(absl::string_view name) const;  ///< of a tensor argument
  bool HasInt(absl::string_view name) const;                    ///< of a Scalar: given as an int
  int64_t Int(absl::string_view name) const;
  v1::AffineInt Size(absl::string_view name) const;
  std::vector<v1::AffineInt> Sizes(absl::string_view name) const;
  double Scalar(absl::string_view name) const;
  bool Bool(absl::string_view name) const;  ///< true for Argument.training, of passes that train
  const std::string& String(absl::string_view name) const;
  v1::DataType Type(absl::string_view name) const;

 private:
  const v1::Argument& Get(absl::string_view name) const;

  const Schema* schema_ = nullptr;
  std::map<std::string, v1::Argument, std::less<>> arguments_;
  std::map<std::string, const v1::TensorSpec*, std::less<>> tensors_;
};

}  // namespace fusion::graph
