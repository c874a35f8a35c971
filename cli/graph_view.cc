#include "cli/graph_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/drawn_graph.h"
#include "graph/graph_index.h"

namespace fusion::cli {
namespace {

constexpr double kLegendRow = 22;

/// Light colours, neighbours far apart on the colour circle.
std::string StageColor(int stage) {
  const double hue = std::fmod(210 + stage * 137.508, 360) / 60;
  const double chroma = 0.28;
  const double second = chroma * (1 - std::abs(std::fmod(hue, 2) - 1));
  const double base = 0.68;
  double rgb[3] = {base, base, base};
  const int sector = static_cast<int>(hue);
  constexpr int kStrong[] = {0, 1, 1, 2, 2, 0};
  constexpr int kWeak[] = {1, 0, 2, 1, 0, 2};
  rgb[kStrong[sector]] += chroma;
  rgb[kWeak[sector]] += second;
  return absl::StrFormat("#%02x%02x%02x", static_cast<int>(rgb[0] * 255), static_cast<int>(rgb[1] * 255),
                         static_cast<int>(rgb[2] * 255));
}

std::string DotText(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
}

std::string XmlText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

/// A smooth line that leaves and arrives upright.
std::string PathData(const std::vector<Layout::Point>& points) {
  std::string data = absl::StrFormat("M%.1f %.1f", points[0].x, points[0].y);
  for (size_t i = 1; i < points.size(); ++i) {
    const Layout::Point& a = points[i - 1];
    const Layout::Point& b = points[i];
    const double middle = (a.y + b.y) / 2;
    absl::StrAppendFormat(&data, " C%.1f %.1f %.1f %.1f %.1f %.1f", a.x, middle, b.x, middle, b.x, b.y);
  }
  return data;
}

}  // namespace

const std::string& DrawnGraph::ColorOf(const DrawnNode& node) const {
  static const auto& white = *new std::string("#ffffff");
  for (const DrawnStage& stage : stages) {
    if (stage.index == node.stage) return stage.color;
  }
  return white;
}

DrawnGraph MakeDrawn(const graph::v1::Graph& graph, const graph::v1::Plan* plan) {
  DrawnGraph drawn;
  drawn.name = graph.name();
  std::map<std::string, int> stage_of;
  if (plan != nullptr) {
    for (const graph::v1::PlannedStage& stage : plan->stages()) {
      for (const std::string& op : stage.operators()) stage_of[op] = stage.index();
      drawn.stages.push_back(
          {stage.index(),
           absl::StrCat("stage ", stage.index(), ": ", stage.compnode(),
                        stage.cluster().empty() ? "" : absl::StrCat(" (", stage.cluster(), ")")),
           StageColor(stage.index())});
    }
  }
  std::map<std::string, int> node_of;
  for (const graph::v1::Operator& op : graph.operators()) {
    if (op.kind() == graph::v1::Operator::VARIABLE) continue;
    const auto stage = stage_of.find(op.name());
    DrawnNode node{op.name(), op.type().empty() ? "placeholder" : op.type(),
                   stage == stage_of.end() ? -1 : stage->second};
    if (!op.overload().empty()) absl::StrAppend(&node.type, ".", op.overload());
    const int reader = static_cast<int>(drawn.nodes.size());
    std::set<int> read;
    graph::ForEachRead(op, [&](const graph::v1::ValueRef& ref) {
      const auto producer = node_of.find(ref.operator_());
      if (producer != node_of.end()) read.insert(producer->second);
    });
    for (const int producer : read) {
      drawn.edges.push_back(
          {producer, reader, drawn.nodes[static_cast<size_t>(producer)].stage != node.stage});
    }
    node_of[op.name()] = reader;
    drawn.nodes.push_back(std::move(node));
  }
  return drawn;
}

std::string GraphDot(const graph::v1::Graph& graph, const graph::v1::Plan* plan) {
  const DrawnGraph drawn = MakeDrawn(graph, plan);
  std::string text = absl::StrCat("digraph ", DotText(drawn.name),
                                  " {\n  node [shape=box, style=filled, fillcolor=\"#ffffff\", "
                                  "fontname=\"sans-serif\", fontsize=10];\n");
  for (size_t i = 0; i < drawn.nodes.size(); ++i) {
    const DrawnNode& node = drawn.nodes[i];
    absl::StrAppend(&text, "  n", i, " [label=", DotText(node.name + "\n" + node.type),
                    ", fillcolor=", DotText(drawn.ColorOf(node)));
    if (node.stage >= 0) absl::StrAppend(&text, ", comment=", DotText(absl::StrCat("stage ", node.stage)));
    absl::StrAppend(&text, "];\n");
  }
  for (const DrawnEdge& edge : drawn.edges) {
    absl::StrAppend(&text, "  n", edge.from, " -> n", edge.to,
                    edge.crosses ? " [style=dashed, penwidth=2]" : "", ";\n");
  }
  for (const DrawnStage& stage : drawn.stages) {
    absl::StrAppend(&text, "  stage", stage.index, " [shape=plaintext, label=", DotText(stage.label),
                    ", fillcolor=", DotText(stage.color), "];\n");
  }
  return text + "}\n";
}

std::string GraphSvg(const graph::v1::Graph& graph, const graph::v1::Plan* plan) {
  const DrawnGraph drawn = MakeDrawn(graph, plan);
  const Layout layout = MakeLayout(drawn);
  const double legend = drawn.stages.empty() ? 0 : kLegendRow * static_cast<double>(drawn.stages.size()) + 14;
  const double width = std::max(layout.width, 260.0);
  std::string text = absl::StrFormat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n"
      "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      width, layout.height + legend, width, layout.height + legend, XmlText(drawn.name));
  for (size_t i = 0; i < drawn.stages.size(); ++i) {
    const double y = 12 + kLegendRow * static_cast<double>(i);
    absl::StrAppendFormat(&text,
                          "<rect class=\"legend\" x=\"20\" y=\"%.0f\" width=\"16\" height=\"16\" fill=\"%s\" "
                          "stroke=\"#555555\"/><text x=\"44\" y=\"%.0f\">%s</text>\n",
                          y, drawn.stages[i].color, y + 12, XmlText(drawn.stages[i].label));
  }
  absl::StrAppendFormat(&text, "<g transform=\"translate(0 %.0f)\">\n", legend);
  for (size_t i = 0; i < drawn.edges.size(); ++i) {
    absl::StrAppend(
        &text, "<path class=\"edge\" d=\"", PathData(layout.paths[i]), "\" fill=\"none\" stroke=\"",
        drawn.edges[i].crosses ? "#c0392b\" stroke-width=\"2\" stroke-dasharray=\"5 3\"" : "#888888\"",
        "/>\n");
  }
  for (size_t i = 0; i < drawn.nodes.size(); ++i) {
    const DrawnNode& node = drawn.nodes[i];
    const Layout::Box& box = layout.boxes[i];
    absl::StrAppendFormat(
        &text,
        "<g class=\"operator\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\" rx=\"4\" "
        "fill=\"%s\" stroke=\"#333333\"/>",
        box.x - box.width / 2, box.y - kBoxHeight / 2, box.width, kBoxHeight, drawn.ColorOf(node));
    absl::StrAppendFormat(
        &text,
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>"
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#555555\">%s</text></g>\n",
        box.x, box.y - 3, XmlText(node.name), box.x, box.y + 11, XmlText(node.type));
  }
  return text + "</g>\n</svg>\n";
}

}  // namespace fusion::cli
