#include "worker/transport/receiving_end.h"

#include "absl/strings/str_cat.h"

namespace fusion::worker {

absl::Status ReceivingSide::Admit(const wire::v1::Hello& hello, const std::shared_ptr<ReceivingEnd>& end) {
  if (hello.max_version() < kMinTensorVersion || hello.min_version() > kMaxTensorVersion) {
    return absl::UnimplementedError(
        absl::StrCat("stage ", hello.from_stage(), " speaks versions ", hello.min_version(), " to ",
                     hello.max_version(), " of the tensor protocol, stage ", options_.stage, " speaks ",
                     kMinTensorVersion, " to ", kMaxTensorVersion, "; run the same release on both"));
  }
  if (hello.job() != options_.job) {
    return absl::PermissionDeniedError(
        absl::StrCat("a stream of job '", hello.job(), "' for a worker of job '", options_.job, "'"));
  }
  if (hello.incarnation() != options_.incarnation) {
    return absl::AbortedError(absl::StrCat("a stream of incarnation ", hello.incarnation(), " of job '",
                                           options_.job, "', which is at ", options_.incarnation));
  }
  if (hello.to_stage() != options_.stage || hello.from_stage() < 0) {
    return absl::NotFoundError(absl::StrCat("a stream from stage ", hello.from_stage(), " to stage ",
                                            hello.to_stage(), " has reached stage ", options_.stage));
  }
  absl::MutexLock lock(&mutex_);
  std::weak_ptr<ReceivingEnd>& place = ends_[hello.from_stage()];
  if (place.lock() != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("stage ", hello.from_stage(), " has a stream to stage ", options_.stage, " already"));
  }
  place = end;
  return absl::OkStatus();
}

void ReceivingSide::Release(int from_stage, const ReceivingEnd* end) {
  absl::MutexLock lock(&mutex_);
  const auto found = ends_.find(from_stage);
  if (found != ends_.end() && found->second.lock().get() == end) ends_.erase(found);
}

std::shared_ptr<ReceivingEnd> ReceivingSide::Find(int from_stage) {
  absl::MutexLock lock(&mutex_);
  const auto found = ends_.find(from_stage);
  return found == ends_.end() ? nullptr : found->second.lock();
}

void ReceivingSide::CloseAll(absl::Time deadline) {
  std::map<int, std::weak_ptr<ReceivingEnd>> ends;
  {
    absl::MutexLock lock(&mutex_);
    ends = ends_;
  }
  for (const auto& [stage, weak] : ends) {
    if (const auto end = weak.lock(); end != nullptr) end->Close(deadline);
  }
}

absl::Status ReceivingEnd::OnFrame(const Pieces& pieces) {
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || failed_) return absl::FailedPreconditionError("the stream is over");
  }
  const absl::StatusOr<ReceivedFrame> frame = ParseFrame(pieces);
  absl::Status status = frame.ok() ? Take(*frame) : frame.status();
  int from_stage;
  {
    absl::MutexLock lock(&mutex_);
    from_stage = from_stage_;
    if (!status.ok()) {
      failed_ = true;
      error_due_ = status;
    }
  }
  // Before the peer hears of it, and may try again.
  if (!status.ok() && from_stage >= 0) side_->Release(from_stage, this);
  WriteReply();
  if (!status.ok() && from_stage >= 0) {
    side_->gate().Error(from_stage, absl::Status(status.code(), absl::StrCat("from stage ", from_stage, ": ",
                                                                             status.message())));
  }
  return status;
}

absl::Status ReceivingEnd::Take(const ReceivedFrame& frame) {
  int from_stage;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_by_peer_) return absl::FailedPreconditionError("a frame after Close");
    from_stage = from_stage_;
  }
  if (from_stage < 0) return Greet(frame.header);
  if (frame.header.has_close()) {
    side_->Release(from_stage, this);
    absl::MutexLock lock(&mutex_);
    closed_by_peer_ = true;
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<EncodedTensor>> tensor = inbox_.Take(frame);
  if (!tensor.ok()) return tensor.status();
  {
    // Before the handler, which may be what Close waits for.
    absl::MutexLock lock(&mutex_);
    bytes_ += static_cast<uint64_t>(frame.bytes);
    tensors_ = inbox_.tensors();
    acknowledgement_due_ = true;
  }
  if (tensor->has_value()) side_->gate().Receive(from_stage, *std::move(*tensor));
  return absl::OkStatus();
}

absl::Status ReceivingEnd::Greet(const wire::v1::FrameHeader& header) {
  if (!header.has_hello()) return absl::FailedPreconditionError("a stream that does not begin with Hello");
  if (absl::Status status = side_->Admit(header.hello(), shared_from_this()); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  from_stage_ = header.hello().from_stage();
  hello_due_ = true;
  return absl::OkStatus();
}

void ReceivingEnd::Grant(int32_t edge, wire::v1::Direction direction) {
  {
    absl::MutexLock lock(&mutex_);
    ++granted_[{edge, direction}];
    acknowledgement_due_ = true;
  }
  WriteReply();
}

wire::v1::FrameHeader ReceivingEnd::NextReply() {
  wire::v1::FrameHeader reply;
  if (hello_due_) {
    hello_due_ = false;
    wire::v1::Hello& hello = *reply.mutable_hello();
    hello.set_min_version(kMinTensorVersion);
    hello.set_max_version(kMaxTensorVersion);
    hello.set_job(side_->options().job);
    hello.set_incarnation(side_->options().incarnation);
    hello.set_from_stage(side_->options().stage);
    hello.set_to_stage(from_stage_);
    return reply;
  }
  if (acknowledgement_due_) {
    acknowledgement_due_ = false;
    wire::v1::Acknowledge& acknowledge = *reply.mutable_acknowledge();
    acknowledge.set_tensors(tensors_);
    acknowledge.set_bytes(bytes_);
    for (const auto& [edge, granted] : granted_) {
      auto& credit = *acknowledge.add_credits();
      credit.set_edge(edge.first);
      credit.set_direction(edge.second);
      credit.set_granted(granted);
    }
    return reply;
  }
  reply.mutable_error()->set_code(static_cast<int>(error_due_->code()));
  reply.mutable_error()->set_message(std::string(error_due_->message()));
  error_due_.reset();
  over_ = true;
  return reply;
}

void ReceivingEnd::WriteReply() {
  wire::v1::FrameHeader reply;
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || writing_ || !HasReply()) return;
    writing_ = true;
    reply = NextReply();
  }
  writer_->Write(reply);
}

void ReceivingEnd::OnReplyWritten() {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
  }
  WriteReply();
}

void ReceivingEnd::OnDisconnected() {
  int from_stage;
  {
    absl::MutexLock lock(&mutex_);
    if (over_ || failed_ || closed_by_peer_) return;
    over_ = true;
    from_stage = from_stage_;
  }
  if (from_stage >= 0) {
    side_->Release(from_stage, this);
    side_->gate().Error(from_stage, absl::UnavailableError(absl::StrCat("the stream from stage ", from_stage,
                                                                        " broke without Close")));
  }
}

void ReceivingEnd::Close(absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithDeadline(absl::Condition(this, &ReceivingEnd::Silent), deadline);
    over_ = true;
  }
  writer_->End();
}

}  // namespace fusion::worker
