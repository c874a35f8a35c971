#include "worker/transport/link_emulation.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

constexpr uint64_t kMagic = 0x316b6e696c736675;  // "ufslink1"
constexpr int kSlots = 1024;
constexpr int kNameBytes = 120;

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("link state ", path, ": ", what));
}

}  // namespace

struct LinkState::Shared {
  struct Slot {
    char name[kNameBytes];
    int64_t next_free;
  };
  uint64_t magic;
  pthread_mutex_t mutex;
  int32_t used;  ///< slots beyond hold nothing
  Slot slots[kSlots];
};

int64_t MonotonicNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

absl::StatusOr<std::shared_ptr<LinkState>> LinkState::Open(const std::string& path) {
  const auto map = [](int file) {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<Shared*>(memory);
  };
  int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) {
    // Made whole beside its place, then linked into it: nobody sees half a file, and the first one wins.
    std::string draft = path + ".XXXXXX";
    const int made = mkostemp(draft.data(), O_CLOEXEC);
    if (made < 0) return SystemError("cannot be created", path);
    const absl::Cleanup remove_draft = [&] {
      close(made);
      unlink(draft.c_str());
    };
    Shared* shared = ftruncate(made, sizeof(Shared)) == 0 ? map(made) : nullptr;
    if (shared == nullptr) return SystemError("cannot be mapped", path);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    const int initialised = pthread_mutex_init(&shared->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    shared->magic = kMagic;
    munmap(shared, sizeof(Shared));
    if (initialised != 0 || (link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST)) {
      return SystemError("cannot be created", path);
    }
    file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  }
  if (file < 0) return SystemError("cannot be opened", path);
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat status;
  if (fstat(file, &status) != 0) return SystemError("cannot be opened", path);
  if (status.st_size != sizeof(Shared)) {
    return absl::FailedPreconditionError(absl::StrCat("link state ", path, ": ", status.st_size,
                                                      " bytes instead of ", sizeof(Shared),
                                                      "; remove the file"));
  }
  Shared* shared = map(file);
  if (shared == nullptr) return SystemError("cannot be mapped", path);
  std::shared_ptr<LinkState> state(new LinkState(shared));
  if (shared->magic != kMagic) {
    return absl::FailedPreconditionError(
        absl::StrCat("link state ", path, ": not written by this program; remove the file"));
  }
  return state;
}

LinkState::~LinkState() { munmap(shared_, sizeof(Shared)); }

void LinkState::Lock() {
  // A holder that was killed leaves at worst some resources advanced and others not: nothing to repair.
  if (pthread_mutex_lock(&shared_->mutex) == EOWNERDEAD) pthread_mutex_consistent(&shared_->mutex);
}

void LinkState::Unlock() { pthread_mutex_unlock(&shared_->mutex); }

absl::StatusOr<int> LinkState::Slot(const std::string& resource) {
  if (resource.empty() || resource.size() >= kNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("resource '", resource, "': 1 to ", kNameBytes - 1, " bytes"));
  }
  Lock();
  const absl::Cleanup unlock = [this] { Unlock(); };
  for (int slot = 0; slot < shared_->used; ++slot) {
    if (resource == shared_->slots[slot].name) return slot;
  }
  if (shared_->used == kSlots) {
    return absl::ResourceExhaustedError(absl::StrCat("more than ", kSlots, " emulated resources"));
  }
  const int slot = shared_->used;
  std::memset(&shared_->slots[slot], 0, sizeof(Shared::Slot));
  std::memcpy(shared_->slots[slot].name, resource.data(), resource.size());
  shared_->used = slot + 1;
  return slot;
}

LinkState::Reservation LinkState::Reserve(absl::Span<const Use> uses) {
  Lock();
  const absl::Cleanup unlock = [this] { Unlock(); };
  int64_t start = MonotonicNanoseconds();
  for (const Use& use : uses) start = std::max(start, shared_->slots[use.slot].next_free);
  int64_t end = start;
  for (const Use& use : uses) {
    shared_->slots[use.slot].next_free = start + use.nanoseconds;
    end = std::max(end, start + use.nanoseconds);
  }
  return {.start = start, .end = end};
}

absl::StatusOr<std::shared_ptr<EmulatedWay>> EmulatedWay::Create(const wire::v1::EmulatedLink& link,
                                                                 std::shared_ptr<LinkState> state) {
  const auto invalid = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("emulated link to stage ", link.to_stage(), ": ", what));
  };
  if (!(link.latency_seconds() >= 0) || !std::isfinite(link.latency_seconds())) {
    return invalid(absl::StrCat("a latency of ", link.latency_seconds(), " s"));
  }
  std::shared_ptr<EmulatedWay> way(new EmulatedWay());
  way->latency_ = std::llround(link.latency_seconds() * 1e9);
  for (const auto& resource : link.resources()) {
    const double bytes_per_second = resource.bits_per_second() / 8;
    if (!(bytes_per_second > 0) || !std::isfinite(bytes_per_second)) {
      return invalid(absl::StrCat(resource.bits_per_second(), " bit/s for resource '", resource.name(), "'"));
    }
    const absl::StatusOr<int> slot = state->Slot(resource.name());
    if (!slot.ok()) return slot.status();
    way->resources_.push_back({.slot = *slot, .nanoseconds_per_byte = 1e9 / bytes_per_second});
    way->bytes_per_second_ =
        way->bytes_per_second_ == 0 ? bytes_per_second : std::min(way->bytes_per_second_, bytes_per_second);
  }
  way->state_ = std::move(state);
  return way;
}

LinkState::Reservation EmulatedWay::Reserve(int64_t bytes) {
  std::vector<LinkState::Use> uses;
  uses.reserve(resources_.size());
  for (const Resource& resource : resources_) {
    uses.push_back({.slot = resource.slot,
                    .nanoseconds = std::llround(static_cast<double>(bytes) * resource.nanoseconds_per_byte)});
  }
  return state_->Reserve(uses);
}

}  // namespace fusion::worker
