// The graph whose nodes are sub-DAGs and whose arcs say which must run before which.
#pragma once

#include <string>
#include <vector>

namespace fusion::graph {

class QuotientGraph {
 public:
  struct Arc {
    int from = 0;
    int to = 0;
    std::string reason;  ///< for messages
  };

  explicit QuotientGraph(int nodes) : successors_(nodes) {}

  /// `from` != `to`. Of several arcs between two nodes the first one's reason is kept.
  void AddArc(int from, int to, std::string reason);

  /// The arcs of one cycle, in order; empty if there is none. Deterministic.
  std::vector<Arc> FindCycle() const;

 private:
  std::vector<std::vector<Arc>> successors_;
};

}  // namespace fusion::graph
