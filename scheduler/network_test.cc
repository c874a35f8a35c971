#include "scheduler/network.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

namespace fusion::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1alpha1::Compnode Node(const std::string& name, const std::string& cluster, const std::string& links = "") {
  v1alpha1::Compnode node;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "metadata { name: '" + name + "' } spec { cluster: '" + cluster + "' " + links + " }", &node));
  return node;
}

std::string ToCluster(const std::string& peer, const std::string& bandwidth, const std::string& latency) {
  return "links { peer: '" + peer + "' bandwidth: '" + bandwidth + "' latency: '" + latency + "' }";
}

std::string ToNode(const std::string& peer, const std::string& bandwidth, const std::string& latency) {
  return "links { peer_kind: Compnode peer: '" + peer + "' bandwidth: '" + bandwidth + "' latency: '" +
         latency + "' }";
}

std::vector<std::string> Names(const Network& network, int from, int to) {
  std::vector<std::string> names;
  for (const int resource : network.Between(from, to).resources)
    names.push_back(network.resources[resource].name);
  return names;
}

TEST(NetworkTest, OneResourceForAllPairsOfTwoClusters) {
  const Network network = *MakeNetwork(
      {Node("a1", "a", ToCluster("b", "8Mbps", "40ms")), Node("a2", "a"), Node("b1", "b"), Node("b2", "b")});
  for (const int a : {0, 1}) {
    for (const int b : {2, 3}) {
      EXPECT_THAT(Names(network, a, b), ElementsAre("a>b"));
      EXPECT_THAT(Names(network, b, a), ElementsAre("b>a"));
      EXPECT_EQ(network.Between(a, b).resources, network.Between(0, 2).resources);
    }
  }
  EXPECT_DOUBLE_EQ(network.Between(0, 2).bytes_per_second, 1e6);
  EXPECT_DOUBLE_EQ(network.Between(2, 0).latency_seconds, 0.040);
  EXPECT_DOUBLE_EQ(network.Seconds(0, 3, 1e6), 1.040);
}

TEST(NetworkTest, PortsInsideACluster) {
  const Network network =
      *MakeNetwork({Node("a1", "a", ToCluster("a", "1Gbps", "1ms")), Node("a2", "a"), Node("a3", "a")});
  EXPECT_THAT(Names(network, 0, 1), ElementsAre("a1>", ">a2"));
  EXPECT_THAT(Names(network, 1, 0), ElementsAre("a2>", ">a1"));
  EXPECT_DOUBLE_EQ(network.Between(0, 1).bytes_per_second, 125e6);
  EXPECT_DOUBLE_EQ(network.Between(1, 0).bytes_per_second, 125e6);  // by the receiver's port
  EXPECT_DOUBLE_EQ(network.Between(1, 0).latency_seconds, 0.001);   // only the receiver declared one
  EXPECT_DOUBLE_EQ(network.Between(1, 2).bytes_per_second, 1.25e9);
  EXPECT_DOUBLE_EQ(network.Between(1, 2).latency_seconds, 100e-6);
}

TEST(NetworkTest, TheSenderWinsOverTheReceiver) {
  const Network network = *MakeNetwork(
      {Node("a1", "a", ToCluster("b", "8Mbps", "40ms")), Node("b1", "b", ToCluster("a", "16Mbps", "20ms"))});
  EXPECT_DOUBLE_EQ(network.Between(0, 1).bytes_per_second, 1e6);
  EXPECT_DOUBLE_EQ(network.Between(0, 1).latency_seconds, 0.040);
  EXPECT_DOUBLE_EQ(network.Between(1, 0).bytes_per_second, 2e6);
  EXPECT_DOUBLE_EQ(network.Between(1, 0).latency_seconds, 0.020);
}

TEST(NetworkTest, ACompnodesLinkBeatsTheClusters) {
  const Network network =
      *MakeNetwork({Node("a1", "a", ToCluster("b", "8Mbps", "40ms") + ToNode("b1", "80Mbps", "4ms")),
                    Node("a2", "a", ToNode("a1", "40Mbps", "2ms")), Node("b1", "b"), Node("b2", "b")});
  EXPECT_THAT(Names(network, 0, 2), ElementsAre("a1>b1"));
  EXPECT_THAT(Names(network, 2, 0), ElementsAre("b1>a1"));
  EXPECT_THAT(Names(network, 0, 3), ElementsAre("a>b"));
  EXPECT_THAT(Names(network, 1, 0), ElementsAre("a2>a1"));
  EXPECT_DOUBLE_EQ(network.Between(0, 2).bytes_per_second, 1e7);
  EXPECT_DOUBLE_EQ(network.Between(0, 1).latency_seconds, 0.002);
}

TEST(NetworkTest, ConnectionsBoundTheRateByTheRoundTrip) {
  const Network network = *MakeNetwork({Node("a1", "a", ToCluster("b", "100Gbps", "50ms")), Node("b1", "b")});
  EXPECT_DOUBLE_EQ(network.Between(0, 1).bytes_per_second, kConnectionsPerPeer * 32 * 1048576 / 0.1);
  EXPECT_DOUBLE_EQ(network.resources[network.Between(0, 1).resources[0]].bytes_per_second,
                   network.Between(0, 1).bytes_per_second);
}

TEST(NetworkTest, NothingInsideOneNode) {
  const Network network = *MakeNetwork({Node("a1", "a")});
  EXPECT_TRUE(network.Between(0, 0).resources.empty());
  EXPECT_DOUBLE_EQ(network.Seconds(0, 0, 1e12), 0);
}

TEST(NetworkTest, DisagreeingDeclarationsAreRefused) {
  const absl::StatusOr<Network> network =
      MakeNetwork({Node("a1", "a", ToCluster("b", "8Mbps", "40ms")),
                   Node("a2", "a", ToCluster("b", "9Mbps", "40ms")), Node("b1", "b")});
  EXPECT_EQ(network.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(network.status().message()), HasSubstr("from cluster a to cluster b"));
  EXPECT_THAT(std::string(network.status().message()), HasSubstr("8Mbps/40 ms by a1"));
  EXPECT_THAT(std::string(network.status().message()), HasSubstr("9Mbps/40 ms by a2"));
}

TEST(NetworkTest, AMissingLinkNamesThePair) {
  const std::vector<v1alpha1::Compnode> nodes = {Node("a1", "a", ToCluster("b", "8Mbps", "40ms")),
                                                 Node("b1", "b"),
                                                 Node("c1", "c", ToNode("b1", "1Gbps", "1ms"))};
  const absl::StatusOr<Network> network = MakeNetwork(nodes);
  EXPECT_EQ(network.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(network.status().message()),
              HasSubstr("from compnode a1 (cluster a) to compnode c1 (cluster c)"));
  // Not asked for: not needed. A declaration of an unused compnode still speaks for its cluster.
  EXPECT_TRUE(MakeNetwork(nodes, {1, 2}).ok());
  const std::vector<v1alpha1::Compnode> more = {nodes[0], nodes[1], Node("a2", "a")};
  EXPECT_DOUBLE_EQ(MakeNetwork(more, {2, 1})->Between(0, 1).bytes_per_second, 1e6);
}

TEST(NetworkTest, BadQuantitiesNameTheField) {
  const absl::StatusOr<Network> network = MakeNetwork({Node("a1", "a", ToCluster("b", "fast", "40ms"))});
  EXPECT_THAT(std::string(network.status().message()), HasSubstr("compnode a1: spec.links[0].bandwidth"));
}

}  // namespace
}  // namespace fusion::scheduler
