#include "scheduler/partition/chain_partition.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fusion::scheduler {
namespace {

constexpr int kMostCuts = 192;
constexpr size_t kMostPlaces = 64;
constexpr int kMostLevels = 64;

// Bisection for the least bound: rounds, and the precision at which it ends.
constexpr int kBisections = 12;
constexpr double kPrecision = 1.01;

// From the least bound upwards: so many close bounds, then wider steps.
constexpr int kCloseBounds = 12;
constexpr double kCloseStep = 1.03;
constexpr double kWideStep = 1.1;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

// best: seconds of one micro-batch from a cut to the end with the next segment on a place; onward: the same
// with the link to the best next place before it.
struct ChainPartitioner::Table {
  Table(int levels, int places, int cuts)
      : places(places),
        cuts(cuts),
        best(static_cast<size_t>(levels + 1) * places * cuts, kInfinity),
        onward(best),
        end(best.size(), -1),
        end_level(best.size(), 0),
        next(best.size(), -1) {}

  size_t At(int level, int place, int cut) const {
    return (static_cast<size_t>(level) * places + place) * cuts + cut;
  }

  int places;
  int cuts;
  std::vector<double> best;
  std::vector<double> onward;
  std::vector<int> end;        ///< cut where the segment of `best` ends
  std::vector<int> end_level;  ///< level of what follows it
  std::vector<int> next;       ///< place of `onward`, as index in the order
};

ChainPartitioner::ChainPartitioner(const StepCost& cost) : cost_(cost) {
  ChooseCuts();
  SumOperators();
  ChooseLevels();
}

void ChainPartitioner::ChooseCuts() {
  const Problem& problem = cost_.problem();
  const int operators = static_cast<int>(problem.operators.size());
  // By position: bytes of the values produced before it and read after it.
  std::vector<double> forward(operators + 1, 0);
  std::vector<double> backward(operators + 1, 0);
  std::vector<double> alive(operators + 1, 0);
  for (const Value& value : problem.values) {
    if (value.consumers.empty()) continue;
    const int last = *std::max_element(value.consumers.begin(), value.consumers.end());
    for (int position = value.producer + 1; position <= last; ++position) {
      forward[position] += cost_.ForwardBytes(value);
      backward[position] += cost_.BackwardBytes(value);
      alive[position] += static_cast<double>(value.bytes);
    }
  }
  std::vector<double> work = {0};
  for (const OperatorWork& op : problem.operators) work.push_back(work.back() + op.flops + 1);
  const int buckets = std::min(operators, kMostCuts);
  cuts_ = {0};
  for (int position = 1; position < operators; ++position) {
    const auto bucket = static_cast<int>(work[position] / work.back() * buckets);
    const bool same_bucket =
        cuts_.back() > 0 && static_cast<int>(work[cuts_.back()] / work.back() * buckets) == bucket;
    if (operators <= kMostCuts || !same_bucket) {
      cuts_.push_back(position);
    } else if (forward[position] < forward[cuts_.back()]) {
      cuts_.back() = position;
    }
  }
  if (operators > 0) cuts_.push_back(operators);
  for (int cut : cuts_) {
    forward_bytes_.push_back(forward[cut]);
    backward_bytes_.push_back(backward[cut]);
    alive_bytes_.push_back(alive[cut]);
  }
}

void ChainPartitioner::SumOperators() {
  const Problem& problem = cost_.problem();
  const size_t nodes = problem.nodes.size();
  const size_t cuts = cuts_.size();
  seconds_.assign(nodes * cuts, 0);
  fixed_bytes_.assign(cuts, 0);
  saved_bytes_.assign(cuts, 0);
  pinned_seconds_.assign(nodes, 0);
  pinned_fixed_bytes_.assign(nodes, 0);
  pinned_saved_bytes_.assign(nodes, 0);
  for (size_t cut = 1; cut < cuts; ++cut) {
    for (size_t node = 0; node < nodes; ++node) seconds_[node * cuts + cut] = seconds_[node * cuts + cut - 1];
    fixed_bytes_[cut] = fixed_bytes_[cut - 1];
    saved_bytes_[cut] = saved_bytes_[cut - 1];
    for (int op = cuts_[cut - 1]; op < cuts_[cut]; ++op) {
      const OperatorWork& work = problem.operators[op];
      const auto fixed = static_cast<double>(cost_.FixedBytes(op));
      const double saved = problem.training ? static_cast<double>(work.saved_bytes) : 0;
      if (work.pinned_node >= 0) {
        pinned_seconds_[work.pinned_node] += cost_.ComputeSeconds(op, work.pinned_node);
        pinned_fixed_bytes_[work.pinned_node] += fixed;
        pinned_saved_bytes_[work.pinned_node] += saved;
        continue;
      }
      for (size_t node = 0; node < nodes; ++node) {
        seconds_[node * cuts + cut] += cost_.ComputeSeconds(op, static_cast<int>(node));
      }
      fixed_bytes_[cut] += fixed;
      saved_bytes_[cut] += saved;
    }
  }
}

// Segments need not be counted where every node holds all operators at any depth and every place may be a
// stage.
void ChainPartitioner::ChooseLevels() {
  const Problem& problem = cost_.problem();
  const int places = std::min(cost_.places().size(), static_cast<int>(kMostPlaces));
  const int stages = std::min({places, problem.max_stages, static_cast<int>(cuts_.size()) - 1, kMostLevels});
  const bool few_stages = problem.max_stages < places;
  bool tight = false;
  for (int place = 0; place < cost_.places().size(); ++place) {
    tight = tight || !SegmentFits(place, 0, static_cast<int>(cuts_.size()) - 1, stages);
  }
  levels_ = few_stages || tight ? std::max(stages, 1) : 1;
  open_top_ = !few_stages;
}

double ChainPartitioner::SegmentSeconds(int place, int from, int to) const {
  const int node = cost_.places().node[place];
  const size_t row = node * cuts_.size();
  return seconds_[row + to] - seconds_[row + from] + pinned_seconds_[node];
}

// `level` segments from this one to the end: its depth under 1F1B.
bool ChainPartitioner::SegmentFits(int place, int from, int to, int level) const {
  const Problem& problem = cost_.problem();
  const int node = cost_.places().node[place];
  if (problem.nodes[node].memory_bytes == std::numeric_limits<int64_t>::max()) return true;
  const int depth = problem.gpipe ? problem.micro_batches : std::min(level, problem.micro_batches);
  const int depth_before = std::min(depth + 1, problem.micro_batches);
  const double fixed = fixed_bytes_[to] - fixed_bytes_[from] + pinned_fixed_bytes_[node];
  const double saved = saved_bytes_[to] - saved_bytes_[from] + pinned_saved_bytes_[node];
  const double links = alive_bytes_[from] * depth_before + alive_bytes_[to] * std::min(2, depth);
  return fixed + saved * (problem.recompute ? 1 : depth) + links <=
         static_cast<double>(problem.nodes[node].memory_bytes);
}

std::vector<ChainPartitioner::Link> ChainPartitioner::LinksOf(const std::vector<int>& order) const {
  std::vector<Link> links;
  for (int from : order) {
    for (int to : order) {
      const Way out = cost_.WayBetween(cost_.places().node[from], cost_.places().node[to]);
      const Way back = cost_.WayBetween(cost_.places().node[to], cost_.places().node[from]);
      links.push_back(
          {out.latency_seconds + back.latency_seconds, out.bytes_per_second, back.bytes_per_second});
    }
  }
  return links;
}

// Of the values at a cut forward and of their gradients back; infinite where either way is busy for longer
// than the bound.
double ChainPartitioner::LinkSeconds(const Link& link, int cut, double bound) const {
  const double forward = forward_bytes_[cut] / link.bytes_per_second;
  const double backward = backward_bytes_[cut] / link.back_bytes_per_second;
  if (std::max(forward, backward) > bound) return kInfinity;
  return forward + backward + link.latency_seconds;
}

std::vector<ChainPartitioner::Segment> ChainPartitioner::Solve(const std::vector<int>& order,
                                                               const std::vector<Link>& links,
                                                               double bound) const {
  const int places = static_cast<int>(order.size());
  const int last = static_cast<int>(cuts_.size()) - 1;
  Table table(levels_, places, last + 1);
  for (int from = last - 1; from >= 0; --from) {
    for (int level = 1; level <= levels_; ++level) {
      const bool repeats = level == levels_ && open_top_;
      for (int p = 0; p < places; ++p) {
        const size_t at = table.At(level, p, from);
        for (int to = from + 1; to <= last; ++to) {
          const double seconds = SegmentSeconds(order[p], from, to);
          if (seconds > bound) break;
          if (levels_ > 1 && !SegmentFits(order[p], from, to, level)) continue;
          auto consider = [&](double rest, int rest_level) {
            if (seconds + rest >= table.best[at]) return;
            table.best[at] = seconds + rest;
            table.end[at] = to;
            table.end_level[at] = rest_level;
          };
          if (to == last) {
            if (level == 1 || repeats) consider(0, 0);
            continue;
          }
          if (level > 1) consider(table.onward[table.At(level - 1, p, to)], level - 1);
          if (repeats) consider(table.onward[table.At(level, p, to)], level);
        }
      }
      for (int p = 0; p + 1 < places; ++p) {
        const size_t at = table.At(level, p, from);
        for (int q = p + 1; q < places; ++q) {
          const double rest = table.best[table.At(level, q, from)];
          if (rest >= table.onward[at]) continue;
          const double seconds = rest + LinkSeconds(links[p * places + q], from, bound);
          if (seconds >= table.onward[at]) continue;
          table.onward[at] = seconds;
          table.next[at] = q;
        }
      }
    }
  }

  int level = 0;
  int p = 0;
  double least = kInfinity;
  for (int l = 1; l <= levels_; ++l) {
    for (int q = 0; q < places; ++q) {
      if (table.best[table.At(l, q, 0)] < least) {
        least = table.best[table.At(l, q, 0)];
        level = l;
        p = q;
      }
    }
  }
  std::vector<Segment> segments;
  for (int cut = 0; level > 0;) {
    const size_t at = table.At(level, p, cut);
    segments.push_back({order[p], cut, table.end[at]});
    cut = table.end[at];
    level = table.end_level[at];
    if (level > 0) p = table.next[table.At(level, p, cut)];
  }
  return segments;
}

double ChainPartitioner::Bottleneck(const std::vector<Segment>& segments) const {
  double busiest = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    busiest = std::max(busiest, SegmentSeconds(segments[i].place, segments[i].from, segments[i].to));
    if (i == 0) continue;
    const int from = cost_.places().node[segments[i - 1].place];
    const int to = cost_.places().node[segments[i].place];
    const int cut = segments[i].from;
    busiest = std::max({busiest, forward_bytes_[cut] / cost_.WayBetween(from, to).bytes_per_second,
                        backward_bytes_[cut] / cost_.WayBetween(to, from).bytes_per_second});
  }
  return busiest;
}

Assignment ChainPartitioner::Assign(const std::vector<Segment>& segments) const {
  const Problem& problem = cost_.problem();
  Assignment assignment(problem.operators.size());
  for (const Segment& segment : segments) {
    for (int op = cuts_[segment.from]; op < cuts_[segment.to]; ++op) {
      const int pinned = problem.operators[op].pinned_node;
      assignment[op] = pinned < 0 ? segment.place : cost_.places().first[pinned];
    }
  }
  return assignment;
}

double ChainPartitioner::StepsOfABound() const {
  const auto places = static_cast<double>(std::min<size_t>(cost_.places().size(), kMostPlaces));
  const auto cuts = static_cast<double>(cuts_.size());
  return levels_ * places * cuts * (cuts + places) / 2;
}

std::vector<Assignment> ChainPartitioner::Partition(const std::vector<int>& order) const {
  const std::vector<int> used(order.begin(),
                              order.begin() + static_cast<int>(std::min(order.size(), kMostPlaces)));
  const std::vector<Link> links = LinksOf(used);
  const std::vector<Segment> fewest = Solve(used, links, kInfinity);
  if (fewest.empty()) return {};
  const double loosest = Bottleneck(fewest);

  // Nothing is faster than all places together without links.
  double speed = 0;
  for (int place : used)
    speed += 1 / std::max(SegmentSeconds(place, 0, static_cast<int>(cuts_.size()) - 1), 1e-12);
  double impossible = std::min(1 / speed, loosest);
  double least = loosest;
  for (int i = 0; i < kBisections && least > impossible * kPrecision; ++i) {
    const double middle = std::sqrt(least * impossible);
    const std::vector<Segment> segments = Solve(used, links, middle);
    if (segments.empty()) {
      impossible = middle;
    } else {
      least = std::min(middle, Bottleneck(segments));
    }
  }

  std::vector<Assignment> result;
  double bound = least * (1 + 1e-9);
  for (int i = 0; bound < loosest; ++i) {
    Assignment assignment = Assign(Solve(used, links, bound));
    if (result.empty() || assignment != result.back()) result.push_back(std::move(assignment));
    bound *= i < kCloseBounds ? kCloseStep : kWideStep;
  }
  result.push_back(Assign(fewest));
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace fusion::scheduler
