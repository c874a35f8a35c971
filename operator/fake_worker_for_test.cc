// A worker without an engine for the control plane's tests: it speaks the session protocol, invents its
// numbers, and fails where it is told to.
//
//   fake_worker stage --broker HOST:PORT --job JOB --stage N --compnode NAME --incarnation N [--fault
//   KIND:STAGE@STEP[#INCARNATION]]
// It goes on from the highest step-N where it is told to resume. Without an incarnation, a fault is in each.
// KIND: crash (exit status 3), kill (signal 9), hang (stops answering), report (Failure, then exit status 1).
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "fusion/wire/v1/broker.grpc.pb.h"
#include "operator/broker/run_shape.h"

namespace fusion::op {
namespace {

using wire::v1::BrokerMessage;
using wire::v1::WorkerMessage;

constexpr auto kStepTime = std::chrono::milliseconds(5);

class FakeWorker {
 public:
  explicit FakeWorker(std::map<std::string, std::string> flags)
      : flags_(std::move(flags)), stage_(std::stoi(flags_.at("--stage"))) {}

  int Run() {
    auto stub = wire::v1::Broker::NewStub(
        grpc::CreateChannel(flags_.at("--broker"), grpc::InsecureChannelCredentials()));
    stream_ = stub->Session(&context_);
    WorkerMessage hello;
    wire::v1::Register& registration = *hello.mutable_register_();
    registration.set_min_version(1);
    registration.set_max_version(1);
    registration.set_job(flags_.at("--job"));
    registration.set_stage(stage_);
    registration.set_compnode(flags_.at("--compnode"));
    registration.set_incarnation(std::stoll(flags_.at("--incarnation")));
    registration.set_pid(getpid());
    Send(hello);
    BrokerMessage message;
    while (stream_->Read(&message)) {
      if (message.has_stop()) break;
      Handle(message);
    }
    {
      absl::MutexLock lock(&mutex_);
      stopped_ = true;
    }
    if (trainer_.joinable()) trainer_.join();
    stream_->WritesDone();
    const grpc::Status status = stream_->Finish();
    std::printf("stage %d ends: %s\n", stage_, status.error_message().c_str());
    return message.has_stop() ? 0 : 1;
  }

 private:
  void Handle(const BrokerMessage& message) {
    WorkerMessage answer;
    switch (message.kind_case()) {
      case BrokerMessage::kAssignment:
        assignment_ = message.assignment();
        shape_ = ShapeOf(assignment_.spec(), assignment_.stages());
        return;
      case BrokerMessage::kPeers:
        *answer.mutable_ready() = Ready();
        return Send(answer);
      case BrokerMessage::kStart:
        trainer_ = std::thread([this, first = message.start().first_step()] { Train(first); });
        return;
      case BrokerMessage::kPing:
        answer.mutable_pong()->set_sequence(message.ping().sequence());
        return Send(answer);
      case BrokerMessage::kAssemble: {
        const std::string folder =
            absl::StrCat(assignment_.checkpoint_directory(), "/step-", message.assemble().step());
        std::filesystem::create_directories(folder);
        for (const std::string& part : message.assemble().parts()) std::filesystem::remove(part);
        answer.mutable_checkpoint_done()->set_step(message.assemble().step());
        answer.mutable_checkpoint_done()->set_path(folder);
        return Send(answer);
      }
      default:
        return;
    }
  }

  wire::v1::Ready Ready() const {
    wire::v1::Ready ready;
    if (!assignment_.resume() || stage_ != 0) return ready;
    for (const auto& entry : std::filesystem::directory_iterator(assignment_.checkpoint_directory())) {
      const std::string name = entry.path().filename();
      if (name.rfind("step-", 0) != 0 || std::stoll(name.substr(5)) <= ready.checkpoint_step()) continue;
      ready.set_checkpoint(entry.path());
      ready.set_checkpoint_step(std::stoll(name.substr(5)));
    }
    if (!ready.checkpoint().empty()) ready.add_notes("goes on from " + ready.checkpoint());
    return ready;
  }

  void Train(int64_t first_step) {
    for (int64_t step = first_step; step <= shape_.steps; ++step) {
      std::printf("stage %d step %lld\n", stage_, static_cast<long long>(step));
      std::fflush(stdout);
      Fault(step);
      const int64_t start = NowNs();
      std::this_thread::sleep_for(kStepTime);
      if (Stopped()) return;
      WorkerMessage message;
      wire::v1::StepReport& report = *message.mutable_step();
      report.set_step(step);
      report.set_stage(stage_);
      report.set_start_ns(start);
      report.set_end_ns(NowNs());
      if (Last()) report.set_loss(1.0 / static_cast<double>(3 * step));
      Send(message);
      if (shape_.ValidatesAfter(step)) Validate(step);
      if (shape_.CheckpointsAfter(step)) WritePart(step);
    }
    if (shape_.evaluate) Validate(0);
    WorkerMessage finished;
    finished.mutable_finished()->set_step(shape_.steps);
    Send(finished);
  }

  void Validate(int64_t step) {
    if (!Last()) return;
    WorkerMessage message;
    message.mutable_validation()->set_step(step);
    message.mutable_validation()->set_loss(0.25);
    Send(message);
  }

  void WritePart(int64_t step) {
    const std::string path =
        absl::StrCat(assignment_.checkpoint_directory(), "/.step-", step, "-", stage_, ".partial");
    std::ofstream(path) << "part";
    WorkerMessage message;
    message.mutable_checkpoint_part()->set_step(step);
    message.mutable_checkpoint_part()->set_path(path);
    Send(message);
  }

  void Fault(int64_t step) {
    const auto flag = flags_.find("--fault");
    if (flag == flags_.end()) return;
    const size_t colon = flag->second.find(':');
    const std::string moment = absl::StrCat(stage_, "@", step);
    const std::string wanted = flag->second.substr(colon + 1);
    if (wanted != moment && wanted != absl::StrCat(moment, "#", flags_.at("--incarnation"))) return;
    const std::string kind = flag->second.substr(0, colon);
    std::printf("stage %d is told to %s\n", stage_, kind.c_str());
    std::fflush(stdout);
    if (kind == "crash") _exit(3);
    if (kind == "kill") raise(SIGKILL);
    if (kind == "hang") raise(SIGSTOP);
    if (kind == "report") {
      WorkerMessage message;
      message.mutable_failure()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
      message.mutable_failure()->set_message("out of memory");
      Send(message);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      _exit(1);
    }
  }

  void Send(const WorkerMessage& message) {
    absl::MutexLock lock(&mutex_);
    stream_->Write(message);
  }
  bool Stopped() {
    absl::MutexLock lock(&mutex_);
    return stopped_;
  }
  bool Last() const { return stage_ + 1 == shape_.stages; }
  static int64_t NowNs() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  const std::map<std::string, std::string> flags_;
  const int stage_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<WorkerMessage, BrokerMessage>> stream_;
  wire::v1::Assignment assignment_;
  RunShape shape_;
  std::thread trainer_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace
}  // namespace fusion::op

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::map<std::string, std::string> flags;
  for (int i = 2; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  return fusion::op::FakeWorker(std::move(flags)).Run();
}
