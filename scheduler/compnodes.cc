#include "scheduler/compnodes.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/registry.h"
#include "proto/quantity.h"

namespace fusion::scheduler {
namespace {

using v1alpha1::Compnode;

bool Tolerates(const v1alpha1::Toleration& toleration, const v1alpha1::Taint& taint) {
  return (toleration.key().empty() || toleration.key() == taint.key()) &&
         (!toleration.has_value() || toleration.value() == taint.value()) &&
         (toleration.effect().empty() || toleration.effect() == taint.effect());
}

bool Repels(const v1alpha1::Taint& taint) { return taint.effect() != "PreferNoSchedule"; }

/// Empty: the compnode may be used.
std::string WhyNot(const v1alpha1::Placement& placement, const Compnode& compnode) {
  const auto& clusters = placement.clusters();
  if (!clusters.empty() &&
      std::find(clusters.begin(), clusters.end(), compnode.spec().cluster()) == clusters.end()) {
    return absl::StrCat("is in cluster ", compnode.spec().cluster(), ", not in spec.placement.clusters (",
                        absl::StrJoin(clusters, ", "), ")");
  }
  if (compnode.spec().cordoned()) return "is cordoned";
  for (const v1alpha1::Taint& taint : compnode.spec().taints()) {
    const auto tolerates = [&](const v1alpha1::Toleration& t) { return Tolerates(t, taint); };
    if (Repels(taint) &&
        std::none_of(placement.tolerations().begin(), placement.tolerations().end(), tolerates)) {
      return absl::StrCat("has the taint ", taint.key(), taint.has_value() ? "=" : "", taint.value(),
                          ", which spec.placement.tolerations does not tolerate");
    }
  }
  return "";
}

absl::StatusOr<int64_t> Quantity(const Compnode& compnode, absl::string_view field, const std::string& text) {
  absl::StatusOr<int64_t> bytes = api::ParseQuantity(text);
  if (bytes.ok()) return bytes;
  return absl::Status(bytes.status().code(), absl::StrCat("compnode ", compnode.metadata().name(), ": spec.",
                                                          field, ": ", bytes.status().message()));
}

absl::StatusOr<int64_t> StageMemoryLimit(const Compnode& compnode, int slots) {
  int64_t limit = INT64_MAX;
  for (int i = 0; i < compnode.spec().devices_size(); ++i) {
    const v1alpha1::Device& device = compnode.spec().devices(i);
    if (!device.has_memory()) continue;
    absl::StatusOr<int64_t> bytes =
        Quantity(compnode, absl::StrCat("devices[", i, "].memory"), device.memory());
    if (!bytes.ok()) return bytes;
    limit = std::min(limit, *bytes);
  }
  if (limit == INT64_MAX && compnode.spec().has_host_memory()) {
    absl::StatusOr<int64_t> bytes = Quantity(compnode, "hostMemory", compnode.spec().host_memory());
    if (!bytes.ok()) return bytes;
    limit = *bytes / slots;
  }
  return limit;
}

double Speed(const Compnode& compnode, const MachineProfile& machine) {
  if (compnode.spec().emulation().has_flops()) return compnode.spec().emulation().flops();
  if (compnode.spec().devices_size() > 0 && compnode.spec().devices(0).peak_flops().has_fp32()) {
    return compnode.spec().devices(0).peak_flops().fp32();
  }
  return machine.flops;
}

}  // namespace

absl::StatusOr<Offer> SelectCompnodes(const v1alpha1::Placement& placement,
                                      const std::vector<Compnode>& compnodes) {
  std::set<std::string> clusters;
  for (const Compnode& compnode : compnodes) clusters.insert(compnode.spec().cluster());
  for (int i = 0; i < placement.clusters_size(); ++i) {
    if (clusters.contains(placement.clusters(i))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("spec.placement.clusters[", i, "]: no compnode is in cluster ", placement.clusters(i),
                     "; there are ", clusters.empty() ? "none" : absl::StrJoin(clusters, ", ")));
  }
  Offer offer;
  for (size_t i = 0; i < compnodes.size(); ++i) {
    const std::string reason = WhyNot(placement, compnodes[i]);
    if (reason.empty()) {
      offer.used.push_back(static_cast<int>(i));
    } else {
      offer.excluded.push_back(absl::StrCat(compnodes[i].metadata().name(), " ", reason));
    }
  }
  if (offer.used.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "none of ", compnodes.size(), " compnodes may be used: ", absl::StrJoin(offer.excluded, "; ")));
  }
  return offer;
}

absl::StatusOr<Node> MakeNode(const Compnode& compnode, const MachineProfile& machine, double lambda,
                              v1alpha1::Training::Precision precision) {
  Node node;
  node.name = compnode.metadata().name();
  node.cluster = compnode.spec().cluster();
  int64_t slots = 0;
  for (const v1alpha1::Device& device : compnode.spec().devices())
    slots += device.has_count() ? device.count() : 1;
  node.slots = static_cast<int>(std::max<int64_t>(1, slots));
  const absl::StatusOr<int64_t> memory = StageMemoryLimit(compnode, node.slots);
  if (!memory.ok()) return memory.status();
  node.memory_bytes = *memory;
  const double speed = Speed(compnode, machine);
  node.seconds_per_work.fill(machine.flops / speed);
  if (precision == v1alpha1::Training::bf16 && !compnode.spec().emulation().has_flops() &&
      compnode.spec().devices_size() > 0 && compnode.spec().devices(0).peak_flops().has_bf16()) {
    const double products = machine.flops / compnode.spec().devices(0).peak_flops().bf16();
    node.seconds_per_work[static_cast<size_t>(graph::OperatorClass::kMatmul)] = products;
    node.seconds_per_work[static_cast<size_t>(graph::OperatorClass::kConvolution)] = products;
  }
  node.flops = lambda * speed;
  node.message_seconds = machine.operator_seconds * machine.flops / speed;
  node.update_seconds_per_parameter = machine.update_seconds_per_parameter * machine.flops / speed;
  return node;
}

}  // namespace fusion::scheduler
