// What waits to be sent to one peer, and what of it goes next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "fusion/wire/v1/tensor.pb.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

/// Tensors in order of priority, handed out frame by frame: what is once a step (variables, decisions) first,
/// then the lower step, then the lower micro-batch, then what came first. A tensor begins only when its edge
/// and direction has a credit; those without one do not hold up others. An urgent tensor goes between the
/// frames of one already begun. Not thread-safe.
class Outbox {
 public:
  /// `frame_bytes`: largest payload of a frame, > 0.
  explicit Outbox(int64_t frame_bytes) : frame_bytes_(frame_bytes) {}

  void Push(EncodedTensor tensor);

  /// Credits of an edge and direction: `window` tensors beyond those granted.
  void SetWindow(int32_t edge, wire::v1::Direction direction, int window);
  /// `granted` in all since the start. Returns how many of them are new.
  uint64_t Grant(int32_t edge, wire::v1::Direction direction, uint64_t granted);

  /// A part of a tensor: first its descriptor, without checksum and with `offset` 0 and `bytes` 0, then its
  /// data.
  struct Part {
    wire::v1::FrameHeader header;
    std::shared_ptr<std::byte> data;  ///< of the whole tensor
    int64_t tensor_bytes = 0;
    int64_t offset = 0;  ///< of this part's payload
    int64_t bytes = 0;
  };
  std::optional<Part> Next();
  bool HasNext() const { return Find() != waiting_.end(); }

  bool empty() const { return waiting_.empty(); }
  size_t tensors() const { return waiting_.size(); }
  int64_t bytes() const;  ///< not yet handed out, without headers
  void Clear() { waiting_.clear(); }

 private:
  struct Credit {
    int window = 2;
    uint64_t granted = 0;
    uint64_t begun = 0;
    bool available() const { return begun < granted + static_cast<uint64_t>(window); }
  };
  using EdgeDirection = std::pair<int32_t, wire::v1::Direction>;
  struct Waiting {
    EncodedTensor tensor;
    uint64_t id = 0;  ///< 0: not begun
    int64_t sent = 0;
  };
  /// (is a value, step, micro-batch, sequence)
  using Priority = std::tuple<bool, int64_t, int32_t, uint64_t>;

  std::map<Priority, Waiting>::const_iterator Find() const;
  static EdgeDirection EdgeOf(const TensorKey& key) { return {key.edge, key.direction}; }

  const int64_t frame_bytes_;
  std::map<Priority, Waiting> waiting_;
  std::map<EdgeDirection, Credit> credits_;
  uint64_t sequence_ = 0;
  uint64_t begun_ = 0;
};

}  // namespace fusion::worker
