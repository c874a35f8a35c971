// Makes tensors of the frames of one stream.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/transport/frame.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

/// Allocates a tensor when its descriptor comes and gathers data into it; hands it over when it is whole and
/// its checksum right. Frames may be anything: an error says what is wrong, and ends the stream. Not
/// thread-safe.
class Inbox {
 public:
  /// `memory_limit`: bytes that tensors not yet whole may take together.
  explicit Inbox(int64_t memory_limit) : memory_limit_(memory_limit) {}

  /// A descriptor or data. Returns the tensor that the frame completes, if any.
  absl::StatusOr<std::optional<EncodedTensor>> Take(const ReceivedFrame& frame);

  uint64_t tensors() const { return tensors_; }  ///< completed

 private:
  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  struct Partial {
    EncodedTensor tensor;
    uint64_t checksum = 0;  ///< what it must be
    int64_t received = 0;
    std::unique_ptr<XXH3_state_t, FreeState> hash;
  };

  absl::StatusOr<std::optional<EncodedTensor>> Begin(const ReceivedFrame& frame);
  absl::StatusOr<std::optional<EncodedTensor>> Continue(const ReceivedFrame& frame);
  absl::StatusOr<std::optional<EncodedTensor>> Complete(Partial partial);

  const int64_t memory_limit_;
  std::map<uint64_t, Partial> partial_;  ///< by number in the stream
  int64_t partial_bytes_ = 0;
  uint64_t begun_ = 0;
  uint64_t tensors_ = 0;
};

/// What an error says of a tensor: "step 3, micro-batch 2, edge 7 FORWARD".
std::string DescribeKey(const TensorKey& key);

}  // namespace fusion::worker
