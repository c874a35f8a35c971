#include "scheduler/partition/assignment.h"

#include <algorithm>
#include <set>

namespace fusion::scheduler {
namespace {

// Places in a topological order of their quotient, or nothing where it has a cycle. Ties by the first
// operator.
std::vector<int> OrderPlaces(const OperatorLinks& links, const Assignment& assignment, int places) {
  std::vector<int> number(places, -1);  // used places by first operator
  std::vector<int> place;
  for (int at : assignment) {
    if (number[at] >= 0) continue;
    number[at] = static_cast<int>(place.size());
    place.push_back(at);
  }
  const size_t used = place.size();
  std::vector<char> reads(used * used, 0);
  std::vector<int> missing(used, 0);
  for (size_t op = 0; op < assignment.size(); ++op) {
    const int to = number[assignment[op]];
    for (int source : links.sources[op]) {
      const int from = number[assignment[source]];
      if (from == to || reads[from * used + to]) continue;
      reads[from * used + to] = 1;
      ++missing[to];
    }
  }
  std::vector<int> order;
  std::set<int> ready;
  for (size_t i = 0; i < used; ++i) {
    if (missing[i] == 0) ready.insert(static_cast<int>(i));
  }
  while (!ready.empty()) {
    const int next = *ready.begin();
    ready.erase(ready.begin());
    order.push_back(place[next]);
    for (size_t to = 0; to < used; ++to) {
      if (reads[next * used + to] && --missing[to] == 0) ready.insert(static_cast<int>(to));
    }
  }
  if (order.size() < used) order.clear();
  return order;
}

// Sub-DAGs one by one, each the operators of one place that can run when those before it have.
std::vector<PlaceGroup> DrainPlaces(const OperatorLinks& links, const Assignment& assignment, int places) {
  const int operators = static_cast<int>(assignment.size());
  std::vector<PlaceGroup> groups;
  std::vector<char> done(operators, 0);
  for (int left = operators; left > 0;) {
    std::vector<char> drains(operators, 0);
    std::vector<int> stuck(places, 0);
    int first_ready = -1;
    for (int op = 0; op < operators; ++op) {
      if (done[op]) continue;
      drains[op] = std::all_of(links.sources[op].begin(), links.sources[op].end(), [&](int source) {
        return done[source] || (drains[source] && assignment[source] == assignment[op]);
      });
      if (!drains[op]) ++stuck[assignment[op]];
      if (drains[op] && first_ready < 0) first_ready = op;
    }
    int chosen = assignment[first_ready];
    for (int op = 0; op < operators; ++op) {
      if (!done[op] && stuck[assignment[op]] == 0) {
        chosen = assignment[op];
        break;
      }
    }
    PlaceGroup& group = groups.emplace_back();
    group.place = chosen;
    for (int op = 0; op < operators; ++op) {
      if (drains[op] && assignment[op] == chosen) {
        group.operators.push_back(op);
        done[op] = 1;
        --left;
      }
    }
  }
  return groups;
}

}  // namespace

Places::Places(const Problem& problem) {
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    first.push_back(size());
    const int slots = std::clamp(problem.nodes[n].slots, 1, std::max(problem.max_stages, 1));
    node.insert(node.end(), slots, static_cast<int>(n));
  }
}

OperatorLinks::OperatorLinks(const Problem& problem)
    : sources(problem.operators.size()), readers(problem.operators.size()) {
  for (const Value& value : problem.values) {
    for (int consumer : value.consumers) sources[consumer].push_back(value.producer);
  }
  for (size_t op = 0; op < sources.size(); ++op) {
    std::sort(sources[op].begin(), sources[op].end());
    sources[op].erase(std::unique(sources[op].begin(), sources[op].end()), sources[op].end());
    for (int source : sources[op]) readers[source].push_back(static_cast<int>(op));
  }
}

std::vector<PlaceGroup> GroupOperators(const OperatorLinks& links, const Assignment& assignment, int places) {
  const std::vector<int> order = OrderPlaces(links, assignment, places);
  if (order.empty()) return DrainPlaces(links, assignment, places);
  std::vector<int> group_of_place(places, -1);
  std::vector<PlaceGroup> groups(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    group_of_place[order[i]] = static_cast<int>(i);
    groups[i].place = order[i];
  }
  for (size_t op = 0; op < assignment.size(); ++op) {
    groups[group_of_place[assignment[op]]].operators.push_back(static_cast<int>(op));
  }
  return groups;
}

Partition MakePartition(const Problem& problem, const Places& places, const std::vector<PlaceGroup>& groups) {
  std::vector<int> group_of(problem.operators.size(), -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int op : groups[g].operators) group_of[op] = static_cast<int>(g);
  }
  std::vector<int> hops(groups.size(),
                        0);  // edges across stages on the longest path to a sub-DAG that nothing reads
  std::vector<std::set<int>> readers(groups.size());
  for (const Value& value : problem.values) {
    for (int consumer : value.consumers) {
      if (group_of[consumer] != group_of[value.producer])
        readers[group_of[value.producer]].insert(group_of[consumer]);
    }
  }
  for (size_t g = groups.size(); g-- > 0;) {
    for (int reader : readers[g]) {
      hops[g] = std::max(hops[g], hops[reader] + (groups[reader].place == groups[g].place ? 0 : 1));
    }
  }

  std::vector<int> stage_of_place(places.size(), -1);
  Partition partition;
  std::vector<size_t> by_first_operator;
  for (size_t g = 0; g < groups.size(); ++g) by_first_operator.push_back(g);
  std::sort(by_first_operator.begin(), by_first_operator.end(),
            [&](size_t a, size_t b) { return groups[a].operators[0] < groups[b].operators[0]; });
  for (size_t g : by_first_operator) {
    int& stage = stage_of_place[groups[g].place];
    if (stage >= 0) continue;
    stage = static_cast<int>(partition.stages.size());
    partition.stages.push_back({places.node[groups[g].place], {}});
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const int depth = problem.gpipe ? problem.micro_batches : std::min(hops[g] + 1, problem.micro_batches);
    partition.stages[stage_of_place[groups[g].place]].sub_dags.push_back({groups[g].operators, depth});
  }
  return partition;
}

}  // namespace fusion::scheduler
