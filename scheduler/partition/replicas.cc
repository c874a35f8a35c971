#include "scheduler/partition/replicas.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/partition/louvain.h"

namespace fusion::scheduler {
namespace {

constexpr int kExactPathStages = 12;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Grid = std::vector<std::vector<int>>;  // [row][column]

double LinkSeconds(const ReplicaProblem& problem, int from, int to, double bytes) {
  const size_t link = static_cast<size_t>(from) * problem.devices() + to;
  return problem.latency_seconds[link] + bytes / problem.bytes_per_second[link];
}

double GradientSeconds(const ReplicaProblem& problem, const Grid& groups) {
  double result = 0;
  for (const std::vector<int>& group : groups) {
    for (int i : group) {
      double sum = 0;
      for (int j : group) {
        if (i != j) sum += 2 * LinkSeconds(problem, i, j, problem.gradient_bytes / problem.replicas);
      }
      result = std::max(result, sum);
    }
  }
  return result;
}

// Perfect matching that uses only pairs of at most `limit`, by augmenting paths. Empty if there is none.
std::vector<int> MatchWithin(const std::vector<std::vector<double>>& seconds, double limit) {
  const int size = static_cast<int>(seconds.size());
  std::vector<int> column_of(size, -1);
  std::vector<int> row_of(size, -1);
  std::vector<char> seen;
  std::function<bool(int)> augment = [&](int row) {
    for (int column = 0; column < size; ++column) {
      if (seconds[row][column] > limit || seen[column]) continue;
      seen[column] = 1;
      if (row_of[column] < 0 || augment(row_of[column])) {
        row_of[column] = row;
        column_of[row] = column;
        return true;
      }
    }
    return false;
  };
  for (int row = 0; row < size; ++row) {
    seen.assign(size, 0);
    if (!augment(row)) return {};
  }
  return column_of;
}

struct Hop {
  double seconds = 0;
  std::vector<int> partner;  ///< index in the second group for each index of the first
};

Hop BottleneckMatching(const ReplicaProblem& problem, const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<std::vector<double>> seconds(a.size(), std::vector<double>(b.size()));
  std::vector<double> limits;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      seconds[i][j] = LinkSeconds(problem, a[i], b[j], problem.activation_bytes);
      limits.push_back(seconds[i][j]);
    }
  }
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  const auto least = std::partition_point(
      limits.begin(), limits.end(), [&seconds](double limit) { return MatchWithin(seconds, limit).empty(); });
  return {*least, MatchWithin(seconds, *least)};
}

// Held and Karp's dynamic programming: cheapest open path through all nodes.
std::vector<int> ExactPath(const std::vector<std::vector<double>>& seconds) {
  const int size = static_cast<int>(seconds.size());
  const uint32_t all = (1U << size) - 1;
  std::vector<std::vector<double>> best(all + 1, std::vector<double>(size, kInfinity));
  std::vector<std::vector<int>> previous(all + 1, std::vector<int>(size, -1));
  for (int node = 0; node < size; ++node) best[1U << node][node] = 0;
  for (uint32_t set = 1; set <= all; ++set) {
    for (int last = 0; last < size; ++last) {
      if (best[set][last] == kInfinity) continue;
      for (int next = 0; next < size; ++next) {
        if (set & (1U << next)) continue;
        const uint32_t grown = set | (1U << next);
        const double cost = best[set][last] + seconds[last][next];
        if (cost < best[grown][next]) {
          best[grown][next] = cost;
          previous[grown][next] = last;
        }
      }
    }
  }
  int last = static_cast<int>(std::min_element(best[all].begin(), best[all].end()) - best[all].begin());
  std::vector<int> path;
  for (uint32_t set = all; last >= 0;) {
    path.push_back(last);
    const int before = previous[set][last];
    set &= ~(1U << last);
    last = before;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

double PathSeconds(const std::vector<std::vector<double>>& seconds, const std::vector<int>& path) {
  double result = 0;
  for (size_t i = 1; i < path.size(); ++i) result += seconds[path[i - 1]][path[i]];
  return result;
}

// Nearest neighbour from every start, then reversals of pieces (2-opt) while one shortens the path.
std::vector<int> HeuristicPath(const std::vector<std::vector<double>>& seconds) {
  const int size = static_cast<int>(seconds.size());
  std::vector<int> best;
  for (int start = 0; start < size; ++start) {
    std::vector<int> path = {start};
    std::vector<char> used(size, 0);
    used[start] = 1;
    while (static_cast<int>(path.size()) < size) {
      int nearest = -1;
      for (int next = 0; next < size; ++next) {
        if (!used[next] && (nearest < 0 || seconds[path.back()][next] < seconds[path.back()][nearest]))
          nearest = next;
      }
      used[nearest] = 1;
      path.push_back(nearest);
    }
    if (best.empty() || PathSeconds(seconds, path) < PathSeconds(seconds, best)) best = path;
  }
  auto at = [&](int i, int j) { return i < 0 || j >= size ? 0 : seconds[best[i]][best[j]]; };
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (int i = 0; i < size; ++i) {
      for (int j = i + 1; j < size; ++j) {
        const double now = at(i - 1, i) + at(j, j + 1);
        const double reversed = at(i - 1, j) + (j + 1 < size ? seconds[best[i]][best[j + 1]] : 0);
        if (reversed < now * (1 - 1e-12)) {
          std::reverse(best.begin() + i, best.begin() + j + 1);
          shorter = true;
        }
      }
    }
  }
  return best;
}

// Lays islands on a grid as runs inside rows. Columns are filled shelf by shelf, as wide as the largest
// island that is left, so that runs of one length stand under each other and every row of a shelf has links
// of the same kind.
Grid LayRuns(std::vector<std::vector<int>> islands, int rows, int columns) {
  Grid grid(rows);
  auto largest = [&islands] {
    return std::max_element(islands.begin(), islands.end(),
                            [](const auto& a, const auto& b) { return a.size() < b.size(); });
  };
  for (int column = 0; column < columns;) {
    const int width = std::min<int>(columns - column, static_cast<int>(largest()->size()));
    for (std::vector<int>& row : grid) {
      for (int missing = width; missing > 0;) {
        std::vector<int>& island = *largest();
        const int taken = std::min<int>(missing, static_cast<int>(island.size()));
        row.insert(row.end(), island.begin(), island.begin() + taken);
        island.erase(island.begin(), island.begin() + taken);
        missing -= taken;
      }
    }
    column += width;
  }
  return grid;
}

Grid Transposed(const Grid& grid) {
  Grid result(grid[0].size(), std::vector<int>(grid.size()));
  for (size_t i = 0; i < grid.size(); ++i) {
    for (size_t j = 0; j < grid[i].size(); ++j) result[j][i] = grid[i][j];
  }
  return result;
}

absl::Status CheckProblem(const ReplicaProblem& problem) {
  if (problem.stages < 1 || problem.replicas < 1) {
    return absl::InvalidArgumentError(absl::StrCat("stages (", problem.stages, ") and replicas (",
                                                   problem.replicas, ") must be at least 1"));
  }
  const int devices = problem.devices();
  const size_t links = static_cast<size_t>(devices) * devices;
  if (problem.latency_seconds.size() != links || problem.bytes_per_second.size() != links) {
    return absl::InvalidArgumentError(absl::StrCat("latency has ", problem.latency_seconds.size(),
                                                   " entries and bandwidth ", problem.bytes_per_second.size(),
                                                   "; ", problem.stages, " stages x ", problem.replicas,
                                                   " replicas need ", devices, " x ", devices));
  }
  for (int a = 0; a < devices; ++a) {
    for (int b = 0; b < devices; ++b) {
      if (a != b && !(LinkSeconds(problem, a, b, 1) >= 0 && std::isfinite(LinkSeconds(problem, a, b, 1)))) {
        return absl::InvalidArgumentError(absl::StrCat("no usable link from device ", a, " to device ", b));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

ReplicaPlacement OrderStages(const ReplicaProblem& problem, const std::vector<std::vector<int>>& groups) {
  const size_t size = groups.size();
  std::vector<std::vector<double>> seconds(size, std::vector<double>(size, 0));
  for (size_t a = 0; a < size; ++a) {
    for (size_t b = a + 1; b < size; ++b) {
      seconds[a][b] = seconds[b][a] = BottleneckMatching(problem, groups[a], groups[b]).seconds;
    }
  }
  const std::vector<int> path =
      problem.stages <= kExactPathStages ? ExactPath(seconds) : HeuristicPath(seconds);
  ReplicaPlacement result;
  result.gradient_seconds = GradientSeconds(problem, groups);
  result.pipeline_seconds = PathSeconds(seconds, path);
  result.stages.push_back(groups[path[0]]);
  for (size_t i = 1; i < path.size(); ++i) {
    const std::vector<int>& group = groups[path[i]];
    std::vector<int> matched;
    for (int partner : BottleneckMatching(problem, result.stages.back(), group).partner) {
      matched.push_back(group[partner]);
    }
    result.stages.push_back(std::move(matched));
  }
  return result;
}

absl::StatusOr<ReplicaPlacement> PlaceReplicas(const ReplicaProblem& problem) {
  if (absl::Status status = CheckProblem(problem); !status.ok()) return status;
  WeightedGraph links(problem.devices());
  for (int a = 0; a < problem.devices(); ++a) {
    for (int b = a + 1; b < problem.devices(); ++b) {
      links.AddEdge(a, b, 1 / LinkSeconds(problem, a, b, std::max(problem.activation_bytes, 1.0)));
    }
  }
  ReplicaPlacement best;
  auto consider = [&](const Grid& groups) {
    ReplicaPlacement placement = OrderStages(problem, groups);
    if (best.stages.empty() || placement.seconds() < best.seconds()) best = std::move(placement);
  };
  for (const Communities& communities : CandidateClusterings(links)) {
    const std::vector<std::vector<int>> islands = MembersOf(communities);
    consider(LayRuns(islands, problem.stages, problem.replicas));
    consider(Transposed(LayRuns(islands, problem.replicas, problem.stages)));
  }
  return best;
}

}  // namespace fusion::scheduler
