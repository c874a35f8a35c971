// Ways between compnodes: alpha-beta links over shared resources.
//
// - A link declared to another cluster is ONE resource per ordered pair of clusters, "a>b", shared by
//   all compnodes of both.
// - Inside a cluster each compnode has a port in each direction, "a1>" and ">a1".
// - A link declared to a compnode is that pair's own, "a1>b1", and beats the cluster's.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::scheduler {

/// HTTP/2's largest usable window of one connection: so many bytes are under way per round trip.
inline constexpr double kConnectionWindowBytes = 32.0 * 1024 * 1024;

/// Connections over which worker/transport stripes the stream of one pair of stages.
inline constexpr int kConnectionsPerPeer = 1;

/// Where no link is declared inside a cluster: 10 Gbps, 100 us.
inline constexpr double kDefaultBytesPerSecond = 10e9 / 8;
inline constexpr double kDefaultLatencySeconds = 100e-6;

struct Resource {
  std::string name;             ///< as in wire.v1 EmulatedLink
  double bytes_per_second = 0;  ///< already bounded by connections x 32 MiB per round trip
};

/// How bytes get from one compnode to another: they reserve time on each resource, the slowest one counts.
struct Way {
  absl::InlinedVector<int, 2> resources;  ///< indexes in Network::resources; empty inside one node
  double latency_seconds = 0;             ///< alpha, one way
  double bytes_per_second = std::numeric_limits<double>::infinity();  ///< 1 / beta, of the slowest resource

  bool declared() const { return !resources.empty(); }
};

/// A compnode's connection to its own cluster.
struct Port {
  int out = -1;  ///< resource
  int in = -1;
  double latency_seconds = -1;  ///< < 0: not declared, the peer's holds
};

/// Built once, then read by any number of threads. Memory: compnodes + clusters^2, so that 10,000 compnodes
/// fit.
class Network {
 public:
  explicit Network(int clusters = 0) : clusters_(clusters), cluster_ways_(clusters * clusters) {}

  int AddResource(std::string name, double bytes_per_second);
  /// Returns the node's index: nodes count from 0.
  int AddNode(int cluster, Port port);
  void SetClusterWay(int from_cluster, int to_cluster, Way way);
  void SetNodeWay(int from_node, int to_node, Way way);
  bool HasNodeWay(int from_node, int to_node) const { return node_ways_.contains({from_node, to_node}); }
  /// A way over these resources, as fast as the slowest of them.
  Way MakeWay(std::initializer_list<int> way_resources, double latency_seconds) const;

  Way Between(int from_node, int to_node) const;
  /// alpha + beta x bytes.
  double Seconds(int from_node, int to_node, double bytes) const;
  int nodes() const { return static_cast<int>(cluster_of_node_.size()); }

  std::vector<Resource> resources;

 private:
  int clusters_ = 0;
  std::vector<Way> cluster_ways_;  ///< by from x clusters_ + to
  std::vector<int> cluster_of_node_;
  std::vector<Port> ports_;  ///< by node
  std::map<std::pair<int, int>, Way> node_ways_;
};

/// The network of the compnodes with these indexes (all when empty), which become its nodes 0, 1, …;
/// declarations of the others count where they speak for a cluster. Of a pair the sender's declaration wins
/// over the receiver's. INVALID_ARGUMENT when declarations of one resource disagree, FAILED_PRECONDITION when
/// none exists across clusters; both name the pair.
absl::StatusOr<Network> MakeNetwork(const std::vector<v1alpha1::Compnode>& compnodes,
                                    const std::vector<int>& used = {});

}  // namespace fusion::scheduler
