#include "scheduler/partition/louvain.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace fusion::scheduler {
namespace {

// Cliques of the given sizes with weight `inside`, every other pair with weight `outside`.
WeightedGraph Cliques(const std::vector<int>& sizes, double inside, double outside) {
  std::vector<int> clique;
  for (size_t i = 0; i < sizes.size(); ++i) clique.insert(clique.end(), sizes[i], static_cast<int>(i));
  WeightedGraph graph(static_cast<int>(clique.size()));
  for (int a = 0; a < graph.size(); ++a) {
    for (int b = a + 1; b < graph.size(); ++b) graph.AddEdge(a, b, clique[a] == clique[b] ? inside : outside);
  }
  return graph;
}

TEST(Louvain, FindsCliques) {
  EXPECT_EQ(Louvain(Cliques({3, 2, 4}, 10, 0.1), 1), (Communities{0, 0, 0, 1, 1, 2, 2, 2, 2}));
}

TEST(Louvain, KeepsEqualLinksTogether) { EXPECT_EQ(Louvain(Cliques({9}, 1, 0), 1), Communities(9, 0)); }

TEST(Louvain, LeavesUnconnectedNodesAlone) {
  EXPECT_EQ(Louvain(WeightedGraph(3), 1), (Communities{0, 1, 2}));
}

TEST(Louvain, ModularityOfTwoEdges) {
  WeightedGraph graph(4);
  graph.AddEdge(0, 1, 1);
  graph.AddEdge(2, 3, 1);
  EXPECT_DOUBLE_EQ(Modularity(graph, {0, 0, 1, 1}, 1), 0.5);
  EXPECT_DOUBLE_EQ(Modularity(graph, {0, 0, 0, 0}, 1), 0.0);
  EXPECT_DOUBLE_EQ(Modularity(graph, {0, 0, 1, 1}, 2), 0.0);
}

// Two far pairs of near islands: one resolution sees the pairs, recursion also the four islands.
TEST(CandidateClusterings, RecursesIntoIslands) {
  WeightedGraph graph(16);
  for (int a = 0; a < 16; ++a) {
    for (int b = a + 1; b < 16; ++b) graph.AddEdge(a, b, a / 4 == b / 4 ? 2.0 : a / 8 == b / 8 ? 1.1 : 0.3);
  }
  const std::vector<Communities> found = CandidateClusterings(graph);
  auto blocks = [](int size) {
    Communities result;
    for (int i = 0; i < 16; ++i) result.push_back(i / size);
    return result;
  };
  EXPECT_EQ(found.front(), Communities(16, 0));
  EXPECT_EQ(found.back().back(), 15);
  EXPECT_NE(std::find(found.begin(), found.end(), blocks(8)), found.end());
  EXPECT_NE(std::find(found.begin(), found.end(), blocks(4)), found.end());
}

RC_GTEST_PROP(Louvain, IsRepeatableAndBeatsLoneNodes, ()) {
  const int nodes = *rc::gen::inRange(1, 12);
  WeightedGraph graph(nodes);
  for (int a = 0; a < nodes; ++a) {
    for (int b = a + 1; b < nodes; ++b) graph.AddEdge(a, b, *rc::gen::inRange(0, 10));
  }
  const Communities communities = Louvain(graph, 1);
  Communities alone(nodes);
  for (int i = 0; i < nodes; ++i) alone[i] = i;
  RC_ASSERT(Modularity(graph, communities, 1) >= Modularity(graph, alone, 1) - 1e-9);
  RC_ASSERT(Louvain(graph, 1) == communities);
}

}  // namespace
}  // namespace fusion::scheduler
