#include "worker/session/null_engine.h"

#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "worker/pipeline/message_table.h"

namespace fusion::worker {
namespace {

using graph::v1::Edge;
using graph::v1::Operator;
using graph::v1::SharedVariable;

Tensor Zeros(const graph::v1::TensorSpec& spec, int64_t samples) {
  Tensor tensor = AllocateTensor(spec.dtype(), ShapeFor(spec, samples));
  std::memset(tensor.data.get(), 0, static_cast<size_t>(tensor.bytes()));
  return tensor;
}

}  // namespace

absl::Status NullEngine::Load(const graph::v1::StageProgram& program, const EngineOptions&) {
  program_ = program;
  std::set<std::string> borrowed;
  for (const SharedVariable& shared : program_.borrowed()) {
    borrowed.insert(shared.variable());
  }
  for (const graph::v1::SubDag& sub_dag : program_.sub_dags()) {
    for (const Operator& op : sub_dag.operators()) {
      if (op.kind() == Operator::VARIABLE) {
        variables_[op.name()] = Zeros(op.outputs(0), 1);
        infos_.push_back({.name = op.name(),
                          .tensor_name = op.variable().tensor_name(),
                          .spec = op.outputs(0),
                          .trainable = op.variable().trainable(),
                          .borrowed = borrowed.count(op.name()) > 0});
      }
    }
  }
  return absl::OkStatus();
}

std::vector<VariableInfo> NullEngine::Variables() const { return infos_; }

absl::StatusOr<Tensor> NullEngine::ReadVariable(const std::string& name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end()) {
    return absl::NotFoundError(absl::StrCat("no variable '", name, "'"));
  }
  return found->second;
}

absl::Status NullEngine::WriteVariable(const std::string& name, const Tensor& value) {
  const auto found = variables_.find(name);
  if (found == variables_.end()) {
    return absl::NotFoundError(absl::StrCat("no variable '", name, "'"));
  }
  found->second = value;
  return absl::OkStatus();
}

absl::StatusOr<ForwardResult> NullEngine::Forward(const Pass& pass, int sub_dag) {
  ForwardResult result;
  for (const Edge& edge : program_.outgoing()) {
    if (edge.from_sub_dag() == sub_dag) {
      result.outputs.push_back({.edge = edge.id(), .tensor = Zeros(edge.spec(), pass.samples)});
    }
  }
  for (const Operator& op : program_.sub_dags(sub_dag).operators()) {
    if (op.name() == program_.loss().operator_()) {
      result.loss = 0;
    }
  }
  return result;
}

absl::StatusOr<std::vector<EdgeTensor>> NullEngine::Backward(const Pass& pass, int sub_dag) {
  std::vector<EdgeTensor> gradients;
  for (const Edge& edge : program_.incoming()) {
    if (!edge.differentiable() || edge.to_sub_dags(0) != sub_dag) {
      continue;
    }
    for (int i = 0; i < (edge.cotangent_per_consumer() ? edge.consumers_size() : 1); ++i) {
      gradients.push_back({.edge = edge.id(),
                           .consumer = edge.cotangent_per_consumer() ? i : -1,
                           .tensor = Zeros(edge.spec(), pass.samples)});
    }
  }
  return gradients;
}

absl::StatusOr<std::vector<GradientNorm>> NullEngine::GradientNorms() {
  std::vector<GradientNorm> norms;
  for (const VariableInfo& info : infos_) {
    if (info.trainable && !info.borrowed) {
      norms.push_back({.position = program_.positions().at(info.name), .squared = 0});
    }
  }
  return norms;
}

absl::StatusOr<std::vector<VariableGradient>> NullEngine::TakeBorrowedGradients() {
  std::vector<VariableGradient> gradients;
  for (const SharedVariable& shared : program_.borrowed()) {
    for (int i = 0; i < shared.consumers_size(); ++i) {
      gradients.push_back({.shared = shared.id(), .consumer = i, .tensor = std::nullopt});
    }
  }
  return gradients;
}

}  // namespace fusion::worker
