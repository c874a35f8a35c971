#include <algorithm>
#include <limits>
#include <numeric>

#include "cli/drawn_graph.h"

namespace fusion::cli {
namespace {

constexpr double kCharacter = 6.7;
constexpr double kMargin = 20;
constexpr double kGap = 18;
constexpr double kLayerHeight = 66;
constexpr double kPassing = 8;          // width of an edge that passes through a layer
constexpr size_t kMaxPassing = 20'000;  // beyond, long edges are drawn straight
constexpr int kSweeps = 4;

/// A node of the drawing, or the place where an edge passes through a layer.
struct Place {
  int layer = 0;
  double width = 0;
  double x = 0;
  std::vector<int> above;
  std::vector<int> below;
};

class Layering {
 public:
  explicit Layering(const DrawnGraph& graph) : graph_(graph) {}

  Layout Run() {
    AssignLayers();
    AddPassing();
    layers_.resize(static_cast<size_t>(depth_));
    for (size_t i = 0; i < places_.size(); ++i)
      layers_[static_cast<size_t>(places_[i].layer)].push_back(static_cast<int>(i));
    Pack();
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      Sort(sweep % 2 == 0);
      Pack();
    }
    return Collect();
  }

 private:
  void AssignLayers() {
    places_.resize(graph_.nodes.size());
    std::vector<int> lowest(graph_.nodes.size(), std::numeric_limits<int>::max());
    std::vector<bool> reads(graph_.nodes.size());
    for (const DrawnEdge& edge : graph_.edges) {  // readers come in topological order
      Place& reader = places_[static_cast<size_t>(edge.to)];
      reader.layer = std::max(reader.layer, places_[static_cast<size_t>(edge.from)].layer + 1);
      reads[static_cast<size_t>(edge.to)] = true;
    }
    // What reads nothing stands right above its first reader.
    for (const DrawnEdge& edge : graph_.edges) {
      int& low = lowest[static_cast<size_t>(edge.from)];
      low = std::min(low, places_[static_cast<size_t>(edge.to)].layer - 1);
    }
    for (size_t i = 0; i < places_.size(); ++i) {
      const DrawnNode& node = graph_.nodes[i];
      if (!reads[i] && lowest[i] != std::numeric_limits<int>::max()) places_[i].layer = lowest[i];
      const size_t characters = std::max(node.name.size(), node.type.size());
      places_[i].width = static_cast<double>(characters) * kCharacter + 16;
      depth_ = std::max(depth_, places_[i].layer + 1);
    }
  }

  void AddPassing() {
    size_t passing = 0;
    for (const DrawnEdge& edge : graph_.edges)
      passing += static_cast<size_t>(LayerOf(edge.to) - LayerOf(edge.from) - 1);
    ways_.resize(graph_.edges.size());
    for (size_t i = 0; i < graph_.edges.size(); ++i) {
      const DrawnEdge& edge = graph_.edges[i];
      int last = edge.from;
      for (int layer = LayerOf(edge.from) + 1; passing <= kMaxPassing && layer < LayerOf(edge.to); ++layer) {
        const int place = static_cast<int>(places_.size());
        places_.push_back({.layer = layer, .width = kPassing, .x = 0, .above = {}, .below = {}});
        ways_[i].push_back(place);
        Join(last, place);
        last = place;
      }
      Join(last, edge.to);
    }
  }

  int LayerOf(int node) const { return places_[static_cast<size_t>(node)].layer; }
  void Join(int upper, int lower) {
    places_[static_cast<size_t>(upper)].below.push_back(lower);
    places_[static_cast<size_t>(lower)].above.push_back(upper);
  }

  /// Side by side in the layer's order, the layer centred at 0.
  void Pack() {
    for (const std::vector<int>& layer : layers_) {
      double width = -kGap;
      for (const int place : layer) width += places_[static_cast<size_t>(place)].width + kGap;
      double x = -width / 2;
      for (const int place : layer) {
        Place& here = places_[static_cast<size_t>(place)];
        here.x = x + here.width / 2;
        x += here.width + kGap;
      }
    }
  }

  /// Each layer by the mean position of what is above (or below) each of its places.
  void Sort(bool down) {
    for (std::vector<int>& layer : layers_) {
      const auto mean = [&](int place) {
        const Place& here = places_[static_cast<size_t>(place)];
        const std::vector<int>& others = down ? here.above : here.below;
        if (others.empty()) return here.x;
        double sum = 0;
        for (const int other : others) sum += places_[static_cast<size_t>(other)].x;
        return sum / static_cast<double>(others.size());
      };
      std::vector<std::pair<double, int>> keys;
      keys.reserve(layer.size());
      for (const int place : layer) keys.emplace_back(mean(place), place);
      std::stable_sort(keys.begin(), keys.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      for (size_t i = 0; i < layer.size(); ++i) layer[i] = keys[i].second;
    }
  }

  Layout Collect() const {
    Layout layout;
    double left = 0;
    double right = 0;
    for (const Place& place : places_) {
      left = std::min(left, place.x - place.width / 2);
      right = std::max(right, place.x + place.width / 2);
    }
    const double shift = kMargin - left;
    const auto y = [](int layer) { return kMargin + kBoxHeight / 2 + layer * kLayerHeight; };
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      layout.boxes.push_back({places_[i].x + shift, y(places_[i].layer), places_[i].width});
    for (size_t i = 0; i < graph_.edges.size(); ++i) {
      const Layout::Box& from = layout.boxes[static_cast<size_t>(graph_.edges[i].from)];
      const Layout::Box& to = layout.boxes[static_cast<size_t>(graph_.edges[i].to)];
      std::vector<Layout::Point> path = {{from.x, from.y + kBoxHeight / 2}};
      for (const int place : ways_[i])
        path.push_back({places_[static_cast<size_t>(place)].x + shift, y(LayerOf(place))});
      path.push_back({to.x, to.y - kBoxHeight / 2});
      layout.paths.push_back(std::move(path));
    }
    layout.width = right - left + 2 * kMargin;
    layout.height = 2 * kMargin + kBoxHeight + std::max(0, depth_ - 1) * kLayerHeight;
    return layout;
  }

  const DrawnGraph& graph_;
  std::vector<Place> places_;           ///< the nodes, then where edges pass
  std::vector<std::vector<int>> ways_;  ///< by edge
  std::vector<std::vector<int>> layers_;
  int depth_ = 0;
};

}  // namespace

Layout MakeLayout(const DrawnGraph& graph) { return Layering(graph).Run(); }

}  // namespace fusion::cli
