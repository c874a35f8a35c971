// What the transports of this folder share: links out, streams in, handlers. They differ in how bytes travel.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/transport/link.h"
#include "worker/transport/link_emulation.h"
#include "worker/transport/options.h"
#include "worker/transport/receiving_end.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

/// Thread-safe. A derived class calls Abandon in its destructor.
class StageTransport : public Transport {
 public:
  /// Emulated ways by stage.
  using Ways = std::map<int, std::shared_ptr<EmulatedWay>>;
  static absl::StatusOr<Ways> MakeWays(const TransportOptions& options);

  void SetHandlers(TransportHandlers handlers) final;
  absl::Status EmulateLinks(const std::vector<wire::v1::EmulatedLink>& links,
                            const std::string& link_state_file) final;
  absl::Status Connect(const std::vector<std::pair<int, std::string>>& peers) final;
  void SetWindow(int to_stage, int32_t edge, wire::v1::Direction direction, int tensors) final;
  void Send(int to_stage, EncodedTensor tensor) final;
  void Grant(int from_stage, int32_t edge, wire::v1::Direction direction) final;
  LinkCounters Counters(int to_stage) const final;
  absl::Status Close(double deadline_seconds) final;

 protected:
  StageTransport(TransportOptions options, Ways ways);

  const std::shared_ptr<ReceivingSide>& receiving() const { return receiving_; }
  /// Ends without sending what waits, unless Close was called: peers see their streams break.
  void Abandon();

  /// The handlers are set: streams may come in.
  virtual void Accept() = 0;
  /// Opens `link` with a writer to the peer. Whether the peer answers is not waited for.
  virtual absl::Status Dial(int stage, const std::string& address, std::shared_ptr<Link> link) = 0;
  /// Ends the calls that were dialled: in order where the link has said WritesDone, else abruptly, at the
  /// deadline at the latest. They do not use their links afterwards.
  virtual void EndDialled(absl::Time deadline) = 0;
  /// Ends the streams that came in and takes no more.
  virtual void EndAccepted(absl::Time deadline) = 0;

 private:
  std::shared_ptr<Link> LinkTo(int stage);
  /// The links to shut down; none where that has happened.
  std::map<int, std::shared_ptr<Link>> Shut();
  void End(const std::map<int, std::shared_ptr<Link>>& links, absl::Time deadline);

  const std::shared_ptr<ReceivingSide> receiving_;

  mutable absl::Mutex mutex_;
  Ways ways_ ABSL_GUARDED_BY(mutex_);  ///< those of the links to come
  std::map<int, std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  bool shut_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace fusion::worker
