#include "worker/transport/outbox.h"

#include <algorithm>

namespace fusion::worker {
namespace {

bool IsOncePerStep(wire::v1::Direction direction) {
  return direction != wire::v1::FORWARD && direction != wire::v1::BACKWARD;
}

wire::v1::FrameHeader Describe(const EncodedTensor& tensor, uint64_t id) {
  wire::v1::FrameHeader header;
  wire::v1::TensorDescriptor& descriptor = *header.mutable_tensor();
  descriptor.set_tensor(id);
  descriptor.set_step(tensor.key.step);
  descriptor.set_micro_batch(tensor.key.micro_batch);
  descriptor.set_edge(tensor.key.edge);
  descriptor.set_direction(tensor.key.direction);
  descriptor.set_consumer(tensor.key.consumer);
  descriptor.set_codec(tensor.codec);
  descriptor.set_dtype(tensor.dtype);
  for (const int64_t extent : tensor.shape) descriptor.add_shape(extent);
  descriptor.set_bytes(static_cast<uint64_t>(tensor.bytes));
  descriptor.set_absent(tensor.absent);
  return header;
}

}  // namespace

void Outbox::Push(EncodedTensor tensor) {
  if (tensor.absent) {
    tensor.data = nullptr;
    tensor.bytes = 0;
  }
  const TensorKey& key = tensor.key;
  const Priority priority(!IsOncePerStep(key.direction), key.step, key.micro_batch, sequence_++);
  waiting_.emplace(priority, Waiting{.tensor = std::move(tensor)});
}

void Outbox::SetWindow(int32_t edge, wire::v1::Direction direction, int window) {
  credits_[{edge, direction}].window = window;
}

uint64_t Outbox::Grant(int32_t edge, wire::v1::Direction direction, uint64_t granted) {
  Credit& credit = credits_[{edge, direction}];
  // A grant for what was not sent would be the peer's mistake; it must not widen the window.
  const uint64_t before = credit.granted;
  credit.granted = std::max(before, std::min(granted, credit.begun));
  return credit.granted - before;
}

std::map<Outbox::Priority, Outbox::Waiting>::const_iterator Outbox::Find() const {
  return std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& entry) {
    const Waiting& waiting = entry.second;
    if (waiting.id != 0) return true;
    const auto credit = credits_.find(EdgeOf(waiting.tensor.key));
    return credit == credits_.end() ? Credit().available() : credit->second.available();
  });
}

std::optional<Outbox::Part> Outbox::Next() {
  const auto found = Find();
  if (found == waiting_.end()) return std::nullopt;
  Waiting& waiting = waiting_.find(found->first)->second;
  const EncodedTensor& tensor = waiting.tensor;
  Part part;
  part.data = tensor.data;
  part.tensor_bytes = tensor.bytes;
  if (waiting.id == 0) {
    waiting.id = ++begun_;
    ++credits_[EdgeOf(tensor.key)].begun;
    part.header = Describe(tensor, waiting.id);
  } else {
    part.offset = waiting.sent;
    part.bytes = std::min(frame_bytes_, tensor.bytes - waiting.sent);
    waiting.sent += part.bytes;
    part.header.mutable_data()->set_tensor(waiting.id);
    part.header.mutable_data()->set_offset(static_cast<uint64_t>(part.offset));
  }
  if (waiting.sent == tensor.bytes) waiting_.erase(found);
  return part;
}

int64_t Outbox::bytes() const {
  int64_t bytes = 0;
  for (const auto& [priority, waiting] : waiting_) bytes += waiting.tensor.bytes - waiting.sent;
  return bytes;
}

}  // namespace fusion::worker
