#include "worker/transport/stage_transport.h"

#include "absl/strings/str_cat.h"

namespace fusion::worker {

absl::StatusOr<StageTransport::Ways> StageTransport::MakeWays(const TransportOptions& options) {
  Ways ways;
  if (options.links.empty()) return ways;
  if (options.link_state_file.empty()) {
    return absl::InvalidArgumentError("emulated links need a file for their state");
  }
  absl::StatusOr<std::shared_ptr<LinkState>> state = LinkState::Open(options.link_state_file);
  if (!state.ok()) return state.status();
  for (const auto& link : options.links) {
    absl::StatusOr<std::shared_ptr<EmulatedWay>> way = EmulatedWay::Create(link, *state);
    if (!way.ok()) return way.status();
    ways[link.to_stage()] = *std::move(way);
  }
  return ways;
}

StageTransport::StageTransport(TransportOptions options, Ways ways)
    : receiving_(std::make_shared<ReceivingSide>(std::move(options))), ways_(std::move(ways)) {}

void StageTransport::SetHandlers(TransportHandlers handlers) {
  receiving_->gate().Open(std::move(handlers));
  Accept();
}

absl::Status StageTransport::EmulateLinks(const std::vector<wire::v1::EmulatedLink>& links,
                                          const std::string& link_state_file) {
  TransportOptions options;
  options.links = links;
  options.link_state_file = link_state_file;
  absl::StatusOr<Ways> ways = MakeWays(options);
  if (!ways.ok()) return ways.status();
  absl::MutexLock lock(&mutex_);
  if (!links_.empty())
    return absl::FailedPreconditionError("links are emulated before the first of them is used");
  ways_ = *std::move(ways);
  return absl::OkStatus();
}

std::shared_ptr<Link> StageTransport::LinkTo(int stage) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<Link>& link = links_[stage];
  if (link == nullptr) {
    const auto way = ways_.find(stage);
    link = std::make_shared<Link>(stage, way == ways_.end() ? nullptr : way->second, receiving_);
  }
  return link;
}

absl::Status StageTransport::Connect(const std::vector<std::pair<int, std::string>>& peers) {
  const absl::Time deadline = absl::Now() + absl::Seconds(receiving_->options().connect_timeout_seconds);
  for (const auto& [stage, address] : peers) {
    if (absl::Status status = Dial(stage, address, LinkTo(stage)); !status.ok()) return status;
  }
  for (const auto& [stage, address] : peers) {
    if (absl::Status status = LinkTo(stage)->WaitUntilOpen(deadline); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("connecting to stage ", stage, " at ", address, ": ",
                                                      status.message()));
    }
  }
  return absl::OkStatus();
}

void StageTransport::SetWindow(int to_stage, int32_t edge, wire::v1::Direction direction, int tensors) {
  LinkTo(to_stage)->SetWindow(edge, direction, tensors);
}

void StageTransport::Send(int to_stage, EncodedTensor tensor) { LinkTo(to_stage)->Send(std::move(tensor)); }

void StageTransport::Grant(int from_stage, int32_t edge, wire::v1::Direction direction) {
  // Where the stream is gone, nobody waits for the credit.
  if (const auto end = receiving_->Find(from_stage); end != nullptr) end->Grant(edge, direction);
}

LinkCounters StageTransport::Counters(int to_stage) const {
  absl::MutexLock lock(&mutex_);
  const auto found = links_.find(to_stage);
  return found == links_.end() ? LinkCounters() : found->second->Counters();
}

absl::Status StageTransport::Close(double deadline_seconds) {
  const absl::Time deadline = absl::Now() + absl::Seconds(deadline_seconds);
  const std::map<int, std::shared_ptr<Link>> links = Shut();
  absl::Status result;
  for (const auto& [stage, link] : links) result.Update(link->Drain(deadline));
  End(links, deadline);
  return result;
}

void StageTransport::Abandon() { End(Shut(), absl::InfinitePast()); }

std::map<int, std::shared_ptr<Link>> StageTransport::Shut() {
  absl::MutexLock lock(&mutex_);
  if (shut_) return {};
  shut_ = true;
  return links_;
}

void StageTransport::End(const std::map<int, std::shared_ptr<Link>>& links, absl::Time deadline) {
  EndDialled(deadline);
  for (const auto& [stage, link] : links) link->Stop();
  EndAccepted(deadline);
  receiving_->gate().Close();
}

}  // namespace fusion::worker
