#include "worker/pipeline/edge_codec.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

using codec::Codec;
using graph::v1::Edge;
using wire::v1::Direction;

bool IsDense(const Codec& codec) { return codec == Codec{}; }

absl::StatusOr<Codec> ParseOne(const Edge& edge, const std::string& name) {
  if (name.empty()) {
    return Codec{};
  }
  auto codec = codec::ParseCodec(name);
  if (!codec.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("edge ", edge.id(), " ('", edge.value().operator_(), "'): ", codec.status().message()));
  }
  const bool coded = edge.spec().dtype() == graph::v1::FLOAT32 || edge.spec().dtype() == graph::v1::BFLOAT16;
  if (!IsDense(*codec) && (!coded || !edge.differentiable())) {
    return absl::InvalidArgumentError(
        absl::StrCat("edge ", edge.id(), " ('", edge.value().operator_(), "'): codec ", name,
                     " is for differentiable FLOAT32 and BFLOAT16 values only"));
  }
  return codec;
}

bool NeedsMask(const Codec& codec) { return codec.sparse && !codec.independent_mask; }

/// The same numbers as FLOAT32, what codecs see.
Tensor Widened(const Tensor& tensor) {
  if (tensor.dtype != graph::v1::BFLOAT16) {
    return tensor;
  }
  Tensor wide = AllocateTensor(graph::v1::FLOAT32, tensor.shape);
  const auto* from = reinterpret_cast<const uint16_t*>(tensor.data.get());
  const absl::Span<float> to = wide.mutable_floats();
  for (size_t i = 0; i < to.size(); ++i) {
    const uint32_t bits = uint32_t{from[i]} << 16;
    std::memcpy(&to[i], &bits, sizeof(bits));
  }
  return wide;
}

/// To the nearest, ties to even, as LibTorch rounds.
uint16_t RoundedToBf16(float number) {
  constexpr uint16_t kNan = 0x7FC0;
  if (std::isnan(number)) {
    return kNan;
  }
  uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/// What a codec gave, in the type that the edge has.
Tensor Narrowed(Tensor wide, DataType dtype) {
  if (dtype != graph::v1::BFLOAT16) {
    return wide;
  }
  Tensor tensor = AllocateTensor(dtype, wide.shape);
  auto* to = reinterpret_cast<uint16_t*>(tensor.data.get());
  for (const float number : wide.floats()) {
    *to++ = RoundedToBf16(number);
  }
  return tensor;
}

absl::Span<std::byte> Bytes(const EncodedTensor& message) {
  return {message.data.get(), static_cast<size_t>(message.bytes)};
}

}  // namespace

absl::StatusOr<EdgeCodecs> ParseEdgeCodecs(const Edge& edge) {
  const auto forward = ParseOne(edge, edge.forward_codec());
  if (!forward.ok()) {
    return forward.status();
  }
  const auto backward = ParseOne(edge, edge.backward_codec());
  if (!backward.ok()) {
    return backward.status();
  }
  if (NeedsMask(*backward) && !forward->sparse) {
    return absl::InvalidArgumentError(absl::StrCat("edge ", edge.id(), " ('", edge.value().operator_(),
                                                   "'): the gradient's codec ", edge.backward_codec(),
                                                   " reuses the value's mask, but the value's codec ",
                                                   edge.forward_codec(), " leaves none"));
  }
  return EdgeCodecs{.forward = *forward,
                    .backward = *backward,
                    .forward_name = codec::CodecName(*forward),
                    .backward_name = codec::CodecName(*backward),
                    .gradients = edge.cotangent_per_consumer() ? edge.consumers_size() : 1,
                    .per_sample = edge.per_sample()};
}

const EdgeCodecs& CodecTimeline::At(int64_t step) const {
  const auto next = phases_.upper_bound(step);
  return next == phases_.begin() ? next->second : std::prev(next)->second;
}

absl::StatusOr<CodecTimeline> ParseTimeline(const Edge& edge) {
  auto last = ParseEdgeCodecs(edge);
  if (!last.ok()) {
    return last.status();
  }
  if (edge.phases().empty()) {
    return CodecTimeline(*std::move(last));
  }
  std::map<int64_t, EdgeCodecs> phases;
  for (const Edge::Phase& phase : edge.phases()) {
    if (phase.from_step() < 1 || (!phases.empty() && phase.from_step() <= phases.rbegin()->first) ||
        (phases.empty() && phase.from_step() != 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("edge ", edge.id(), " ('", edge.value().operator_(),
                       "'): its codecs' first steps do not rise from 1: ", phase.from_step()));
    }
    Edge one = edge;
    one.clear_phases();
    one.set_forward_codec(phase.forward_codec());
    one.set_backward_codec(phase.backward_codec());
    auto codecs = ParseEdgeCodecs(one);
    if (!codecs.ok()) {
      return codecs.status();
    }
    phases[phase.from_step()] = *std::move(codecs);
  }
  return CodecTimeline(std::move(phases));
}

bool IsDense(const EdgeCodecs& codecs, Direction direction) {
  return direction == wire::v1::FORWARD    ? IsDense(codecs.forward)
         : direction == wire::v1::BACKWARD ? IsDense(codecs.backward)
                                           : true;
}

int64_t MessageBytes(const EdgeCodecs& codecs, Direction direction, DataType dtype,
                     const std::vector<int64_t>& shape) {
  if (IsDense(codecs, direction)) {
    return Tensor{.dtype = dtype, .shape = shape, .data = nullptr}.bytes();
  }
  const codec::Layout layout = codec::LayoutOf(shape, codecs.per_sample);
  return direction == wire::v1::FORWARD ? codec::ValueBytes(codecs.forward, layout)
                                        : codec::GradientBytes(codecs.backward, layout);
}

absl::StatusOr<EncodedTensor> EdgeCoder::Encode(const TensorKey& key, const Tensor& tensor, bool training) {
  const EdgeCodecs& edge = codecs(key);
  const bool value = key.direction == wire::v1::FORWARD;
  EncodedTensor message{.key = key,
                        .codec = value ? edge.forward_name : edge.backward_name,
                        .dtype = tensor.dtype,
                        .shape = tensor.shape,
                        .absent = false,
                        .data = tensor.data,
                        .bytes = tensor.bytes()};
  if (IsDense(edge, key.direction)) {
    return message;
  }
  message.bytes = MessageBytes(edge, key.direction, tensor.dtype, tensor.shape);
  message.data = AllocateTensor(graph::v1::UINT8, {message.bytes}).data;
  const absl::Status status =
      EncodeInto(key, value ? edge.forward : edge.backward, Widened(tensor), training, Bytes(message));
  if (!status.ok()) {
    return status;
  }
  return message;
}

absl::Status EdgeCoder::EncodeInto(const TensorKey& key, const Codec& codec, const Tensor& tensor,
                                   bool training, absl::Span<std::byte> message) {
  const codec::Layout layout = codec::LayoutOf(tensor.shape, codecs(key).per_sample);
  // A validation leaves the state of the training run as it is.
  codec::ErrorFeedback* feedback = nullptr;
  if (codec.error_feedback && training) {
    absl::MutexLock lock(&mutex_);
    feedback = &feedback_[{key.edge, key.direction}];
  }
  if (key.direction == wire::v1::FORWARD) {
    codec::Mask mask;
    const absl::Status status = feedback == nullptr
                                    ? codec::EncodeValue(codec, layout, tensor.floats(), message, &mask)
                                    : feedback->EncodeValue(codec, layout, tensor.floats(), message, &mask);
    if (status.ok() && training) {
      KeepMask(key, std::move(mask));
    }
    return status;
  }
  const auto held = TakeMask(key);
  if (held == nullptr && NeedsMask(codec)) {
    return absl::InternalError(
        absl::StrCat("edge ", key.edge, ": no mask for the gradient of micro-batch ", key.micro_batch));
  }
  const codec::Mask none;
  const codec::Mask& mask = held == nullptr ? none : *held;
  return feedback == nullptr ? codec::EncodeGradient(codec, layout, tensor.floats(), mask, message)
                             : feedback->EncodeGradient(codec, layout, tensor.floats(), mask, message);
}

absl::StatusOr<Tensor> EdgeCoder::Decode(const EncodedTensor& message, bool training) {
  const EdgeCodecs& edge = codecs(message.key);
  if (IsDense(edge, message.key.direction)) {
    return Tensor{.dtype = message.dtype, .shape = message.shape, .data = message.data};
  }
  Tensor tensor = AllocateTensor(graph::v1::FLOAT32, message.shape);
  const codec::Layout layout = codec::LayoutOf(message.shape, edge.per_sample);
  absl::Status status;
  if (message.key.direction == wire::v1::FORWARD) {
    codec::Mask mask;
    status = codec::DecodeValue(edge.forward, layout, Bytes(message), tensor.mutable_floats(), &mask);
    if (status.ok() && training) {
      KeepMask(message.key, std::move(mask));
    }
  } else {
    const auto held = TakeMask(message.key);
    if (held == nullptr && NeedsMask(edge.backward)) {
      return absl::FailedPreconditionError(
          "its value's mask is not held: the value was never sent, or its gradient "
          "has come already");
    }
    status = codec::DecodeGradient(edge.backward, layout, Bytes(message),
                                   held == nullptr ? codec::Mask{} : *held, tensor.mutable_floats());
  }
  if (!status.ok()) {
    return status;
  }
  return Narrowed(std::move(tensor), message.dtype);
}

void EdgeCoder::KeepMask(const TensorKey& key, codec::Mask mask) {
  const EdgeCodecs& edge = codecs(key);
  if (!NeedsMask(edge.backward)) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  masks_[{key.edge, key.step, key.micro_batch}] = {std::make_shared<const codec::Mask>(std::move(mask)),
                                                   edge.gradients};
}

std::shared_ptr<const codec::Mask> EdgeCoder::TakeMask(const TensorKey& key) {
  absl::MutexLock lock(&mutex_);
  const auto found = masks_.find({key.edge, key.step, key.micro_batch});
  if (found == masks_.end()) {
    return nullptr;
  }
  const auto mask = found->second.mask;
  if (--found->second.gradients == 0) {
    masks_.erase(found);
  }
  return mask;
}

size_t EdgeCoder::masks_held() const {
  absl::MutexLock lock(&mutex_);
  return masks_.size();
}

EdgeCoder::Residuals EdgeCoder::ReadResiduals() const {
  absl::MutexLock lock(&mutex_);
  Residuals residuals;
  for (const auto& [key, feedback] : feedback_) {
    residuals[key] = {feedback.residual().begin(), feedback.residual().end()};
  }
  return residuals;
}

void EdgeCoder::RestoreResiduals(Residuals residuals) {
  absl::MutexLock lock(&mutex_);
  for (auto& [key, residual] : residuals) {
    feedback_[key].Restore(std::move(residual));
  }
}

}  // namespace fusion::worker
