// What a stage may send and receive: the edges and shared variables of its program by id, and the check of
// what arrives.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "worker/pipeline/edge_codec.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

/// Whether messages of this direction are of shared variables, once a step.
inline bool IsOfVariable(wire::v1::Direction direction) {
  return direction == wire::v1::VARIABLE_VALUE || direction == wire::v1::VARIABLE_GRADIENT;
}

/// Whether a direction has one message a step and lane, of no micro-batch: all but values and their
/// gradients.
inline bool IsOncePerStep(wire::v1::Direction direction) {
  return IsOfVariable(direction) || direction == wire::v1::STEP_NORMS || direction == wire::v1::STEP_DECISION;
}

/// A key in words: "edge 3 ('h.0.mlp'), forward, step 2, micro-batch 1".
std::string DescribeKey(const TensorKey& key, const std::string& name);

/// Read-only after Make. Refers to the program, which must outlive it.
class MessageTable {
 public:
  /// `samples`: of a micro-batch.
  static absl::StatusOr<MessageTable> Make(const graph::v1::StageProgram& program, int64_t samples);

  /// INVALID_ARGUMENT with peer and edge unless `message` is one that `from_stage` may send to this stage, of
  /// the shape, dtype, codec and size agreed.
  absl::Status Check(int from_stage, const EncodedTensor& message) const;

  const graph::v1::Edge& incoming(int32_t id) const { return *incoming_.at(id); }
  const graph::v1::Edge& outgoing(int32_t id) const { return *outgoing_.at(id); }

  /// Codecs of all edges, by id.
  const std::map<int32_t, CodecTimeline>& codecs() const { return codecs_; }

  /// Stages that this one sends something to.
  std::set<int> Receivers() const;

  std::string Describe(const TensorKey& key) const;

 private:
  /// What is known of a message from its key.
  struct Expected {
    int peer = -1;
    graph::v1::TensorSpec spec;
    std::string codec = kDenseMessage;
    int consumers = 0;  ///< cotangents told apart; 0: consumer must be -1
    bool may_be_absent = false;
  };

  /// NOT_FOUND for an edge that does not arrive here.
  absl::StatusOr<Expected> Expect(const TensorKey& key) const;
  absl::StatusOr<Expected> ExpectVariable(const TensorKey& key) const;
  absl::StatusOr<Expected> ExpectDecision(const TensorKey& key) const;

  const graph::v1::StageProgram* program_ = nullptr;
  int64_t samples_ = 0;
  std::map<int32_t, const graph::v1::Edge*> incoming_;
  std::map<int32_t, const graph::v1::Edge*> outgoing_;
  std::map<int32_t, const graph::v1::SharedVariable*> borrowed_;
  std::map<int32_t, const graph::v1::SharedVariable*> lent_;
  std::map<std::string, const graph::v1::TensorSpec*> variables_;
  std::map<int32_t, CodecTimeline> codecs_;
};

/// The spec's shape for a micro-batch of `samples`.
std::vector<int64_t> ShapeFor(const graph::v1::TensorSpec& spec, int64_t samples);

}  // namespace fusion::worker
