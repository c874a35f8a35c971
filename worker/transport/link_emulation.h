// Emulated links: tokens of shared resources and a delay, for machines without traffic control.
//
// A resource (a pair of clusters in one direction, a port, a pair of compnodes) carries one byte after the
// other at its rate. A frame asks for all resources of its way at once and in turn: it starts when all are
// free, takes bytes / rate of each, has left when the slowest is through, and arrives a latency later. Where
// the next free moment of each resource lies is in a file that all workers of the machine map, so that links
// of several processes share a resource.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "fusion/wire/v1/broker.pb.h"

namespace fusion::worker {

/// CLOCK_MONOTONIC: the same for all processes of the machine.
int64_t MonotonicNanoseconds();

/// The mapped file. Thread-safe, and safe between processes even when one is killed while it holds the lock.
class LinkState {
 public:
  /// Creates the file where it does not exist; several processes may do so at once. One file per run: it must
  /// not outlive a reboot, which sets the clock back.
  static absl::StatusOr<std::shared_ptr<LinkState>> Open(const std::string& path);
  ~LinkState();
  LinkState(const LinkState&) = delete;
  LinkState& operator=(const LinkState&) = delete;

  /// The slot of a resource, made at its first use. RESOURCE_EXHAUSTED when the file is full,
  /// INVALID_ARGUMENT for a name that is empty or too long.
  absl::StatusOr<int> Slot(const std::string& resource);

  struct Use {
    int slot = 0;
    int64_t nanoseconds = 0;  ///< for which this use occupies it
  };
  struct Reservation {
    int64_t start = 0;  ///< MonotonicNanoseconds()
    int64_t end = 0;    ///< start + the longest use
  };
  /// In order of the calls: start = max(now, next free moment of every resource), each of which is then free
  /// again when its use is over.
  Reservation Reserve(absl::Span<const Use> uses);

 private:
  struct Shared;
  explicit LinkState(Shared* shared) : shared_(shared) {}
  void Lock();
  void Unlock();

  Shared* const shared_;
};

/// One emulated link as its sender sees it. Thread-safe.
class EmulatedWay {
 public:
  /// INVALID_ARGUMENT for a rate that is not above 0 or a negative latency.
  static absl::StatusOr<std::shared_ptr<EmulatedWay>> Create(const wire::v1::EmulatedLink& link,
                                                             std::shared_ptr<LinkState> state);

  /// Occupies all resources for `bytes`. A frame has left at the reservation's end and arrives `latency()`
  /// later.
  LinkState::Reservation Reserve(int64_t bytes);

  int64_t latency() const { return latency_; }                   ///< one way, nanoseconds
  double bytes_per_second() const { return bytes_per_second_; }  ///< of the slowest resource; 0: no resource

 private:
  struct Resource {
    int slot;
    double nanoseconds_per_byte;
  };
  EmulatedWay() = default;

  std::shared_ptr<LinkState> state_;
  std::vector<Resource> resources_;
  int64_t latency_ = 0;
  double bytes_per_second_ = 0;
};

}  // namespace fusion::worker
