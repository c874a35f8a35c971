#include "scheduler/compression_schedule.h"

#include "codec/codec.h"
#include "scheduler/planner.h"
#include "scheduler/quotient.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {
namespace {

using graph::v1::PlannedLink;
using v1alpha1::Compression;

bool IsSparse(const Compression& compression) {
  return compression.type() == Compression::TopK || compression.type() == Compression::AdaTopK;
}

Compression Changed(const Compression& base, const v1alpha1::CompressionChange& change) {
  Compression settings;
  settings.set_type(change.type());
  if (change.has_ratio()) settings.set_ratio(change.ratio());
  if (change.has_values()) settings.set_values(change.values());
  if (IsSparse(settings)) {
    settings.set_mask(base.mask());
    settings.set_error_feedback(base.error_feedback());
  }
  return settings;
}

}  // namespace

std::vector<CompressionPhase> CompressionPhases(const Compression& compression) {
  std::vector<CompressionPhase> phases = {{.from_step = 1, .settings = compression}};
  phases.front().settings.clear_schedule();
  if (!IsSparse(compression)) {  // they are of the sparse entries
    phases.front().settings.clear_mask();
    phases.front().settings.clear_error_feedback();
  }
  for (const v1alpha1::CompressionChange& change : compression.schedule()) {
    if (change.from_step() <= 1) phases.clear();
    phases.push_back({.from_step = change.from_step(), .settings = Changed(compression, change)});
  }
  return phases;
}

absl::Status AddPhases(const Problem& problem, const Compression& compression, const Partition& partition,
                       graph::v1::Plan& plan) {
  const std::vector<CompressionPhase> phases = CompressionPhases(compression);
  if (phases.size() < 2) return absl::OkStatus();
  for (const CompressionPhase& phase : phases) {
    Partition changed = partition;
    const bool last = &phase == &phases.back();
    if (!last) {
      if (absl::Status status = ChooseCodecs(problem, phase.settings, changed); !status.ok()) return status;
    }
    for (PlannedLink& link : *plan.mutable_links()) {
      const bool forward = link.direction() == PlannedLink::Forward;
      const codec::Codec codec = forward ? CodecBetween(changed, link.from(), link.to())
                                         : CodecBetween(changed, link.to(), link.from());
      PlannedLink::Phase& planned = *link.add_phases();
      planned.set_from_step(phase.from_step);
      planned.set_codec(codec::CodecName(codec));
    }
  }
  return absl::OkStatus();
}

void CopyPhases(const graph::v1::Plan& from, graph::v1::Plan& to) {
  for (PlannedLink& link : *to.mutable_links()) {
    for (const PlannedLink& source : from.links()) {
      if (source.from() == link.from() && source.to() == link.to() &&
          source.direction() == link.direction()) {
        *link.mutable_phases() = source.phases();
      }
    }
  }
}

}  // namespace fusion::scheduler
