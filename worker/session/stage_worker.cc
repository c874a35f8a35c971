#include "worker/session/stage_worker.h"

#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/engine/engine.h"
#include "worker/session/broker_session.h"
#include "worker/session/null_engine.h"
#include "worker/session/stage_job.h"
#include "worker/transport/grpc_transport.h"

namespace fusion::worker {
namespace {

using wire::v1::BrokerMessage;
using wire::v1::WorkerMessage;

constexpr int kProtocolVersion = 1;
constexpr absl::Duration kCloseTimeout = absl::Seconds(2);
constexpr double kTransportCloseSeconds = 2;
// From the decision to end to the end, in all.
constexpr absl::Duration kEndTimeout = absl::Seconds(6);

constexpr int kExitFailed = 1;
constexpr int kExitTerminated = 143;  // 128 + SIGTERM

struct SessionEnded {
  absl::Status status;
};
struct JobEnded {
  absl::Status status;
};
struct Termination {};
using Event = std::variant<BrokerMessage, SessionEnded, JobEnded, Termination>;

class EventQueue {
 public:
  void Push(Event event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }
  Event Next() {
    const auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); };
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&something));
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  absl::Mutex mutex_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
};

// Ends the process when its orderly end takes too long: an engine may compute for minutes.
void ExitWithin(absl::Duration timeout, int status) {
  std::thread([timeout, status] {
    absl::SleepFor(timeout);
    _exit(status);
  }).detach();
}

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const std::string& name) {
  if (name == "none") {
    return std::make_unique<NullEngine>();
  }
  return LoadEngine(name);
}

class StageWorker {
 public:
  StageWorker(const StageWorkerOptions& options, std::shared_ptr<EventQueue> events,
              std::unique_ptr<Transport> transport)
      : options_(options), events_(std::move(events)), transport_(std::move(transport)) {
    wire::v1::Register registration;
    registration.set_min_version(kProtocolVersion);
    registration.set_max_version(kProtocolVersion);
    registration.set_job(options.job);
    registration.set_stage(options.stage);
    registration.set_compnode(options.compnode);
    registration.set_incarnation(options.incarnation);
    registration.set_data_address(transport_->address());
    registration.set_pid(getpid());
    registration.set_engine(options.engine);
    session_ = std::make_unique<BrokerSession>(
        options.broker, registration,
        BrokerSession::Handlers{
            .message = [events = events_](BrokerMessage message) { events->Push(std::move(message)); },
            .ended = [events =
                          events_](absl::Status status) { events->Push(SessionEnded{std::move(status)}); }});
  }

  int Run() {
    std::optional<int> status;
    while (!status.has_value()) {
      Event event = events_->Next();
      status = std::visit([this](auto& of_kind) { return Handle(of_kind); }, event);
    }
    return *status;
  }

  // Everything ends in time or with the process.
  void End(int status) {
    ExitWithin(kEndTimeout, status);
    if (job_ != nullptr) {
      job_->Cancel(absl::CancelledError("the worker ends"));
      compute_.join();
    }
    // Peers may still want what is queued, but only of a stage that is whole.
    const absl::Status closed = transport_->Close(status == 0 ? kTransportCloseSeconds : 0);
    if (!closed.ok() && status == 0) {
      Log(absl::StrCat("closing links: ", closed.message()));
    }
    session_->Close(kCloseTimeout);
    job_.reset();
  }

 private:
  std::optional<int> Handle(BrokerMessage& message) {
    switch (message.kind_case()) {
      case BrokerMessage::kAssignment:
        return StartJob(*message.mutable_assignment());
      case BrokerMessage::kStop:
        if (!message.stop().reason().empty()) {
          Log(absl::StrCat("stopped by the broker: ", message.stop().reason()));
        }
        return 0;
      default:
        break;
    }
    if (job_ == nullptr) {
      return Fail(absl::FailedPreconditionError("the broker sent another message before the assignment"));
    }
    switch (message.kind_case()) {
      case BrokerMessage::kPeers:
        job_->OnPeers(message.peers());
        break;
      case BrokerMessage::kStart:
        job_->OnStart(message.start());
        break;
      case BrokerMessage::kAssemble:
        job_->OnAssemble(message.assemble());
        break;
      default:
        break;  // of a later version
    }
    return std::nullopt;
  }

  std::optional<int> Handle(SessionEnded& ended) {
    Log(absl::StrCat("the broker at ", options_.broker,
                     " is lost: ", ended.status.ok() ? "it ended the session" : ended.status.ToString()));
    return kExitFailed;
  }

  std::optional<int> Handle(JobEnded& ended) {
    return ended.status.ok() ? std::nullopt : std::optional<int>(Fail(ended.status));
  }

  std::optional<int> Handle(Termination&) {
    Log("asked to end");
    return kExitTerminated;
  }

  std::optional<int> StartJob(wire::v1::Assignment& assignment) {
    if (job_ != nullptr) {
      return Fail(absl::FailedPreconditionError("the broker assigned a stage twice"));
    }
    if (assignment.version() > kProtocolVersion || assignment.program().stage() != options_.stage) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("the broker assigned stage ", assignment.program().stage(), " in version ",
                       assignment.version(), " to stage ", options_.stage)));
    }
    job_ = std::make_unique<StageJob>(
        std::move(assignment), [name = options_.engine] { return MakeEngine(name); }, *transport_,
        [this](WorkerMessage message) { session_->Send(std::move(message)); });
    compute_ = std::thread([this] { events_->Push(JobEnded{job_->Run()}); });
    return std::nullopt;
  }

  int Fail(const absl::Status& status) {
    Log(status.ToString());
    WorkerMessage message;
    message.mutable_failure()->set_code(static_cast<int>(status.code()));
    message.mutable_failure()->set_message(std::string(status.message()));
    session_->Send(std::move(message));
    return kExitFailed;
  }

  void Log(const std::string& text) const {
    std::cerr << absl::StrCat("fusion-worker: job ", options_.job, " stage ", options_.stage, ": ", text,
                              "\n");
  }

  const StageWorkerOptions options_;
  const std::shared_ptr<EventQueue> events_;
  const std::unique_ptr<Transport> transport_;
  std::unique_ptr<BrokerSession> session_;
  std::unique_ptr<StageJob> job_;
  std::thread compute_;
};

}  // namespace

int RunStageWorker(const StageWorkerOptions& options, ProcessSignals& signals) {
  TransportOptions transport_options;
  transport_options.job = options.job;
  transport_options.incarnation = options.incarnation;
  transport_options.stage = options.stage;
  auto transport = MakeGrpcTransport(transport_options, options.listen);
  if (!transport.ok()) {
    std::cerr << "fusion-worker: " << transport.status() << "\n";
    return kExitFailed;
  }
  const auto events = std::make_shared<EventQueue>();
  signals.OnTermination([events] { events->Push(Termination{}); });
  StageWorker worker(options, events, *std::move(transport));
  const int status = worker.Run();
  worker.End(status);
  return status;
}

}  // namespace fusion::worker
