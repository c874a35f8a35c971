// The bytes of proto/fusion/wire/v1/tensor.proto: how a frame is written and read, whatever carries it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fusion/wire/v1/tensor.pb.h"

namespace fusion::worker {

/// Versions of the protocol between workers that this program speaks.
inline constexpr int kMinTensorVersion = 1;
inline constexpr int kMaxTensorVersion = 1;

/// Largest payload of a frame.
inline constexpr int64_t kMaxPayloadBytes = int64_t{1} << 20;
/// No honest header comes near it.
inline constexpr uint32_t kMaxHeaderBytes = uint32_t{1} << 16;

/// A frame on its way out. The payload is part of a tensor's storage and keeps it alive.
struct Frame {
  std::string prefix;  ///< length of the header, header
  std::shared_ptr<std::byte> payload;
  int64_t payload_bytes = 0;

  int64_t bytes() const { return static_cast<int64_t>(prefix.size()) + payload_bytes; }
};

/// Memory that lies in pieces, in order.
using Pieces = std::vector<absl::Span<const std::byte>>;

/// A frame that came in; the payload lies in the memory it was parsed from.
struct ReceivedFrame {
  wire::v1::FrameHeader header;
  Pieces payload;
  int64_t payload_bytes = 0;
  int64_t bytes = 0;  ///< of the whole frame
};

std::string FramePrefix(const wire::v1::FrameHeader& header);

/// Any bytes are safe to pass: DATA_LOSS says what is wrong.
absl::StatusOr<ReceivedFrame> ParseFrame(const Pieces& pieces);

/// XXH3, 64 bits.
uint64_t Checksum(const std::byte* data, int64_t bytes);

}  // namespace fusion::worker
