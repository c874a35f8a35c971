// What both drawings of a graph show: its operators without variables, who reads whom, and their stages.
#pragma once

#include <string>
#include <vector>

#include "fusion/graph/v1/graph.pb.h"
#include "fusion/graph/v1/plan.pb.h"

namespace fusion::cli {

struct DrawnNode {
  std::string name;
  std::string type;  ///< with overload; placeholder
  int stage = -1;    ///< -1: the plan does not say
};

struct DrawnEdge {
  int from = 0;
  int to = 0;
  bool crosses = false;  ///< between two stages
};

struct DrawnStage {
  int index = 0;
  std::string label;  ///< stage 0: a1 (site-a)
  std::string color;  ///< #rrggbb, light
};

struct DrawnGraph {
  std::string name;
  std::vector<DrawnNode> nodes;  ///< in topological order
  std::vector<DrawnEdge> edges;  ///< one for each pair of operators, by reader
  std::vector<DrawnStage> stages;

  const std::string& ColorOf(const DrawnNode& node) const;
};

DrawnGraph MakeDrawn(const graph::v1::Graph& graph, const graph::v1::Plan* plan);

/// Where everything is drawn, in pixels.
struct Layout {
  struct Box {
    double x = 0;  ///< of the centre
    double y = 0;
    double width = 0;
  };
  struct Point {
    double x = 0;
    double y = 0;
  };
  std::vector<Box> boxes;                 ///< by node
  std::vector<std::vector<Point>> paths;  ///< by edge, from its producer to its reader
  double width = 0;
  double height = 0;
};

inline constexpr double kBoxHeight = 34;

/// Layers by the longest way from the inputs; within a layer, operators and the edges that pass through it in
/// the order of what they hang on. Deterministic.
Layout MakeLayout(const DrawnGraph& graph);

}  // namespace fusion::cli
