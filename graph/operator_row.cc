#include "graph/operator_row.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "graph/shapes.h"

namespace fusion::graph {
namespace {

double CountAt(const v1::TensorSpec& spec, int64_t samples) {
  double count = 1;
  for (const int64_t d : spec.shape()) {
    count *= d >= 0 ? static_cast<double>(d) : -static_cast<double>(d) * static_cast<double>(samples);
  }
  return count;
}

}  // namespace

double Execution::Elements(absl::string_view argument) const {
  return call.Has(argument) ? CountAt(call.Tensor(argument), samples_) : 0;
}

double Execution::Bytes(absl::string_view argument) const {
  return call.Has(argument)
             ? Elements(argument) * static_cast<double>(BytesPerElement(call.Tensor(argument).dtype()))
             : 0;
}

double Execution::OutputElements() const {
  double count = 0;
  for (const v1::TensorSpec& spec : op_.outputs()) count += CountAt(spec, samples_);
  return count;
}

double Execution::OutputBytes() const {
  double bytes = 0;
  for (const v1::TensorSpec& spec : op_.outputs()) {
    bytes += CountAt(spec, samples_) * static_cast<double>(BytesPerElement(spec.dtype()));
  }
  return bytes;
}

double Execution::Dimension(absl::string_view argument, int axis) const {
  const v1::TensorSpec& spec = call.Tensor(argument);
  const int64_t d = spec.shape(axis < 0 ? spec.shape_size() + axis : axis);
  return d >= 0 ? static_cast<double>(d) : -static_cast<double>(d) * static_cast<double>(samples_);
}

bool Execution::Gradient(absl::string_view argument) const {
  return call.Has(argument) && IsFloating(call.Tensor(argument).dtype()) &&
         needs_gradient_(call.Reference(argument));
}

absl::Status CheckFloating(const Call& call, absl::string_view argument, size_t rank) {
  const v1::TensorSpec& spec = call.Tensor(argument);
  if (IsFloating(spec.dtype()) && static_cast<size_t>(spec.shape_size()) >= rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("argument '", argument, "' must be floating with at least ",
                                                 rank, " dimensions, not ", SpecText(spec)));
}

absl::Status CheckSameType(const Call& call, absl::string_view a, absl::string_view b) {
  if (call.Tensor(a).dtype() == call.Tensor(b).dtype()) return absl::OkStatus();
  return Mismatch(call, a, b);
}

absl::Status Mismatch(const Call& call, absl::string_view a, absl::string_view b) {
  return absl::InvalidArgumentError(absl::StrCat("arguments '", a, "' ", SpecText(call.Tensor(a)), " and '",
                                                 b, "' ", SpecText(call.Tensor(b)), " do not fit"));
}

absl::StatusOr<std::vector<v1::TensorSpec>> LikeSelf(const Call& call) {
  if (auto status = CheckFloating(call, "self"); !status.ok()) return status;
  return std::vector<v1::TensorSpec>{call.Tensor("self")};
}

}  // namespace fusion::graph
