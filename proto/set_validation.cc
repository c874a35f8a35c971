#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/engine.h"
#include "proto/quantity.h"
#include "proto/suggestion.h"
#include "proto/validation.h"

namespace fusion::api {
namespace {

using v1alpha1::Compnode;
using v1alpha1::FusionJob;
using v1alpha1::Link;

std::string LinkPath(int index) { return ItemPath("spec.links", static_cast<size_t>(index)); }

bool ToCluster(const Link& link) { return link.peer_kind() != Link::Compnode; }

/// Compnode name -> its cluster.
std::map<std::string, std::string> ClusterOfCompnode(const ObjectSet& set) {
  std::map<std::string, std::string> clusters;
  for (const Compnode* compnode : set.compnodes)
    clusters[compnode->metadata().name()] = compnode->spec().cluster();
  return clusters;
}

std::set<std::string> ClusterNames(const ObjectSet& set) {
  std::set<std::string> names;
  for (const Compnode* compnode : set.compnodes) names.insert(compnode->spec().cluster());
  return names;
}

/// ", did you mean x?" or the names there are.
std::string Known(const std::string& name, const std::vector<std::string>& names) {
  const std::string closest = ClosestName(name, names);
  return closest.empty() ? absl::StrCat("there are ", absl::StrJoin(names, ", "))
                         : absl::StrCat("did you mean ", closest, "?");
}

SetError CompnodeError(size_t index, std::string field, std::string message) {
  return {SetError::Kind::kCompnode, index, {std::move(field), std::move(message)}};
}

SetError JobError(size_t index, std::string field, std::string message) {
  return {SetError::Kind::kJob, index, {std::move(field), std::move(message)}};
}

bool AllowsCluster(const FusionJob& job, const std::string& cluster) {
  const auto& clusters = job.spec().placement().clusters();
  return clusters.empty() || std::find(clusters.begin(), clusters.end(), cluster) != clusters.end();
}

/// Two clusters that some job may use together; all pairs in a set without jobs.
bool UsedTogether(const ObjectSet& set, const std::string& a, const std::string& b) {
  if (set.jobs.empty()) return true;
  for (const FusionJob* job : set.jobs) {
    if (AllowsCluster(*job, a) && AllowsCluster(*job, b)) return true;
  }
  return false;
}

/// The speed and latency of a declaration; nothing where they do not parse, which is an error of its own.
std::optional<std::pair<double, double>> Rate(const Link& link) {
  const auto bandwidth = ParseBandwidth(link.bandwidth());
  const auto latency = ParseDuration(link.latency());
  if (!bandwidth.ok() || !latency.ok()) return std::nullopt;
  return std::make_pair(*bandwidth, *latency);
}

void CheckPeers(const ObjectSet& set, std::vector<SetError>* errors) {
  const std::map<std::string, std::string> cluster_of = ClusterOfCompnode(set);
  std::vector<std::string> names;
  names.reserve(cluster_of.size());
  for (const auto& [name, cluster] : cluster_of) names.push_back(name);
  for (size_t i = 0; i < set.compnodes.size(); ++i) {
    const auto& links = set.compnodes[i]->spec().links();
    for (int k = 0; k < links.size(); ++k) {
      if (ToCluster(links[k]) || !links[k].has_peer() || cluster_of.contains(links[k].peer())) continue;
      errors->push_back(
          CompnodeError(i, LinkPath(k) + ".peer",
                        absl::StrCat("\"", links[k].peer(), "\" is no compnode of these files; ",
                                     Known(links[k].peer(), names))));
    }
  }
}

void CheckAgreement(const ObjectSet& set, std::vector<SetError>* errors) {
  struct First {
    std::pair<double, double> rate;
    const Link* link;
    std::string compnode;
  };
  std::map<std::pair<std::string, std::string>, First> declared;  // (from, to) cluster
  for (size_t i = 0; i < set.compnodes.size(); ++i) {
    const Compnode& compnode = *set.compnodes[i];
    for (int k = 0; k < compnode.spec().links_size(); ++k) {
      const Link& link = compnode.spec().links(k);
      // To its own cluster a compnode declares its own port.
      if (!ToCluster(link) || link.peer() == compnode.spec().cluster()) continue;
      const auto rate = Rate(link);
      if (!rate.has_value()) continue;
      const auto [found, inserted] = declared.try_emplace({compnode.spec().cluster(), link.peer()},
                                                          First{*rate, &link, compnode.metadata().name()});
      if (inserted || found->second.rate == *rate) continue;
      errors->push_back(CompnodeError(
          i, LinkPath(k),
          absl::StrCat("declares ", link.bandwidth(), ", ", link.latency(), " to cluster ", link.peer(),
                       ", but ", found->second.compnode, " of the same cluster declares ",
                       found->second.link->bandwidth(), ", ", found->second.link->latency(),
                       "; they share this link: make them agree")));
    }
  }
}

/// Whether a compnode declares something for the path between `a` and `b`, in either direction.
bool Connects(const Compnode& a, const Compnode& b) {
  for (const auto& [from, to] : {std::make_pair(&a, &b), std::make_pair(&b, &a)}) {
    for (const Link& link : from->spec().links()) {
      if (link.peer() == (ToCluster(link) ? to->spec().cluster() : to->metadata().name())) return true;
    }
  }
  return false;
}

/// A link that any compnode of one cluster declares to the other serves all pairs.
bool ClustersConnected(const ObjectSet& set, const std::string& a, const std::string& b) {
  for (const Compnode* compnode : set.compnodes) {
    const std::string& own = compnode->spec().cluster();
    if (own != a && own != b) continue;
    for (const Link& link : compnode->spec().links()) {
      if (ToCluster(link) && link.peer() == (own == a ? b : a)) return true;
    }
  }
  return false;
}

void CheckCoverage(const ObjectSet& set, std::vector<SetError>* errors) {
  std::set<std::pair<std::string, std::string>> reported;
  for (size_t i = 0; i < set.compnodes.size(); ++i) {
    for (size_t k = i + 1; k < set.compnodes.size(); ++k) {
      const Compnode& a = *set.compnodes[i];
      const Compnode& b = *set.compnodes[k];
      const std::string& from = a.spec().cluster();
      const std::string& to = b.spec().cluster();
      if (from == to || from.empty() || to.empty() || reported.contains(std::minmax(from, to))) continue;
      if (!UsedTogether(set, from, to) || ClustersConnected(set, from, to) || Connects(a, b)) continue;
      reported.insert(std::minmax(from, to));
      errors->push_back(CompnodeError(
          i, "spec.links",
          absl::StrCat("no link from cluster ", from, " to cluster ", to,
                       " is declared or measured; add {peer: ", to, ", bandwidth: …, latency: …}")));
    }
  }
}

}  // namespace

FieldErrors ValidateCompnode(const Compnode& compnode) {
  FieldErrors errors;
  const v1alpha1::CompnodeSpec& spec = compnode.spec();
  if (spec.has_emulation() && !spec.emulation().has_flops()) {
    errors.push_back({"spec.emulation.flops", "is required; give the speed to imitate in FLOP/s"});
  }
  const std::string engine = EngineOf(compnode);
  if (engine != kTorchEngine && engine != kJaxEngine) {
    errors.push_back(
        {"metadata.annotations", absl::StrCat(kEngineAnnotation, " is \"", engine, "\"; it must be ",
                                              kTorchEngine, " or ", kJaxEngine)});
  }
  for (int i = 0; i < spec.devices_size(); ++i) {
    if (engine == kJaxEngine && spec.devices(i).kind() == v1alpha1::Device::CUDA) {
      errors.push_back({ItemPath("spec.devices", static_cast<size_t>(i)) + ".kind",
                        "is CUDA, but the engine jax runs on devices of kind CPU; take the engine torch"});
    }
  }
  for (int i = 0; i < spec.links_size(); ++i) {
    if (!ToCluster(spec.links(i)) && spec.links(i).peer() == compnode.metadata().name()) {
      errors.push_back({LinkPath(i) + ".peer", "is the compnode itself; remove the link"});
    }
  }
  return errors;
}

std::vector<SetError> CheckNames(const ObjectSet& set) {
  std::vector<SetError> errors;
  std::set<std::tuple<std::string, std::string>> jobs;
  for (size_t i = 0; i < set.jobs.size(); ++i) {
    const v1alpha1::ObjectMeta& metadata = set.jobs[i]->metadata();
    if (!metadata.has_name() || jobs.emplace(metadata.namespace_(), metadata.name()).second) continue;
    errors.push_back(
        JobError(i, "metadata.name",
                 absl::StrCat("a second FusionJob named \"", metadata.name(), "\"; rename one of them")));
  }
  std::set<std::string> compnodes;
  for (size_t i = 0; i < set.compnodes.size(); ++i) {
    const v1alpha1::ObjectMeta& metadata = set.compnodes[i]->metadata();
    if (!metadata.has_name() || compnodes.insert(metadata.name()).second) continue;
    errors.push_back(
        CompnodeError(i, "metadata.name",
                      absl::StrCat("a second Compnode named \"", metadata.name(), "\"; rename one of them")));
  }
  return errors;
}

std::vector<SetError> CheckReferences(const ObjectSet& set) {
  std::vector<SetError> errors;
  if (set.compnodes.empty()) return errors;
  const std::map<std::string, std::string> cluster_of = ClusterOfCompnode(set);
  const std::set<std::string> clusters = ClusterNames(set);
  std::vector<std::string> names;
  names.reserve(cluster_of.size());
  for (const auto& [name, cluster] : cluster_of) names.push_back(name);
  for (size_t i = 0; i < set.jobs.size(); ++i) {
    const v1alpha1::Placement& placement = set.jobs[i]->spec().placement();
    for (int k = 0; k < placement.clusters_size(); ++k) {
      const std::string& cluster = placement.clusters(k);
      if (clusters.contains(cluster)) continue;
      errors.push_back(JobError(i, ItemPath("spec.placement.clusters", static_cast<size_t>(k)),
                                absl::StrCat("no compnode is in cluster \"", cluster, "\"; ",
                                             Known(cluster, {clusters.begin(), clusters.end()}))));
    }
    for (int k = 0; k < placement.pins_size(); ++k) {
      const std::string& name = placement.pins(k).compnode();
      if (name.empty()) continue;
      const std::string path = ItemPath("spec.placement.pins", static_cast<size_t>(k)) + ".compnode";
      const auto found = cluster_of.find(name);
      if (found == cluster_of.end()) {
        errors.push_back(
            JobError(i, path, absl::StrCat("\"", name, "\" is no compnode; ", Known(name, names))));
      } else if (!AllowsCluster(*set.jobs[i], found->second)) {
        errors.push_back(
            JobError(i, path,
                     absl::StrCat("\"", name, "\" is in cluster ", found->second,
                                  ", which placement.clusters leaves out; add it or remove the pin")));
      }
    }
  }
  return errors;
}

std::vector<SetError> CheckLinks(const ObjectSet& set) {
  std::vector<SetError> errors;
  CheckPeers(set, &errors);
  CheckAgreement(set, &errors);
  CheckCoverage(set, &errors);
  return errors;
}

std::vector<SetError> ValidateSet(const ObjectSet& set) {
  std::vector<SetError> errors = CheckNames(set);
  for (const std::vector<SetError>& found : {CheckReferences(set), CheckLinks(set)}) {
    errors.insert(errors.end(), found.begin(), found.end());
  }
  return errors;
}

}  // namespace fusion::api
