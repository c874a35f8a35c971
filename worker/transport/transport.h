// Carries encoded tensors between the stages of a job. Three twins: in-memory, a wrapper that delays and
// rates (link emulation), and gRPC.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fusion/wire/v1/broker.pb.h"
#include "fusion/wire/v1/tensor.pb.h"
#include "worker/tensor.h"

namespace fusion::worker {

/// Names one message of a job: what travels, when.
struct TensorKey {
  int64_t step = 0;
  int32_t micro_batch = 0;  ///< validation counts on from the training micro-batches; 0 for variables
  int32_t edge = 0;         ///< Edge.id, SharedVariable.id, or the child's stage of a decision
  wire::v1::Direction direction = wire::v1::FORWARD;
  int32_t consumer = -1;  ///< cotangent of one consumer, or -1
  auto operator<=>(const TensorKey&) const = default;
};

/// A tensor as it travels: its codec's message and what is needed to decode it.
struct EncodedTensor {
  TensorKey key;
  std::string codec;                    ///< name, see codec/codec.h
  DataType dtype = graph::v1::FLOAT32;  ///< of the decoded tensor
  std::vector<int64_t> shape;           ///< of the decoded tensor
  bool absent = false;                  ///< no gradient: nothing follows
  std::shared_ptr<std::byte>
      data;  ///< `bytes` of them, 64-byte aligned; for codec fp32 the tensor's own storage
  int64_t bytes = 0;
};

/// What went out to one peer since the start.
struct LinkCounters {
  int64_t bytes = 0;        ///< headers included
  int64_t dense_bytes = 0;  ///< the same tensors as fp32 (other types: as they are)
  double busy_seconds = 0;  ///< time with something under way
};

/// What a transport tells its stage.
struct TransportHandlers {
  std::function<void(int from_stage, EncodedTensor)> receive;
  /// `to_stage` has granted: one more tensor of this edge and direction is done with there.
  std::function<void(int to_stage, int32_t edge, wire::v1::Direction direction)> granted;
  std::function<void(int peer_stage, absl::Status)> error;
};

/// Thread-safe. Handlers run on transport threads, must be quick and must not call back into the transport
/// but for Grant.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Once, before Connect. What peers send earlier waits for it. After Close (or the destructor) no handler
  /// runs.
  virtual void SetHandlers(TransportHandlers handlers) = 0;

  /// HOST:PORT on which this stage receives; known from construction on.
  virtual std::string address() const = 0;

  /// Once, before SetWindow and Connect: imitates these ways out (Assignment.links), with the resources'
  /// state in a file that the workers of a machine share. A worker learns them after it has told the broker
  /// its address. Without: full speed.
  virtual absl::Status EmulateLinks(const std::vector<wire::v1::EmulatedLink>& links,
                                    const std::string& link_state_file) = 0;

  /// Dials the peers (stage -> address) that this stage sends to; returns when all streams said Hello, or
  /// with the error of the one that did not within the deadline.
  virtual absl::Status Connect(const std::vector<std::pair<int, std::string>>& peers) = 0;

  /// Credits: at most `tensors` of this edge and direction are sent to `to_stage` before it grants more.
  /// Default 2.
  virtual void SetWindow(int to_stage, int32_t edge, wire::v1::Direction direction, int tensors) = 0;

  /// Never blocks: queues. Lower (step, micro-batch) goes first among what waits; what is once a step before
  /// values.
  virtual void Send(int to_stage, EncodedTensor tensor) = 0;

  /// The consumer is done with one tensor of this edge and direction: its sender may send one more.
  virtual void Grant(int from_stage, int32_t edge, wire::v1::Direction direction) = 0;

  virtual LinkCounters Counters(int to_stage) const = 0;

  /// Sends what is queued, then closes; bounded by `deadline_seconds`.
  virtual absl::Status Close(double deadline_seconds) = 0;
};

}  // namespace fusion::worker
