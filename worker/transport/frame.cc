#include "worker/transport/frame.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

/// Reads pieces from front to back.
class Reader {
 public:
  explicit Reader(const Pieces& pieces) : pieces_(pieces) {
    for (const auto& piece : pieces) left_ += static_cast<int64_t>(piece.size());
  }

  int64_t left() const { return left_; }

  /// bytes <= left()
  void Copy(int64_t bytes, void* to) {
    auto* out = static_cast<std::byte*>(to);
    for (const auto& piece : Take(bytes)) {
      std::memcpy(out, piece.data(), piece.size());
      out += piece.size();
    }
  }

  /// bytes <= left()
  Pieces Take(int64_t bytes) {
    left_ -= bytes;
    Pieces taken;
    while (bytes > 0) {
      const auto rest = pieces_[index_].subspan(offset_);
      const auto part = rest.first(std::min<size_t>(rest.size(), static_cast<size_t>(bytes)));
      if (!part.empty()) taken.push_back(part);
      bytes -= static_cast<int64_t>(part.size());
      offset_ += part.size();
      if (offset_ == pieces_[index_].size()) {
        ++index_;
        offset_ = 0;
      }
    }
    return taken;
  }

 private:
  const Pieces& pieces_;
  size_t index_ = 0;
  size_t offset_ = 0;
  int64_t left_ = 0;
};

}  // namespace

std::string FramePrefix(const wire::v1::FrameHeader& header) {
  const auto length = static_cast<uint32_t>(header.ByteSizeLong());
  std::string prefix(sizeof(length), '\0');
  std::memcpy(prefix.data(), &length, sizeof(length));  // little-endian, as all machines that we run on
  header.AppendToString(&prefix);
  return prefix;
}

absl::StatusOr<ReceivedFrame> ParseFrame(const Pieces& pieces) {
  Reader reader(pieces);
  ReceivedFrame frame;
  frame.bytes = reader.left();
  uint32_t length = 0;
  if (reader.left() < static_cast<int64_t>(sizeof(length))) {
    return absl::DataLossError(absl::StrCat("a frame of ", frame.bytes, " bytes has no header"));
  }
  reader.Copy(sizeof(length), &length);
  if (length > kMaxHeaderBytes || length > reader.left()) {
    return absl::DataLossError(absl::StrCat("a frame of ", frame.bytes, " bytes claims a header of ", length,
                                            "; at most ", kMaxHeaderBytes, " are allowed"));
  }
  std::string header(length, '\0');
  reader.Copy(length, header.data());
  if (!frame.header.ParseFromString(header) ||
      frame.header.kind_case() == wire::v1::FrameHeader::KIND_NOT_SET) {
    return absl::DataLossError(absl::StrCat("the ", length, " bytes of a frame's header are not one"));
  }
  frame.payload_bytes = reader.left();
  if (frame.payload_bytes > kMaxPayloadBytes) {
    return absl::DataLossError(absl::StrCat("a frame with a payload of ", frame.payload_bytes,
                                            " bytes; at most ", kMaxPayloadBytes, " are allowed"));
  }
  frame.payload = reader.Take(frame.payload_bytes);
  return frame;
}

uint64_t Checksum(const std::byte* data, int64_t bytes) {
  return XXH3_64bits(data, static_cast<size_t>(bytes));
}

}  // namespace fusion::worker
