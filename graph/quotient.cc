#include "graph/quotient.h"

#include <algorithm>
#include <utility>

namespace fusion::graph {

void QuotientGraph::AddArc(int from, int to, std::string reason) {
  for (const Arc& arc : successors_[from]) {
    if (arc.to == to) return;
  }
  successors_[from].push_back({from, to, std::move(reason)});
}

std::vector<QuotientGraph::Arc> QuotientGraph::FindCycle() const {
  enum class State { kNew, kOnPath, kDone };
  std::vector<State> states(successors_.size(), State::kNew);
  // Depth first without recursion: a path and, for each node on it, the next arc to follow.
  std::vector<std::pair<int, size_t>> path;
  for (int root = 0; root < static_cast<int>(successors_.size()); ++root) {
    if (states[root] != State::kNew) continue;
    states[root] = State::kOnPath;
    path.emplace_back(root, 0);
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next == successors_[node].size()) {
        states[node] = State::kDone;
        path.pop_back();
        continue;
      }
      const Arc& arc = successors_[node][next++];
      if (states[arc.to] == State::kNew) {
        states[arc.to] = State::kOnPath;
        path.emplace_back(arc.to, 0);
      } else if (states[arc.to] == State::kOnPath) {
        std::vector<Arc> cycle;
        auto at =
            std::find_if(path.begin(), path.end(), [&](const auto& entry) { return entry.first == arc.to; });
        for (; at != path.end(); ++at) cycle.push_back(successors_[at->first][at->second - 1]);
        return cycle;
      }
    }
  }
  return {};
}

}  // namespace fusion::graph
