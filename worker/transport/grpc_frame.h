// Frames as gRPC's byte buffers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "worker/transport/frame.h"

namespace fusion::worker {

/// No copy of the payload: its slice keeps the storage until gRPC is done with it.
inline grpc::ByteBuffer ToByteBuffer(Frame frame) {
  std::vector<grpc::Slice> slices;
  slices.emplace_back(frame.prefix);
  if (frame.payload_bytes > 0) {
    auto owner = std::make_unique<std::shared_ptr<std::byte>>(std::move(frame.payload));
    std::byte* data = owner->get();
    const auto free_owner = [](void* pointer) { delete static_cast<std::shared_ptr<std::byte>*>(pointer); };
    slices.emplace_back(data, static_cast<size_t>(frame.payload_bytes), +free_owner, owner.release());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

/// A view of a buffer's bytes.
class BufferPieces {
 public:
  explicit BufferPieces(const grpc::ByteBuffer& buffer) {
    buffer.Dump(&slices_).ok();  // fails for a buffer without bytes only: no slices then
    for (const grpc::Slice& slice : slices_) {
      pieces_.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
    }
  }
  const Pieces& pieces() const { return pieces_; }

 private:
  std::vector<grpc::Slice> slices_;
  Pieces pieces_;
};

}  // namespace fusion::worker
