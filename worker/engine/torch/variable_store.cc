#include "worker/engine/torch/variable_store.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/random.h"
#include "worker/engine/torch/host_tensor.h"
#include "worker/engine/torch/memory_account.h"

namespace fusion::worker::engine {
namespace {

using graph::v1::Init;

template <class T>
void FillNormal(const Init& init, uint64_t key, T* data, int64_t count) {
  for (int64_t i = 0; i < count; i += 2) {
    const NormalPair pair = Normals(key, static_cast<uint64_t>(i));
    data[i] = static_cast<T>(init.mean() + init.standard_deviation() * pair.even);
    if (i + 1 < count) {
      data[i + 1] = static_cast<T>(init.mean() + init.standard_deviation() * pair.odd);
    }
  }
}

template <class T>
void FillUniform(const Init& init, uint64_t key, T* data, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    data[i] = static_cast<T>(init.low() +
                             (init.high() - init.low()) * Uniform(Bits(key, static_cast<uint64_t>(i))));
  }
}

// Nobody else sees the storage, and it is our allocator's: it may be added to in place.
bool IsExclusive(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && tensor.is_contiguous() &&
         IsCountedDeleter(tensor.storage().data_ptr().get_deleter());
}

}  // namespace

absl::Status Initialize(const graph::v1::Operator& variable, int64_t seed, at::Tensor& tensor) {
  const Init& init = variable.variable().init();
  const uint64_t key = VariableKey(seed, variable.variable().tensor_name());
  switch (init.kind()) {
    case Init::ZEROS:
    case Init::STORED:  // until it is written
      tensor.zero_();
      return absl::OkStatus();
    case Init::ONES:
      tensor.fill_(1);
      return absl::OkStatus();
    case Init::CONSTANT:
      tensor.fill_(init.value());
      return absl::OkStatus();
    case Init::NORMAL:
    case Init::UNIFORM:
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("variable '", variable.name(), "' does not say how it is initialised"));
  }
  const bool normal = init.kind() == Init::NORMAL;
  if (tensor.scalar_type() == at::kFloat) {
    auto* data = tensor.mutable_data_ptr<float>();
    normal ? FillNormal(init, key, data, tensor.numel()) : FillUniform(init, key, data, tensor.numel());
  } else if (tensor.scalar_type() == at::kDouble) {
    auto* data = tensor.mutable_data_ptr<double>();
    normal ? FillNormal(init, key, data, tensor.numel()) : FillUniform(init, key, data, tensor.numel());
  } else {
    return absl::InvalidArgumentError(absl::StrCat("variable '", variable.name(), "' is ",
                                                   DescribeTensor(tensor),
                                                   "; random initial values are float32 or float64"));
  }
  if (init.zero_rows() > 0 && tensor.dim() > 0) {
    tensor.narrow(0, 0, std::min(init.zero_rows(), tensor.size(0))).zero_();
  }
  return absl::OkStatus();
}

VariableStore::VariableStore(const StageGraph& stage) : stage_(stage) {}

absl::Status VariableStore::Create(int64_t seed) {
  for (const StageVariable& variable : stage_.variables) {
    const std::string what = absl::StrCat("variable '", variable.op->name(), "'");
    if (variable.op->outputs_size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(what, " must have one output"));
    }
    const graph::v1::TensorSpec& spec = variable.op->outputs(0);
    for (const int64_t extent : spec.shape()) {
      if (extent < 0) {
        return absl::InvalidArgumentError(absl::StrCat(what, " has a shape that depends on the batch"));
      }
    }
    if (ScalarTypeOf(spec.dtype()) == at::ScalarType::Undefined) {
      return absl::InvalidArgumentError(absl::StrCat(what, " has no dtype"));
    }
    at::Tensor tensor = at::empty(std::vector<int64_t>(spec.shape().begin(), spec.shape().end()),
                                  at::TensorOptions().dtype(ScalarTypeOf(spec.dtype())));
    if (absl::Status status = Initialize(*variable.op, seed, tensor); !status.ok()) {
      return status;
    }
    values_.push_back(std::move(tensor));
    gradients_.emplace_back(variable.uses.size());
  }
  return absl::OkStatus();
}

int VariableStore::Find(absl::string_view name) const {
  for (size_t i = 0; i < stage_.variables.size(); ++i) {
    if (stage_.variables[i].op->name() == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

void VariableStore::Accumulate(int variable, int use, at::Tensor gradient) {
  at::Tensor& sum = gradients_[static_cast<size_t>(variable)][static_cast<size_t>(use)];
  if (sum.defined()) {
    sum.add_(gradient);
    return;
  }
  const at::ScalarType type = value(variable).scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (gradient.scalar_type() != type) {
    gradient = gradient.to(type);
  }
  sum = IsExclusive(gradient) ? std::move(gradient) : gradient.clone(at::MemoryFormat::Contiguous);
}

void VariableStore::SetUse(int variable, int use, const at::Tensor& gradient) {
  gradients_[static_cast<size_t>(variable)][static_cast<size_t>(use)] = gradient;
}

const at::Tensor& VariableStore::use(int variable, int use) const {
  return gradients_[static_cast<size_t>(variable)][static_cast<size_t>(use)];
}

at::Tensor VariableStore::Gradient(int variable) const {
  at::Tensor sum;
  for (const at::Tensor& use : gradients_[static_cast<size_t>(variable)]) {
    if (use.defined()) {
      sum = sum.defined() ? sum.add(use) : use;
    }
  }
  return sum;
}

void VariableStore::ResetGradients(int variable) {
  for (at::Tensor& use : gradients_[static_cast<size_t>(variable)]) {
    use.reset();
  }
}

}  // namespace fusion::worker::engine
