// Tensors into messages and back, with what must be remembered between the two: a value's mask until its
// gradient has passed, and what error feedback left out.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "codec/codec.h"
#include "codec/error_feedback.h"
#include "fusion/graph/v1/graph.pb.h"
#include "worker/tensor.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

/// Name of a message that is the tensor's own bytes, of whatever dtype; for FLOAT32 it is codec fp32.
inline constexpr char kDenseMessage[] = "fp32";

/// How one edge's values and gradients travel. Everything but floating differentiable values is dense.
struct EdgeCodecs {
  codec::Codec forward;
  codec::Codec backward;
  std::string forward_name = kDenseMessage;
  std::string backward_name = kDenseMessage;
  int gradients = 1;        ///< messages that come back for each value
  bool per_sample = false;  ///< as of Edge.per_sample
};

/// The codecs of one edge by step.
class CodecTimeline {
 public:
  CodecTimeline(EdgeCodecs always) : phases_{{0, std::move(always)}} {}  // NOLINT: one codec is a timeline
  explicit CodecTimeline(std::map<int64_t, EdgeCodecs> phases) : phases_(std::move(phases)) {}

  /// Of what belongs to a step.
  const EdgeCodecs& At(int64_t step) const;
  bool changes() const { return phases_.size() > 1; }

 private:
  std::map<int64_t, EdgeCodecs> phases_;  ///< by first step, not empty
};

/// INVALID_ARGUMENT names the edge and the codec: unknown, on a value that is not FLOAT32 or BFLOAT16 and
/// differentiable,
/// or a gradient that wants the mask of a value that leaves none.
absl::StatusOr<EdgeCodecs> ParseEdgeCodecs(const graph::v1::Edge& edge);

/// The same for all its phases, whose first steps rise from 1.
absl::StatusOr<CodecTimeline> ParseTimeline(const graph::v1::Edge& edge);

/// Exact bytes of the message of a tensor.
int64_t MessageBytes(const EdgeCodecs& codecs, wire::v1::Direction direction, DataType dtype,
                     const std::vector<int64_t>& shape);

bool IsDense(const EdgeCodecs& codecs, wire::v1::Direction direction);

/// Encodes and decodes what one stage sends and receives. Both ends of an edge have one each, and each keeps
/// the mask of a training value from the forward message to the last gradient. Thread-safe; messages of one
/// edge and direction that use error feedback must be encoded in micro-batch order by one thread.
class EdgeCoder {
 public:
  explicit EdgeCoder(std::map<int32_t, CodecTimeline> edges) : edges_(std::move(edges)) {}

  /// Whether an edge's codecs change: then dense messages must not overtake others.
  bool Changes(int32_t edge) const { return edges_.at(edge).changes(); }
  /// Of the message's edge and step.
  const EdgeCodecs& codecs(const TensorKey& key) const { return edges_.at(key.edge).At(key.step); }

  /// A message of `tensor`, which may share its storage. `training`: a gradient will follow a value.
  absl::StatusOr<EncodedTensor> Encode(const TensorKey& key, const Tensor& tensor, bool training);
  /// REQUIRES: the message has MessageBytes bytes. DATA_LOSS where they do not decode, FAILED_PRECONDITION
  /// for a gradient whose value's mask is not there.
  absl::StatusOr<Tensor> Decode(const EncodedTensor& message, bool training);
  /// An absent gradient passed: its mask is not needed any more.
  void SkipGradient(const TensorKey& key) { TakeMask(key); }

  size_t masks_held() const;

  /// What error feedback left out so far, by edge and direction; empty without it. REQUIRES, as Restore:
  /// nothing is being encoded.
  using Residuals = std::map<std::pair<int32_t, wire::v1::Direction>, std::vector<float>>;
  Residuals ReadResiduals() const;
  void RestoreResiduals(Residuals residuals);

 private:
  using MaskKey = std::tuple<int32_t, int64_t, int32_t>;  // edge, step, micro-batch
  struct HeldMask {
    std::shared_ptr<const codec::Mask> mask;
    int gradients = 0;  ///< still to pass
  };

  void KeepMask(const TensorKey& key, codec::Mask mask);
  /// Null where none is held.
  std::shared_ptr<const codec::Mask> TakeMask(const TensorKey& key);
  absl::Status EncodeInto(const TensorKey& key, const codec::Codec& codec, const Tensor& tensor,
                          bool training, absl::Span<std::byte> message);

  const std::map<int32_t, CodecTimeline> edges_;
  mutable absl::Mutex mutex_;
  std::map<MaskKey, HeldMask> masks_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int32_t, wire::v1::Direction>, codec::ErrorFeedback> feedback_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fusion::worker
