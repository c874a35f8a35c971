#include "scheduler/planner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/compnodes.h"
#include "scheduler/compression_schedule.h"
#include "scheduler/partition.h"

namespace fusion::scheduler {
namespace {

using v1alpha1::Compression;
using v1alpha1::Placement;

Placement::Policy PolicyOf(const v1alpha1::FusionJobSpec& spec) {
  return spec.placement().has_policy() ? spec.placement().policy() : Placement::OpFence;
}

/// What the plan is made for.
Compression LastCompression(const v1alpha1::FusionJobSpec& spec) {
  return CompressionPhases(spec.communication().compression()).back().settings;
}

/// Doubles depths as memory allows: with more micro-batches in flight than free links need, a link that is
/// busy does not stall its stages while codecs are chosen.
void AddSlack(const Problem& problem, Partition& partition) {
  Partition slack = partition;
  for (PlacedStage& stage : slack.stages) {
    for (PlacedSubDag& sub_dag : stage.sub_dags) {
      sub_dag.depth = std::min(problem.micro_batches, 2 * sub_dag.depth);
    }
  }
  if (CheckPartition(problem, slack).ok()) partition = std::move(slack);
}

/// Depths for links that codecs will have made light, then codecs, then the depths that these still need.
absl::Status ChooseDepthsAndCodecs(const Problem& problem, const Compression& compression,
                                   Partition& partition) {
  partition.codecs.clear();
  ChooseDepths(problem, partition, {.free_links = true});
  AddSlack(problem, partition);
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

/// By how much a step must be shorter for a plan to be worth a codec: what the codec costs in loss, as
/// training time. Measured at equal steps, int8 and int4 cost little, TopK 5 to 15 % of the loss
/// (docs/convergence.md), which takes far more than as many per cent of steps to win back.
double TimeWorth(const codec::Codec& codec) {
  if (!codec.sparse) return codec.values == codec::Values::kInt4 ? 0.01 : 0;
  if (codec.density >= 0.2) return 0.25;
  return codec.density >= 0.1 ? 0.30 : 0.50;
}

/// Of the harshest codec: one narrow link is enough to hurt.
double TimeWorth(const Partition& partition) {
  double worth = 0;
  for (const LinkCodec& link : partition.codecs) worth = std::max(worth, TimeWorth(link.codec));
  return worth;
}

absl::StatusOr<Partition> OpFence(const Problem& problem, const Compression& compression) {
  // The other types say which codec there is; only Need chooses, and prefers the plan that needs a milder
  // one.
  const bool chooses = !compression.has_type() || compression.type() == Compression::Need;
  OpFenceOptions options;
  options.byte_shares = problem.training ? ByteShares(compression) : std::vector<double>{1};
  options.finish = [&compression, chooses](const Problem& p, Partition& partition) {
    const bool fits =
        ChooseDepthsAndCodecs(p, compression, partition).ok() && CheckPartition(p, partition).ok();
    if (!fits) return std::numeric_limits<double>::infinity();
    return SimulateStepSeconds(p, partition) * (chooses ? 1 + TimeWorth(partition) : 1);
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
      return OpFence(problem, LastCompression(spec));
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

  if (absl::Status status = ChooseDepthsAndCodecs(*problem, LastCompression(request.spec), *partition);
      !status.ok()) {
    return status;
  }

  if (absl::Status status = CheckPartition(*problem, *partition); !status.ok())
    return Explain(status, request);

  PlanResult result = Predict(request, *std::move(problem), *std::move(partition));
  const Compression& compression = request.spec.communication().compression();
  if (absl::Status status = AddPhases(result.problem, compression, result.partition, result.plan);
      !status.ok()) {
    return status;
  }
  return result;
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
  CopyPhases(plan, result.plan);
  return result;
}

}  // namespace fusion::scheduler
