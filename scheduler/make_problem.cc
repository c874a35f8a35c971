#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/registry.h"
#include "proto/validation.h"
#include "scheduler/compnodes.h"
#include "scheduler/planner.h"
#include "scheduler/workload.h"

namespace fusion::scheduler {
namespace {

absl::Status ResolvePin(const PlanRequest& request, int index, const Offer& offer, Problem& problem) {
  const v1alpha1::Pin& pin = request.spec.placement().pins(index);
  const std::string path = absl::StrCat("spec.placement.pins[", index, "]");
  int node = -1;
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    if (problem.nodes[n].name == pin.compnode()) node = static_cast<int>(n);
  }
  if (node < 0) {
    for (const v1alpha1::Compnode& compnode : request.compnodes) {
      if (compnode.metadata().name() != pin.compnode()) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          path, ".compnode: ", pin.compnode(), " may not be used; ", absl::StrJoin(offer.excluded, "; ")));
    }
    return absl::InvalidArgumentError(absl::StrCat(path, ".compnode: there is no compnode ", pin.compnode()));
  }
  bool matched = false;
  for (OperatorWork& work : problem.operators) {
    if (!api::MatchesGlob(pin.operators(), work.name)) continue;
    matched = true;
    if (work.pinned_node >= 0 && work.pinned_node != node) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".operators: ", work.name, " is pinned to compnode ",
                       problem.nodes[work.pinned_node].name, " and to ", pin.compnode()));
    }
    work.pinned_node = node;
  }
  if (matched) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ".operators: no operator is named ", pin.operators()));
}

absl::Status SetBatch(const v1alpha1::FusionJobSpec& spec, Problem& problem) {
  const v1alpha1::Batch& batch = spec.training().batch();
  if (batch.global() < 1 || batch.micro() < 1 || batch.global() % batch.micro() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("spec.training.batch: micro (", batch.micro(),
                                                   ") must divide global (", batch.global(),
                                                   "), both at least 1"));
  }
  problem.micro_batches = static_cast<int>(batch.global() / batch.micro());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Problem> MakeProblem(const PlanRequest& request) {
  Problem problem;
  const v1alpha1::FusionJobSpec& spec = request.spec;
  problem.training = spec.task() != v1alpha1::FusionJobSpec::Evaluate;
  problem.recompute = problem.training && spec.training().recompute();
  problem.gpipe = spec.training().pipeline().schedule() == v1alpha1::Pipeline::GPipe;
  if (absl::Status status = SetBatch(spec, problem); !status.ok()) return status;
  if (problem.training) {
    absl::Status status = graph::CheckTrains(request.graph, spec.training().batch().micro());
    if (!status.ok()) return status;
  }
  if (absl::Status status = AddWorkload(request.graph, spec.training().batch().micro(), spec.training(),
                                        request.machine, problem);
      !status.ok()) {
    return status;
  }
  const absl::StatusOr<Offer> offer = SelectCompnodes(spec.placement(), request.compnodes);
  if (!offer.ok()) return offer.status();
  const double lambda = ReachedShare(problem, request.machine);
  int64_t slots = 0;
  for (const int index : offer->used) {
    absl::StatusOr<Node> node =
        MakeNode(request.compnodes[index], request.machine, lambda, spec.training().precision());
    if (!node.ok()) return node.status();
    slots += node->slots;
    problem.nodes.push_back(*std::move(node));
  }
  const v1alpha1::StageLimits& limits = spec.placement().stages();
  problem.max_stages = static_cast<int>(limits.has_max() ? std::min(limits.max(), slots) : slots);
  absl::StatusOr<Network> network = MakeNetwork(request.compnodes, offer->used);
  if (!network.ok()) return network.status();
  problem.network = *std::move(network);
  for (int i = 0; i < spec.placement().pins_size(); ++i) {
    if (absl::Status status = ResolvePin(request, i, *offer, problem); !status.ok()) return status;
  }
  return problem;
}

}  // namespace fusion::scheduler
