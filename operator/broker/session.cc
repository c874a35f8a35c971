#include "operator/broker/session.h"

#include <string>
#include <utility>

namespace fusion::op {

std::shared_ptr<Session> Session::Start(Handlers handlers) {
  std::shared_ptr<Session> session(new Session(std::move(handlers)));
  session->self_ = session;
  session->StartRead(&session->incoming_);
  return session;
}

Session::Next Session::NextLocked() {
  if (writing_ || finished_) return Next::kNothing;
  if (!queue_.empty()) {
    writing_ = true;
    return Next::kWrite;
  }
  if (!closing_) return Next::kNothing;
  finished_ = true;
  return Next::kFinish;
}

void Session::Do(Next next) {
  if (next == Next::kNothing) return;
  const wire::v1::BrokerMessage* message = nullptr;
  grpc::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (next == Next::kWrite) message = &queue_.front();
    status = status_;
  }
  if (next == Next::kWrite) {
    StartWrite(message);
  } else {
    Finish(status);
  }
}

void Session::Send(wire::v1::BrokerMessage message) {
  Next next;
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    queue_.push_back(std::move(message));
    next = NextLocked();
  }
  Do(next);
}

void Session::Close(const absl::Status& status) {
  Next next;
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return;
    closing_ = true;
    status_ = grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
    next = NextLocked();
  }
  Do(next);
}

void Session::OnReadDone(bool ok) {
  if (ok) {
    handlers_.on_message(self_, std::move(incoming_));
    incoming_.Clear();
    StartRead(&incoming_);
    return;
  }
  handlers_.on_end(self_);
  Close(absl::OkStatus());
}

void Session::OnWriteDone(bool ok) {
  Next next;
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) queue_.clear();
    next = NextLocked();
  }
  Do(next);
}

void Session::OnCancel() { Close(absl::CancelledError("the stream was cancelled")); }

void Session::OnDone() { self_.reset(); }

}  // namespace fusion::op
