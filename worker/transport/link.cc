#include "worker/transport/link.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr double kFrameSeconds = 0.02;
constexpr int64_t kMinPayloadBytes = 4096;
/// What the two machines add to a round trip before an acknowledgement is acted upon.
constexpr double kHostSeconds = 0.005;
/// How long before the link is free the next frame is chosen, so that a late wake-up leaves no gap.
constexpr int64_t kLeadNanoseconds = 2'000'000;

bool IsFloating(DataType dtype) {
  return dtype == graph::v1::FLOAT32 || dtype == graph::v1::FLOAT16 || dtype == graph::v1::BFLOAT16 ||
         dtype == graph::v1::FLOAT64;
}

int64_t DenseBytes(const wire::v1::TensorDescriptor& descriptor) {
  if (descriptor.absent()) return 0;
  int64_t bytes = IsFloating(descriptor.dtype()) ? 4 : ElementBytes(descriptor.dtype());
  for (const int64_t extent : descriptor.shape()) bytes *= extent;
  return bytes;
}

LinkLimits LimitsOf(const EmulatedWay* way) {
  if (way == nullptr) return {};
  return LinkLimits::For(way->bytes_per_second(), static_cast<double>(way->latency()) * 1e-9);
}

}  // namespace

LinkLimits LinkLimits::For(double bytes_per_second, double latency_seconds) {
  LinkLimits limits;
  if (bytes_per_second <= 0) return limits;
  const double frame = std::clamp(bytes_per_second * kFrameSeconds, static_cast<double>(kMinPayloadBytes),
                                  static_cast<double>(kMaxPayloadBytes));
  const double under_way = bytes_per_second * (2 * latency_seconds + kHostSeconds);
  limits.frame_bytes = std::llround(frame);
  limits.unacknowledged_bytes = std::llround(under_way) + 2 * limits.frame_bytes;
  return limits;
}

Link::Link(int to_stage, std::shared_ptr<EmulatedWay> way, std::shared_ptr<ReceivingSide> side)
    : to_stage_(to_stage),
      way_(std::move(way)),
      side_(std::move(side)),
      limits_(LimitsOf(way_.get())),
      outbox_(limits_.frame_bytes) {}

Link::~Link() { Stop(); }

void Link::Send(EncodedTensor tensor) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return;
  outbox_.Push(std::move(tensor));
  if (peer_closed_) arrived_.push_back({.due = 0, .what = absl::OkStatus()});  // now it is an error
  changed_.Signal();
}

void Link::SetWindow(int32_t edge, wire::v1::Direction direction, int tensors) {
  absl::MutexLock lock(&mutex_);
  outbox_.SetWindow(edge, direction, tensors);
  changed_.Signal();
}

LinkCounters Link::Counters() const {
  absl::MutexLock lock(&mutex_);
  LinkCounters counters = counters_;
  if (busy_since_ != 0)
    counters.busy_seconds += static_cast<double>(MonotonicNanoseconds() - busy_since_) * 1e-9;
  return counters;
}

void Link::Open(std::shared_ptr<FrameWriter> writer) {
  wire::v1::FrameHeader header;
  wire::v1::Hello& hello = *header.mutable_hello();
  hello.set_min_version(kMinTensorVersion);
  hello.set_max_version(kMaxTensorVersion);
  hello.set_job(side_->options().job);
  hello.set_incarnation(side_->options().incarnation);
  hello.set_from_stage(side_->options().stage);
  hello.set_to_stage(to_stage_);
  absl::MutexLock lock(&mutex_);
  writer_ = std::move(writer);
  leaving_.push_back({.due = 0, .frame = {.prefix = FramePrefix(header), .payload = nullptr}});
  thread_ = std::thread(&Link::Run, this);
}

absl::Status Link::WaitUntilOpen(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  if (!mutex_.AwaitWithDeadline(absl::Condition(this, &Link::OpenOrFailed), deadline)) {
    return absl::DeadlineExceededError(absl::StrCat("stage ", to_stage_, " has not said Hello in time"));
  }
  return status_;
}

void Link::OnWritten() {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  changed_.Signal();
}

void Link::OnReply(const wire::v1::FrameHeader& reply) { Arrive(reply); }

void Link::OnDisconnected(const absl::Status& status) { Arrive(status); }

void Link::Arrive(std::variant<wire::v1::FrameHeader, absl::Status> what) {
  const int64_t due = way_ == nullptr ? 0 : MonotonicNanoseconds() + way_->latency();
  absl::MutexLock lock(&mutex_);
  arrived_.push_back({.due = due, .what = std::move(what)});
  changed_.Signal();
}

absl::Status Link::Drain(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  if (!status_.ok()) return status_;
  if (writer_ == nullptr) {
    return outbox_.empty() ? absl::OkStatus()
                           : absl::FailedPreconditionError(absl::StrCat("never connected: ", Rest()));
  }
  closing_ = true;
  changed_.Signal();
  if (!mutex_.AwaitWithDeadline(absl::Condition(this, &Link::DrainedOrFailed), deadline)) {
    return absl::DeadlineExceededError(Rest());
  }
  return status_;
}

void Link::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  if (thread_.joinable()) thread_.join();
  absl::MutexLock lock(&mutex_);
  writer_ = nullptr;
}

void Link::Run() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    const int64_t now = MonotonicNanoseconds();
    if (!arrived_.empty() && arrived_.front().due <= now) {
      TakeReply();
    } else if (!leaving_.empty() && leaving_.front().due <= now && !writing_) {
      WriteFirst();
    } else if (MayLoad() && free_at_ <= now) {
      Load();
    } else if (MayClose()) {
      SayClose();
    } else if (const int64_t next = NextEvent(); next == kNever) {
      changed_.Wait(&mutex_);
    } else {
      changed_.WaitWithTimeout(&mutex_, absl::Nanoseconds(next - now));
    }
  }
}

int64_t Link::NextEvent() const {
  int64_t next = kNever;
  if (!arrived_.empty()) next = std::min(next, arrived_.front().due);
  if (!leaving_.empty() && !writing_) next = std::min(next, leaving_.front().due);
  if (MayLoad()) next = std::min(next, free_at_);
  return next;
}

bool Link::MayLoad() const {
  if (!open_ || !status_.ok() || close_sent_ || !outbox_.HasNext()) return false;
  // Without emulation the connection sets the pace: what is not given to it yet can still be overtaken.
  if (way_ == nullptr && (writing_ || !leaving_.empty())) return false;
  const int64_t under_way = sent_ - acknowledged_;
  return under_way == 0 || under_way + limits_.frame_bytes <= limits_.unacknowledged_bytes;
}

bool Link::Idle() const { return outbox_.empty() && !loading_ && sent_ == acknowledged_; }

bool Link::MayClose() const {
  return closing_ && !close_sent_ && open_ && status_.ok() && Idle() && !writing_;
}

void Link::Load() {
  std::optional<Outbox::Part> part = outbox_.Next();
  loading_ = true;
  mutex_.Unlock();
  wire::v1::FrameHeader& header = part->header;
  const int64_t dense_bytes = header.has_tensor() ? DenseBytes(header.tensor()) : 0;
  if (header.has_tensor())
    header.mutable_tensor()->set_checksum(Checksum(part->data.get(), part->tensor_bytes));
  Frame frame{.prefix = FramePrefix(header),
              .payload = std::shared_ptr<std::byte>(part->data, part->data.get() + part->offset),
              .payload_bytes = part->bytes};
  const int64_t bytes = frame.bytes();
  const int64_t now = MonotonicNanoseconds();
  const LinkState::Reservation reserved =
      way_ == nullptr ? LinkState::Reservation{.start = now, .end = now} : way_->Reserve(bytes);
  mutex_.Lock();
  loading_ = false;
  if (!status_.ok()) return;
  if (busy_since_ == 0) busy_since_ = now;
  sent_ += bytes;
  counters_.bytes += bytes;
  counters_.dense_bytes += dense_bytes;
  free_at_ = reserved.end - kLeadNanoseconds;
  leaving_.push_back(
      {.due = reserved.end + (way_ == nullptr ? 0 : way_->latency()), .frame = std::move(frame)});
}

void Link::WriteFirst() {
  Frame frame = std::move(leaving_.front().frame);
  leaving_.pop_front();
  Write(std::move(frame));
}

void Link::Write(Frame frame) {
  writing_ = true;
  const std::shared_ptr<FrameWriter> writer = writer_;
  mutex_.Unlock();
  writer->Write(std::move(frame));
  mutex_.Lock();
}

void Link::SayClose() {
  wire::v1::FrameHeader header;
  header.mutable_close();
  Write({.prefix = FramePrefix(header), .payload = nullptr});
  while (writing_ && !stopping_) changed_.Wait(&mutex_);
  const std::shared_ptr<FrameWriter> writer = writer_;
  mutex_.Unlock();
  writer->WritesDone();
  mutex_.Lock();
  close_sent_ = true;
}

void Link::TakeReply() {
  const auto what = std::move(arrived_.front().what);
  arrived_.pop_front();
  if (const auto* disconnected = std::get_if<absl::Status>(&what)) {
    if (close_sent_) return;
    if (disconnected->ok() && open_ && Idle()) {
      peer_closed_ = true;
      return;
    }
    const absl::Status& status = *disconnected;
    Fail(absl::Status(status.ok() ? absl::StatusCode::kUnavailable : status.code(),
                      absl::StrCat("to stage ", to_stage_, ": ",
                                   status.ok() ? "closed by the peer" : status.message(), "; ", Rest())));
    return;
  }
  const auto& header = std::get<wire::v1::FrameHeader>(what);
  switch (header.kind_case()) {
    case wire::v1::FrameHeader::kHello:
      open_ = true;
      return;
    case wire::v1::FrameHeader::kAcknowledge:
      TakeAcknowledge(header.acknowledge());
      return;
    case wire::v1::FrameHeader::kError:
      Fail(absl::Status(header.error().code() == 0 ? absl::StatusCode::kUnknown
                                                   : static_cast<absl::StatusCode>(header.error().code()),
                        absl::StrCat("stage ", to_stage_, " refused: ", header.error().message())));
      return;
    default:
      Fail(absl::DataLossError(absl::StrCat("stage ", to_stage_, " answered with what is no reply")));
  }
}

void Link::TakeAcknowledge(const wire::v1::Acknowledge& acknowledge) {
  const auto bytes = static_cast<int64_t>(acknowledge.bytes());
  if (bytes < 0 || bytes > sent_) {
    Fail(absl::DataLossError(
        absl::StrCat("stage ", to_stage_, " acknowledged ", acknowledge.bytes(), " of ", sent_, " bytes")));
    return;
  }
  acknowledged_ = std::max(acknowledged_, bytes);
  if (sent_ == acknowledged_) CountBusy();
  std::vector<std::pair<wire::v1::Acknowledge::Credit, uint64_t>> news;
  for (const auto& credit : acknowledge.credits()) {
    const uint64_t fresh = outbox_.Grant(credit.edge(), credit.direction(), credit.granted());
    if (fresh > 0) news.emplace_back(credit, fresh);
  }
  if (news.empty()) return;
  mutex_.Unlock();
  for (const auto& [credit, fresh] : news) {
    for (uint64_t i = 0; i < fresh; ++i) side_->gate().Granted(to_stage_, credit.edge(), credit.direction());
  }
  mutex_.Lock();
}

void Link::Fail(absl::Status status) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  outbox_.Clear();
  leaving_.clear();
  CountBusy();
  if (!open_) return;  // WaitUntilOpen says it
  const absl::Status copy = status_;
  mutex_.Unlock();
  side_->gate().Error(to_stage_, copy);
  mutex_.Lock();
}

void Link::CountBusy() {
  if (busy_since_ == 0) return;
  counters_.busy_seconds += static_cast<double>(MonotonicNanoseconds() - busy_since_) * 1e-9;
  busy_since_ = 0;
}

std::string Link::Rest() const {
  return absl::StrCat(outbox_.tensors(), " tensors with ", outbox_.bytes(), " bytes to stage ", to_stage_,
                      " were not sent, ", sent_ - acknowledged_, " bytes sent were not acknowledged");
}

}  // namespace fusion::worker
