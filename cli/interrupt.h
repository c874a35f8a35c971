// Ctrl-C and polite ends (SIGINT, SIGTERM) as a file descriptor that can be waited for.
#pragma once

namespace fusion::cli {

/// From its construction on, the signals no longer end the process but make `descriptor` readable. One at a
/// time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Readable once a signal has come; stays readable.
  int descriptor() const { return read_end_; }
  bool raised() const;

 private:
  int read_end_ = -1;
};

}  // namespace fusion::cli
