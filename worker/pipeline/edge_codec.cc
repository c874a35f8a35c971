#include "worker/pipeline/edge_codec.h"

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
  if (!IsDense(*codec) && (edge.spec().dtype() != graph::v1::FLOAT32 || !edge.differentiable())) {
    return absl::InvalidArgumentError(absl::StrCat("edge ", edge.id(), " ('", edge.value().operator_(),
                                                   "'): codec ", name,
                                                   " is for differentiable FLOAT32 values only"));
  }
  return codec;
}

bool NeedsMask(const Codec& codec) { return codec.sparse && !codec.independent_mask; }

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
  const EdgeCodecs& edge = edges_.at(key.edge);
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
      EncodeInto(key, value ? edge.forward : edge.backward, tensor, training, Bytes(message));
  if (!status.ok()) {
    return status;
  }
  return message;
}

absl::Status EdgeCoder::EncodeInto(const TensorKey& key, const Codec& codec, const Tensor& tensor,
                                   bool training, absl::Span<std::byte> message) {
  const codec::Layout layout = codec::LayoutOf(tensor.shape, edges_.at(key.edge).per_sample);
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
  const EdgeCodecs& edge = edges_.at(message.key.edge);
  if (IsDense(edge, message.key.direction)) {
    return Tensor{.dtype = message.dtype, .shape = message.shape, .data = message.data};
  }
  Tensor tensor = AllocateTensor(message.dtype, message.shape);
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
  return tensor;
}

void EdgeCoder::KeepMask(const TensorKey& key, codec::Mask mask) {
  const EdgeCodecs& edge = edges_.at(key.edge);
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

}  // namespace fusion::worker
