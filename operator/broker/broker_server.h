// The broker over gRPC.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "operator/broker/broker.h"
#include "operator/broker/run_protocol.h"
#include "operator/broker/session.h"

namespace fusion::op {

/// Everything that happens is posted to one loop thread, which owns the runs and calls the observer. The
/// destructor ends all sessions.
class BrokerServer : public Broker {
 public:
  /// Serves on `listen`, "127.0.0.1:0" for a free port of the loopback interface. `observer` outlives the
  /// broker.
  static absl::StatusOr<std::unique_ptr<BrokerServer>> Start(const std::string& listen,
                                                             RunObserver& observer);
  ~BrokerServer() override;

  std::string address() const override { return address_; }
  absl::Status Admit(RunSpec run) override;
  std::optional<RunStatus> Find(const std::string& job) const override;
  void WorkerExited(const WorkerExit& exit) override;
  void Stop(const std::string& job, const std::string& reason) override;
  void Forget(const std::string& job) override;

 private:
  class Service;

  struct Run {
    explicit Run(RunSpec spec) : protocol(std::move(spec)) {}
    RunProtocol protocol;
    std::map<int, std::shared_ptr<Session>> sessions;  ///< by stage
  };
  struct Member {
    std::string job;
    int64_t incarnation;
    int stage;
  };

  explicit BrokerServer(RunObserver& observer);

  void Post(std::function<void()> task);
  void RunLoop();
  Instant Now() const;

  void AdmitFromLoop(RunSpec run, absl::Status& status);
  void MessageFromLoop(const std::shared_ptr<Session>& session, const wire::v1::WorkerMessage& message);
  void RegisterFromLoop(const std::shared_ptr<Session>& session, const wire::v1::Register& message);
  void EndFromLoop(const std::shared_ptr<Session>& session);
  void TickFromLoop();
  void PerformFromLoop(const std::string& job, Run& run, const RunOutputs& outputs);
  void PublishFromLoop(const std::string& job, const Run& run);

  RunObserver& observer_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;

  // Used by the loop alone.
  std::map<std::string, Run> runs_;                     ///< by job
  std::map<std::shared_ptr<Session>, Member> members_;  ///< registered sessions

  mutable absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, RunStatus> statuses_ ABSL_GUARDED_BY(mutex_);  ///< copies for Find
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread loop_;
};

}  // namespace fusion::op
