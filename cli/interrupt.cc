#include "cli/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

namespace fusion::cli {
namespace {

std::atomic<int> write_end = -1;

void OnSignal(int /*signal*/) {
  const int saved = errno;
  const int descriptor = write_end.load();
  if (descriptor >= 0 && write(descriptor, "!", 1) < 0) {
    // The pipe is full: it is readable already.
  }
  errno = saved;
}

void Handle(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

Interrupt::Interrupt() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return;  // no descriptors left: signals keep ending the process
  read_end_ = ends[0];
  write_end = ends[1];
  Handle(&OnSignal);
}

Interrupt::~Interrupt() {
  if (read_end_ < 0) return;
  Handle(SIG_DFL);
  close(write_end.exchange(-1));
  close(read_end_);
}

bool Interrupt::raised() const {
  pollfd wait = {read_end_, POLLIN, 0};
  return read_end_ >= 0 && poll(&wait, 1, 0) == 1;
}

}  // namespace fusion::cli
