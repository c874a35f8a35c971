#include "scheduler/network.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/quantity.h"

namespace fusion::scheduler {
namespace {

using v1alpha1::Compnode;

struct Declaration {
  double bytes_per_second = 0;
  double latency_seconds = 0;
  std::string by;  ///< compnode
};

using Declarations = std::map<std::pair<std::string, std::string>, Declaration>;

struct AllDeclarations {
  Declarations cluster;                      ///< by (declaring cluster, peer cluster), of different clusters
  Declarations node;                         ///< by (declaring compnode, peer compnode)
  std::map<std::string, Declaration> ports;  ///< by compnode
};

absl::Status Annotate(const absl::Status& status, const Compnode& compnode, int link,
                      absl::string_view field) {
  return absl::Status(status.code(), absl::StrCat("compnode ", compnode.metadata().name(), ": spec.links[",
                                                  link, "].", field, ": ", status.message()));
}

absl::StatusOr<Declaration> ParseLink(const Compnode& compnode, int index) {
  const v1alpha1::Link& link = compnode.spec().links(index);
  const absl::StatusOr<double> bits = api::ParseBandwidth(link.bandwidth());
  if (!bits.ok()) return Annotate(bits.status(), compnode, index, "bandwidth");
  const absl::StatusOr<double> latency = api::ParseDuration(link.latency());
  if (!latency.ok()) return Annotate(latency.status(), compnode, index, "latency");
  return Declaration{*bits / 8, *latency, compnode.metadata().name()};
}

std::string Text(const Declaration& declaration) {
  return absl::StrCat(api::FormatBandwidth(declaration.bytes_per_second * 8), "/",
                      api::FormatSeconds(declaration.latency_seconds), " by ", declaration.by);
}

absl::StatusOr<AllDeclarations> Collect(const std::vector<Compnode>& compnodes) {
  AllDeclarations all;
  for (const Compnode& compnode : compnodes) {
    const std::string& name = compnode.metadata().name();
    const std::string& cluster = compnode.spec().cluster();
    for (int i = 0; i < compnode.spec().links_size(); ++i) {
      absl::StatusOr<Declaration> declaration = ParseLink(compnode, i);
      if (!declaration.ok()) return declaration.status();
      const v1alpha1::Link& link = compnode.spec().links(i);
      if (link.peer_kind() == v1alpha1::Link::Compnode) {
        all.node[{name, link.peer()}] = *declaration;
      } else if (link.peer() == cluster) {
        all.ports[name] = *declaration;
      } else {
        const auto [place, added] = all.cluster.emplace(std::pair(cluster, link.peer()), *declaration);
        const Declaration& first = place->second;
        if (!added && (first.bytes_per_second != declaration->bytes_per_second ||
                       first.latency_seconds != declaration->latency_seconds)) {
          return absl::InvalidArgumentError(absl::StrCat("the link from cluster ", cluster, " to cluster ",
                                                         link.peer(), " is one resource, declared as ",
                                                         Text(first), " and as ", Text(*declaration),
                                                         " (spec.links[", i, "]); declare the same on both"));
        }
      }
    }
  }
  return all;
}

/// The sender's declaration, else the receiver's, else null.
const Declaration* Find(const Declarations& declarations, const std::string& from, const std::string& to) {
  auto found = declarations.find({from, to});
  if (found == declarations.end()) found = declarations.find({to, from});
  return found == declarations.end() ? nullptr : &found->second;
}

double Bounded(double bytes_per_second, double round_trip_seconds) {
  if (round_trip_seconds <= 0) return bytes_per_second;
  return std::min(bytes_per_second, kConnectionsPerPeer * kConnectionWindowBytes / round_trip_seconds);
}

/// Adds the resource of a pair of clusters or of compnodes.
Way PairWay(const Declarations& declarations, const std::string& from, const std::string& to,
            Network& network) {
  const Declaration& forward = *Find(declarations, from, to);
  const double back = Find(declarations, to, from)->latency_seconds;
  const int resource = network.AddResource(absl::StrCat(from, ">", to),
                                           Bounded(forward.bytes_per_second, forward.latency_seconds + back));
  return network.MakeWay({resource}, forward.latency_seconds);
}

Port MakePort(const std::string& name, const std::map<std::string, Declaration>& ports, Network& network) {
  const auto found = ports.find(name);
  const bool declared = found != ports.end();
  const double latency = declared ? found->second.latency_seconds : kDefaultLatencySeconds;
  const double rate =
      Bounded(declared ? found->second.bytes_per_second : kDefaultBytesPerSecond, 2 * latency);
  Port port;
  port.out = network.AddResource(absl::StrCat(name, ">"), rate);
  port.in = network.AddResource(absl::StrCat(">", name), rate);
  port.latency_seconds = declared ? latency : -1;
  return port;
}

}  // namespace

int Network::AddResource(std::string name, double bytes_per_second) {
  resources.push_back({std::move(name), bytes_per_second});
  return static_cast<int>(resources.size()) - 1;
}

int Network::AddNode(int cluster, Port port) {
  cluster_of_node_.push_back(cluster);
  ports_.push_back(port);
  return nodes() - 1;
}

void Network::SetClusterWay(int from_cluster, int to_cluster, Way way) {
  cluster_ways_[static_cast<size_t>(from_cluster) * clusters_ + to_cluster] = std::move(way);
}

void Network::SetNodeWay(int from_node, int to_node, Way way) {
  node_ways_[{from_node, to_node}] = std::move(way);
}

Way Network::MakeWay(std::initializer_list<int> way_resources, double latency_seconds) const {
  Way way;
  way.latency_seconds = latency_seconds;
  for (const int resource : way_resources) {
    way.resources.push_back(resource);
    way.bytes_per_second = std::min(way.bytes_per_second, resources[resource].bytes_per_second);
  }
  return way;
}

Way Network::Between(int from_node, int to_node) const {
  if (from_node == to_node) return Way();
  if (!node_ways_.empty()) {
    const auto found = node_ways_.find({from_node, to_node});
    if (found != node_ways_.end()) return found->second;
  }
  const int from_cluster = cluster_of_node_[from_node];
  const int to_cluster = cluster_of_node_[to_node];
  if (from_cluster != to_cluster) {
    return cluster_ways_[static_cast<size_t>(from_cluster) * clusters_ + to_cluster];
  }
  const Port& from = ports_[from_node];
  const Port& to = ports_[to_node];
  const double latency = from.latency_seconds >= 0 ? from.latency_seconds
                         : to.latency_seconds >= 0 ? to.latency_seconds
                                                   : kDefaultLatencySeconds;
  return MakeWay({from.out, to.in}, latency);
}

double Network::Seconds(int from_node, int to_node, double bytes) const {
  const Way way = Between(from_node, to_node);
  return way.latency_seconds + bytes / way.bytes_per_second;
}

absl::StatusOr<Network> MakeNetwork(const std::vector<Compnode>& compnodes, const std::vector<int>& used) {
  const absl::StatusOr<AllDeclarations> declared = Collect(compnodes);
  if (!declared.ok()) return declared.status();
  std::vector<int> indexes = used;
  if (indexes.empty()) {
    indexes.resize(compnodes.size());
    std::iota(indexes.begin(), indexes.end(), 0);
  }
  std::map<std::string, int> number_of_name;
  std::vector<std::string> clusters;
  std::map<std::string, int> number_of_cluster;
  for (const int index : indexes) {
    const std::string& cluster = compnodes[index].spec().cluster();
    if (number_of_cluster.emplace(cluster, clusters.size()).second) clusters.push_back(cluster);
  }
  Network network(static_cast<int>(clusters.size()));
  std::vector<std::vector<int>> members(clusters.size());
  for (const int index : indexes) {
    const std::string& name = compnodes[index].metadata().name();
    const int cluster = number_of_cluster.at(compnodes[index].spec().cluster());
    const int node = network.AddNode(cluster, MakePort(name, declared->ports, network));
    number_of_name[name] = node;
    members[cluster].push_back(node);
  }
  for (const auto& [pair, declaration] : declared->node) {
    const auto from = number_of_name.find(pair.first);
    const auto to = number_of_name.find(pair.second);
    if (from == number_of_name.end() || to == number_of_name.end() || from == to) continue;
    for (const auto& [a, b] : {std::pair(from, to), std::pair(to, from)}) {
      if (b->second == a->second || network.HasNodeWay(a->second, b->second)) continue;
      network.SetNodeWay(a->second, b->second, PairWay(declared->node, a->first, b->first, network));
    }
  }
  for (size_t a = 0; a < clusters.size(); ++a) {
    for (size_t b = 0; b < clusters.size(); ++b) {
      if (a == b) continue;
      if (Find(declared->cluster, clusters[a], clusters[b]) != nullptr) {
        network.SetClusterWay(static_cast<int>(a), static_cast<int>(b),
                              PairWay(declared->cluster, clusters[a], clusters[b], network));
        continue;
      }
      for (const int from : members[a]) {
        for (const int to : members[b]) {
          if (network.HasNodeWay(from, to)) continue;
          return absl::FailedPreconditionError(absl::StrCat(
              "no link is declared from compnode ", compnodes[indexes[from]].metadata().name(), " (cluster ",
              clusters[a], ") to compnode ", compnodes[indexes[to]].metadata().name(), " (cluster ",
              clusters[b], "); add spec.links {peer: ", clusters[b],
              ", bandwidth, latency} to a compnode of ", clusters[a]));
        }
      }
    }
  }
  return network;
}

}  // namespace fusion::scheduler
