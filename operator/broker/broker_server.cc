#include "operator/broker/broker_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace fusion::op {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;
constexpr auto kShutdownPatience = std::chrono::milliseconds(500);

}  // namespace

class BrokerServer::Service : public wire::v1::Broker::CallbackService {
 public:
  explicit Service(BrokerServer& broker) : broker_(broker) {}

  grpc::ServerBidiReactor<wire::v1::WorkerMessage, wire::v1::BrokerMessage>* Session(
      grpc::CallbackServerContext* /*context*/) override {
    op::Session::Handlers handlers;
    handlers.on_message = [this](std::shared_ptr<op::Session> session, wire::v1::WorkerMessage message) {
      broker_.Post([this, session = std::move(session), message = std::move(message)] {
        broker_.MessageFromLoop(session, message);
      });
    };
    handlers.on_end = [this](std::shared_ptr<op::Session> session) {
      broker_.Post([this, session = std::move(session)] { broker_.EndFromLoop(session); });
    };
    return op::Session::Start(std::move(handlers)).get();
  }

 private:
  BrokerServer& broker_;
};

BrokerServer::BrokerServer(RunObserver& observer) : observer_(observer) {}

absl::StatusOr<std::unique_ptr<BrokerServer>> BrokerServer::Start(const std::string& listen,
                                                                  RunObserver& observer) {
  std::unique_ptr<BrokerServer> broker(new BrokerServer(observer));
  broker->service_ = std::make_unique<Service>(*broker);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.RegisterService(broker->service_.get());
  broker->server_ = builder.BuildAndStart();
  if (broker->server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("the broker cannot listen on ", listen));
  }
  broker->address_ = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
  broker->loop_ = std::thread([raw = broker.get()] { raw->RunLoop(); });
  return broker;
}

BrokerServer::~BrokerServer() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + kShutdownPatience);
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  if (loop_.joinable()) loop_.join();
}

Instant BrokerServer::Now() const { return absl::FromChrono(std::chrono::steady_clock::now() - start_); }

void BrokerServer::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void BrokerServer::RunLoop() {
  Instant next_tick = Now();
  while (true) {
    std::deque<std::function<void()>> tasks;
    {
      absl::MutexLock lock(&mutex_);
      const auto work = [this] {
        mutex_.AssertReaderHeld();
        return closing_ || !tasks_.empty();
      };
      mutex_.AwaitWithTimeout(absl::Condition(&work), next_tick - Now());
      if (closing_ && tasks_.empty()) return;
      tasks.swap(tasks_);
    }
    for (const std::function<void()>& task : tasks) task();
    if (Now() < next_tick) continue;
    TickFromLoop();
    next_tick = Now() + kTickInterval;
  }
}

absl::Status BrokerServer::Admit(RunSpec run) {
  if (run.assignments.empty() || run.assignments.size() != run.compnodes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("job ", run.job, ": a run needs a compnode for each assignment"));
  }
  absl::Status status;
  absl::Notification done;
  Post([&] {
    AdmitFromLoop(std::move(run), status);
    done.Notify();
  });
  done.WaitForNotification();
  return status;
}

std::optional<RunStatus> BrokerServer::Find(const std::string& job) const {
  absl::MutexLock lock(&mutex_);
  const auto found = statuses_.find(job);
  if (found == statuses_.end()) return std::nullopt;
  return found->second;
}

void BrokerServer::WorkerExited(const WorkerExit& exit) {
  Post([this, exit] {
    const auto run = runs_.find(exit.worker.job);
    if (run != runs_.end())
      PerformFromLoop(run->first, run->second, run->second.protocol.WorkerExited(exit, Now()));
  });
}

void BrokerServer::Stop(const std::string& job, const std::string& reason) {
  Post([this, job, reason] {
    const auto run = runs_.find(job);
    if (run != runs_.end()) PerformFromLoop(job, run->second, run->second.protocol.Stop(reason, Now()));
  });
}

void BrokerServer::Forget(const std::string& job) {
  Stop(job, "the job is gone");
  Post([this, job] {
    runs_.erase(job);
    absl::MutexLock lock(&mutex_);
    statuses_.erase(job);
  });
}

void BrokerServer::AdmitFromLoop(RunSpec spec, absl::Status& status) {
  const std::string job = spec.job;
  const auto found = runs_.find(job);
  if (found != runs_.end()) {
    const int64_t known = found->second.protocol.run().incarnation;
    if (spec.incarnation == known) return;
    if (spec.incarnation < known) {
      status = absl::AbortedError(
          absl::StrCat("job ", job, " is at incarnation ", known, ", which is above ", spec.incarnation));
      return;
    }
    PerformFromLoop(job, found->second,
                    found->second.protocol.Stop("a later incarnation of the job begins", Now()));
    runs_.erase(found);
  }
  const auto run = runs_.emplace(job, std::move(spec)).first;
  PublishFromLoop(job, run->second);
}

void BrokerServer::MessageFromLoop(const std::shared_ptr<Session>& session,
                                   const wire::v1::WorkerMessage& message) {
  const auto member = members_.find(session);
  if (member == members_.end()) {
    if (message.has_register_()) {
      RegisterFromLoop(session, message.register_());
    } else {
      session->Close(absl::FailedPreconditionError("a session begins with Register"));
    }
    return;
  }
  const auto run = runs_.find(member->second.job);
  if (run == runs_.end() || run->second.protocol.run().incarnation != member->second.incarnation) return;
  PerformFromLoop(run->first, run->second,
                  run->second.protocol.Receive(member->second.stage, message, Now()));
}

void BrokerServer::RegisterFromLoop(const std::shared_ptr<Session>& session,
                                    const wire::v1::Register& message) {
  const auto run = runs_.find(message.job());
  if (run == runs_.end()) {
    session->Close(absl::NotFoundError(absl::StrCat("no job ", message.job(), " is running here")));
    return;
  }
  absl::StatusOr<RunOutputs> outputs = run->second.protocol.Register(message, Now());
  if (!outputs.ok()) {
    session->Close(outputs.status());
    return;
  }
  members_.emplace(session, Member{message.job(), message.incarnation(), message.stage()});
  run->second.sessions.emplace(message.stage(), session);
  PerformFromLoop(run->first, run->second, *outputs);
}

void BrokerServer::EndFromLoop(const std::shared_ptr<Session>& session) {
  const auto found = members_.find(session);
  if (found == members_.end()) return;
  const Member member = found->second;
  members_.erase(found);
  const auto run = runs_.find(member.job);
  if (run == runs_.end() || run->second.protocol.run().incarnation != member.incarnation) return;
  run->second.sessions.erase(member.stage);
  PerformFromLoop(run->first, run->second, run->second.protocol.SessionEnded(member.stage, Now()));
}

void BrokerServer::TickFromLoop() {
  for (auto& [job, run] : runs_) PerformFromLoop(job, run, run.protocol.Tick(Now()));
}

void BrokerServer::PerformFromLoop(const std::string& job, Run& run, const RunOutputs& outputs) {
  for (const auto& [stage, message] : outputs.sends) {
    const auto session = run.sessions.find(stage);
    if (session != run.sessions.end()) session->second->Send(message);
  }
  if (outputs.changed || outputs.checkpoint || !outputs.steps.empty()) PublishFromLoop(job, run);
  for (const StepRecord& record : outputs.steps) observer_.OnStep(job, record);
  if (outputs.checkpoint) observer_.OnCheckpoint(job, outputs.checkpoint->first, outputs.checkpoint->second);
  if (outputs.changed) observer_.OnChange(job);
}

void BrokerServer::PublishFromLoop(const std::string& job, const Run& run) {
  absl::MutexLock lock(&mutex_);
  statuses_[job] = run.protocol.status();
}

}  // namespace fusion::op
