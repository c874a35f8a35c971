#include "worker/pipeline/message_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fusion::worker {
namespace {

using graph::v1::DataType_Name;
using graph::v1::Edge;
using graph::v1::SharedVariable;
using wire::v1::Direction;

std::string DirectionText(Direction direction) {
  switch (direction) {
    case wire::v1::FORWARD:
      return "forward";
    case wire::v1::BACKWARD:
      return "gradient";
    case wire::v1::VARIABLE_VALUE:
      return "variable";
    case wire::v1::VARIABLE_GRADIENT:
      return "variable's gradient";
    case wire::v1::STEP_NORMS:
      return "norms";
    case wire::v1::STEP_DECISION:
      return "decision";
    default:
      return absl::StrCat("direction ", static_cast<int>(direction));
  }
}

std::string TypeText(DataType dtype, const std::vector<int64_t>& shape) {
  return absl::StrCat(DataType_Name(dtype), "[", absl::StrJoin(shape, ", "), "]");
}

template <typename Item>
const Item* Find(const std::map<int32_t, const Item*>& items, int32_t id) {
  const auto found = items.find(id);
  return found == items.end() ? nullptr : found->second;
}

}  // namespace

std::vector<int64_t> ShapeFor(const graph::v1::TensorSpec& spec, int64_t samples) {
  std::vector<int64_t> shape(spec.shape().begin(), spec.shape().end());
  for (int64_t& extent : shape) {
    extent = extent < 0 ? -extent * samples : extent;
  }
  return shape;
}

std::string DescribeKey(const TensorKey& key, const std::string& name) {
  if (IsOncePerStep(key.direction) && !IsOfVariable(key.direction)) {
    return absl::StrCat("update of stage ", key.edge, ", ", DirectionText(key.direction), ", step ",
                        key.step);
  }
  std::string text = absl::StrCat(IsOfVariable(key.direction) ? "shared variable " : "edge ", key.edge, " (",
                                  name.empty() ? "unknown here" : absl::StrCat("'", name, "'"), "), ",
                                  DirectionText(key.direction), ", step ", key.step);
  if (!IsOfVariable(key.direction)) {
    absl::StrAppend(&text, ", micro-batch ", key.micro_batch);
  }
  if (key.consumer >= 0) {
    absl::StrAppend(&text, ", consumer ", key.consumer);
  }
  return text;
}

absl::StatusOr<MessageTable> MessageTable::Make(const graph::v1::StageProgram& program, int64_t samples) {
  MessageTable table;
  table.program_ = &program;
  table.samples_ = samples;
  const auto add_codecs = [&table](const Edge& edge) {
    auto codecs = ParseTimeline(edge);
    if (codecs.ok()) {
      table.codecs_.emplace(edge.id(), *std::move(codecs));
    }
    return codecs.status();
  };
  for (const Edge& edge : program.incoming()) {
    table.incoming_[edge.id()] = &edge;
    if (const absl::Status status = add_codecs(edge); !status.ok()) {
      return status;
    }
  }
  for (const Edge& edge : program.outgoing()) {
    table.outgoing_[edge.id()] = &edge;
    if (const absl::Status status = add_codecs(edge); !status.ok()) {
      return status;
    }
  }
  for (const SharedVariable& shared : program.borrowed()) {
    table.borrowed_[shared.id()] = &shared;
  }
  for (const SharedVariable& shared : program.lent()) {
    table.lent_[shared.id()] = &shared;
  }
  for (const graph::v1::SubDag& sub_dag : program.sub_dags()) {
    for (const graph::v1::Operator& op : sub_dag.operators()) {
      if (op.kind() == graph::v1::Operator::VARIABLE) {
        table.variables_[op.name()] = &op.outputs(0);
      }
    }
  }
  return table;
}

absl::StatusOr<MessageTable::Expected> MessageTable::ExpectVariable(const TensorKey& key) const {
  const bool value = key.direction == wire::v1::VARIABLE_VALUE;
  const SharedVariable* shared = Find(value ? borrowed_ : lent_, key.edge);
  const auto spec = shared == nullptr ? variables_.end() : variables_.find(shared->variable());
  if (spec == variables_.end()) {
    return absl::NotFoundError("this stage does not share it");
  }
  return Expected{.peer = value ? shared->owner_stage() : shared->user_stage(),
                  .spec = *spec->second,
                  .codec = kDenseMessage,
                  .consumers = value ? 0 : shared->consumers_size(),
                  .may_be_absent = !value};
}

absl::StatusOr<MessageTable::Expected> MessageTable::ExpectDecision(const TensorKey& key) const {
  const graph::v1::StepDecision& decision = program_->decision();
  Expected expected;
  expected.spec.set_dtype(graph::v1::FLOAT64);
  if (key.direction == wire::v1::STEP_DECISION && decision.has_parent() && key.edge == program_->stage()) {
    expected.peer = decision.parent();
    expected.spec.add_shape(1);
    return expected;
  }
  for (const graph::v1::StepDecision::Child& child : decision.children()) {
    if (key.direction == wire::v1::STEP_NORMS && key.edge == child.stage()) {
      expected.peer = child.stage();
      expected.spec.add_shape(child.parameters());
      expected.spec.add_shape(2);
      return expected;
    }
  }
  return absl::NotFoundError("it is not this stage's to decide with");
}

absl::StatusOr<MessageTable::Expected> MessageTable::Expect(const TensorKey& key) const {
  if (IsOfVariable(key.direction)) {
    return ExpectVariable(key);
  }
  if (IsOncePerStep(key.direction)) {
    return ExpectDecision(key);
  }
  const bool value = key.direction == wire::v1::FORWARD;
  const Edge* edge = value ? Find(incoming_, key.edge) : nullptr;
  if (key.direction == wire::v1::BACKWARD) {
    edge = Find(outgoing_, key.edge);
  }
  if (edge == nullptr || (!value && !edge->differentiable())) {
    return absl::NotFoundError("this stage has no such edge");
  }
  const EdgeCodecs& codecs = codecs_.at(edge->id()).At(key.step);
  return Expected{.peer = value ? edge->from_stage() : edge->to_stage(),
                  .spec = edge->spec(),
                  .codec = value ? codecs.forward_name : codecs.backward_name,
                  .consumers = !value && edge->cotangent_per_consumer() ? edge->consumers_size() : 0,
                  .may_be_absent = !value};
}

absl::Status MessageTable::Check(int from_stage, const EncodedTensor& message) const {
  const auto refuse = [&](absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", program_->stage(), " cannot take what stage ",
                                                   from_stage, " sent, ", Describe(message.key), ": ",
                                                   reason));
  };
  const auto expected = Expect(message.key);
  if (!expected.ok()) {
    return refuse(expected.status().message());
  }
  if (expected->peer != from_stage) {
    return refuse(absl::StrCat("it comes from stage ", expected->peer));
  }
  const int consumer = message.key.consumer;
  if (expected->consumers == 0 ? consumer != -1 : consumer < 0 || consumer >= expected->consumers) {
    return refuse(absl::StrCat("there are ", expected->consumers, " consumers to tell apart"));
  }
  if (message.key.micro_batch < 0) {
    return refuse("negative micro-batch");
  }
  if (message.absent) {
    return expected->may_be_absent ? absl::OkStatus() : refuse("a value cannot be absent");
  }
  const std::vector<int64_t> shape = ShapeFor(expected->spec, samples_);
  if (message.dtype != expected->spec.dtype() || message.shape != shape) {
    return refuse(absl::StrCat("it is ", TypeText(message.dtype, message.shape), ", expected ",
                               TypeText(expected->spec.dtype(), shape)));
  }
  if (message.codec != expected->codec) {
    return refuse(absl::StrCat("its codec is '", message.codec, "', expected '", expected->codec, "'"));
  }
  const EdgeCodecs dense;
  const EdgeCodecs& codecs =
      IsOncePerStep(message.key.direction) ? dense : codecs_.at(message.key.edge).At(message.key.step);
  const int64_t bytes = MessageBytes(codecs, message.key.direction, message.dtype, shape);
  if (message.bytes != bytes) {
    return refuse(absl::StrCat("it has ", message.bytes, " bytes, expected ", bytes));
  }
  return absl::OkStatus();
}

std::set<int> MessageTable::Receivers() const {
  std::set<int> stages;
  for (const auto& [id, edge] : outgoing_) {
    stages.insert(edge->to_stage());
  }
  for (const auto& [id, edge] : incoming_) {
    if (edge->differentiable()) {
      stages.insert(edge->from_stage());
    }
  }
  for (const auto& [id, shared] : borrowed_) {
    stages.insert(shared->owner_stage());
  }
  for (const auto& [id, shared] : lent_) {
    stages.insert(shared->user_stage());
  }
  for (const graph::v1::StepDecision::Child& child : program_->decision().children()) {
    stages.insert(child.stage());
  }
  if (program_->decision().has_parent()) {
    stages.insert(program_->decision().parent());
  }
  return stages;
}

std::string MessageTable::Describe(const TensorKey& key) const {
  if (IsOncePerStep(key.direction) && !IsOfVariable(key.direction)) {
    return DescribeKey(key, "");
  }
  if (IsOfVariable(key.direction)) {
    const SharedVariable* shared =
        Find(key.direction == wire::v1::VARIABLE_VALUE ? borrowed_ : lent_, key.edge);
    return DescribeKey(key, shared == nullptr ? "" : shared->variable());
  }
  const Edge* edge = Find(key.direction == wire::v1::FORWARD ? incoming_ : outgoing_, key.edge);
  return DescribeKey(key, edge == nullptr ? "" : edge->value().operator_());
}

}  // namespace fusion::worker
