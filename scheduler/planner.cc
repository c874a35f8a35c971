#include "scheduler/planner.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/compnodes.h"
#include "scheduler/partition.h"

namespace fusion::scheduler {
namespace {

using v1alpha1::Compression;
using v1alpha1::Placement;

Placement::Policy PolicyOf(const v1alpha1::FusionJobSpec& spec) {
  return spec.placement().has_policy() ? spec.placement().policy() : Placement::OpFence;
}

/// Depths for links that codecs will have made light, then codecs, then the depths that these still need.
absl::Status ChooseDepthsAndCodecs(const Problem& problem, const Compression& compression,
                                   Partition& partition) {
  partition.codecs.clear();
  ChooseDepths(problem, partition, {.free_links = true});
  if (absl::Status status = ChooseCodecs(problem, compression, partition); !status.ok()) return status;
  ChooseDepths(problem, partition);
  return absl::OkStatus();
}

/// Shares of the dense bytes that the compression may leave on a link.
std::vector<double> ByteShares(const Compression& compression) {
  switch (compression.type()) {
    case Compression::None:
      return {1};
    case Compression::AdaTopK:
    case Compression::TopK:
      return {1, 1 / std::max(1.0, compression.ratio())};
    case Compression::Quantize:
      return {compression.values() == Compression::int8 ? 0.26 : 0.13};
    default:
      return {1, 0.13, 0.02};
  }
}

absl::StatusOr<Partition> OpFence(const Problem& problem, const Compression& compression) {
  OpFenceOptions options;
  options.byte_shares = problem.training ? ByteShares(compression) : std::vector<double>{1};
  options.finish = [&compression](const Problem& p, Partition& partition) {
    const bool fits =
        ChooseDepthsAndCodecs(p, compression, partition).ok() && CheckPartition(p, partition).ok();
    return fits ? Simulate(p, partition).step_seconds : std::numeric_limits<double>::infinity();
  };
  return PartitionOpFence(problem, options);
}

absl::StatusOr<Partition> Place(const Problem& problem, const v1alpha1::FusionJobSpec& spec) {
  switch (PolicyOf(spec)) {
    case Placement::EqualNumber:
      return PartitionEqualNumber(problem);
    case Placement::EqualCompute:
      return PartitionEqualCompute(problem);
    case Placement::DtFm:
      return PartitionDtFm(problem, static_cast<uint64_t>(spec.training().seed()));
    default:
      return OpFence(problem, spec.communication().compression());
  }
}

/// Adds why the other compnodes were not offered.
absl::Status Explain(const absl::Status& status, const PlanRequest& request) {
  const absl::StatusOr<Offer> offer = SelectCompnodes(request.spec.placement(), request.compnodes);
  if (status.ok() || !offer.ok() || offer->excluded.empty()) return status;
  return absl::Status(
      status.code(), absl::StrCat(status.message(), "; not offered: ", absl::StrJoin(offer->excluded, "; ")));
}

PlanResult Predict(const PlanRequest& request, Problem problem, Partition partition) {
  PlanResult result;
  result.simulation = Simulate(problem, partition);
  result.free_links = Simulate(problem, partition, {.free_links = true});
  result.plan = PlanOf(problem, partition, result.simulation, result.free_links);
  result.plan.set_job(request.job);
  *result.plan.mutable_spec() = request.spec;
  result.plan.set_incarnation(request.incarnation);
  result.plan.set_schedule(problem.gpipe ? "GPipe" : "OneForwardOneBackward");
  result.plan.set_policy(Placement::Policy_Name(PolicyOf(request.spec)));
  result.plan.set_samples_per_second(static_cast<double>(request.spec.training().batch().global()) /
                                     result.simulation.step_seconds);
  result.problem = std::move(problem);
  result.partition = std::move(partition);
  return result;
}

}  // namespace

absl::StatusOr<PlanResult> MakePlan(const PlanRequest& request) {
  absl::StatusOr<Problem> problem = MakeProblem(request);
  if (!problem.ok()) return problem.status();

  absl::StatusOr<Partition> partition = Place(*problem, request.spec);
  if (!partition.ok()) return Explain(partition.status(), request);

  const Compression& compression = request.spec.communication().compression();
  if (absl::Status status = ChooseDepthsAndCodecs(*problem, compression, *partition); !status.ok())
    return status;

  if (absl::Status status = CheckPartition(*problem, *partition); !status.ok())
    return Explain(status, request);

  return Predict(request, *std::move(problem), *std::move(partition));
}

absl::StatusOr<PlanResult> ReplayPlan(const PlanRequest& request, const graph::v1::Plan& plan) {
  absl::StatusOr<Problem> problem = MakeProblem(request);
  if (!problem.ok()) return problem.status();
  absl::StatusOr<Partition> partition = PartitionOf(*problem, plan);
  if (!partition.ok()) return partition.status();
  if (absl::Status status = CheckPartition(*problem, *partition); !status.ok())
    return Explain(status, request);
  PlanResult result = Predict(request, *std::move(problem), *std::move(partition));
  result.plan.set_policy(plan.policy());
  return result;
}

}  // namespace fusion::scheduler
