// Compression policies. Links inside one node carry no codec; on the others codecs touch differentiable
// floating values and their gradients only.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/link_load.h"
#include "scheduler/planner.h"
#include "scheduler/quotient.h"
#include "scheduler/simulator.h"

namespace fusion::scheduler {
namespace {

using codec::Codec;
using codec::Values;
using v1alpha1::Compression;

/// `Need` compresses until the step is within 10 % of the same plan over free links.
constexpr double kNearFreeLinks = 1.10;

constexpr double kWorthCompressing = 1.01;

/// Of so many links, the heaviest, `Need` tries each before it compresses one.
constexpr size_t kTriedLinks = 4;

/// A direction of values between two stages on different nodes, with the gradients that return.
struct Link {
  int from_stage = 0;
  int to_stage = 0;
  std::vector<codec::Layout> layouts;  ///< of the values that a codec touches
  int64_t dense_bytes = 0;             ///< of them, as they are
  Way way;
  Way back;

  double DenseSeconds() const { return static_cast<double>(Bytes(Codec())) / way.bytes_per_second; }
  int64_t Bytes(const Codec& codec) const {
    if (codec == Codec()) return dense_bytes;
    int64_t bytes = 0;
    for (const codec::Layout& layout : layouts) bytes += codec::ValueBytes(codec, layout);
    return bytes;
  }
};

std::vector<Link> CompressibleLinks(const Problem& problem, const Partition& partition) {
  std::vector<Link> links;
  for (const QuotientEdge& edge : MakeQuotient(problem, partition).edges) {
    const int from = partition.stages[edge.from_stage].node;
    const int to = partition.stages[edge.to_stage].node;
    if (!edge.differentiable || from == to) continue;
    auto link = std::find_if(links.begin(), links.end(), [&](const Link& l) {
      return l.from_stage == edge.from_stage && l.to_stage == edge.to_stage;
    });
    if (link == links.end()) {
      link = links.insert(link, Link{edge.from_stage,
                                     edge.to_stage,
                                     {},
                                     0,
                                     problem.network.Between(from, to),
                                     problem.network.Between(to, from)});
    }
    link->layouts.push_back(problem.values[edge.value].layout);
    link->dense_bytes += problem.values[edge.value].bytes;
  }
  std::sort(links.begin(), links.end(), [](const Link& a, const Link& b) {
    return std::pair(a.from_stage, a.to_stage) < std::pair(b.from_stage, b.to_stage);
  });
  return links;
}

Values ValuesOf(const Compression& compression) {
  switch (compression.values()) {
    case Compression::fp32:
      return Values::kFloat32;
    case Compression::fp16:
      return Values::kFloat16;
    case Compression::int8:
      return Values::kInt8;
    default:
      return Values::kInt4;
  }
}

/// `kept` of `columns` as a density of few digits that keeps exactly so many.
double Density(int64_t kept, int64_t columns) {
  const double exact = static_cast<double>(kept) / static_cast<double>(columns);
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.4g", exact);
  const double shorter = std::strtod(text.data(), nullptr);
  Codec codec;
  codec.sparse = true;
  codec.density = shorter;
  return codec::KeptPerRow(codec, columns) == kept ? shorter : exact;
}

/// The codec that keeps the most and sends `ratio` times fewer bytes than dense; the sparsest one where none
/// does.
Codec SparseCodec(const Link& link, double ratio, const Compression& compression) {
  int64_t columns = 1;
  for (const codec::Layout& layout : link.layouts) columns = std::max(columns, layout.columns);
  Codec codec;
  codec.sparse = true;
  codec.values = ValuesOf(compression);
  codec.independent_mask = compression.mask() == Compression::Independent;
  codec.error_feedback = compression.error_feedback();
  double fp32_bytes = 0;
  for (const codec::Layout& layout : link.layouts) {
    fp32_bytes += static_cast<double>(layout.elements()) * sizeof(float);
  }
  const double budget = fp32_bytes / ratio;
  int64_t least = 1;
  int64_t most = columns;
  while (least < most) {
    const int64_t kept = least + (most - least + 1) / 2;
    codec.density = Density(kept, columns);
    if (static_cast<double>(link.Bytes(codec)) <= budget) {
      least = kept;
    } else {
      most = kept - 1;
    }
  }
  codec.density = Density(least, columns);
  if (least == columns) {  // keeping all needs no indexes
    codec.sparse = codec.independent_mask = false;
    codec.density = 1;
  }
  return link.Bytes(codec) < link.Bytes(Codec()) ? codec : Codec();
}

void SetCodec(const Link& link, const Codec& codec, Partition& partition) {
  std::erase_if(partition.codecs, [&](const LinkCodec& other) {
    return other.from_stage == link.from_stage && other.to_stage == link.to_stage;
  });
  if (codec != Codec()) partition.codecs.push_back({link.from_stage, link.to_stage, codec});
}

/// The paper's rule: r_e = max(1, r T_e / max T). Every link with r_e > 1 so ends at the same time, max T /
/// r, and the fast ones keep more. T_e is the dense transfer without latency, which no codec shortens. The
/// messages' real bytes count, so that the paper's factor for (value, index) pairs is not needed.
void AdaTopK(const std::vector<Link>& links, const Compression& compression, Partition& partition) {
  double slowest = 0;
  for (const Link& link : links) slowest = std::max(slowest, link.DenseSeconds());
  for (const Link& link : links) {
    const double ratio = std::max(1.0, compression.ratio() * link.DenseSeconds() / slowest);
    SetCodec(link, ratio > 1 ? SparseCodec(link, ratio, compression) : Codec(), partition);
  }
}

/// The density that gives the ratio on the slowest link, on every link.
void TopK(const std::vector<Link>& links, const Compression& compression, Partition& partition) {
  const auto slowest = std::max_element(links.begin(), links.end(), [](const Link& a, const Link& b) {
    return a.DenseSeconds() < b.DenseSeconds();
  });
  const Codec codec =
      compression.ratio() > 1 ? SparseCodec(*slowest, compression.ratio(), compression) : Codec();
  for (const Link& link : links) SetCodec(link, codec, partition);
}

void Quantize(const std::vector<Link>& links, const Compression& compression, Partition& partition) {
  Codec codec;
  codec.values = ValuesOf(compression);
  for (const Link& link : links) SetCodec(link, codec, partition);
}

/// From the mildest to the strongest.
std::vector<Codec> Rungs() {
  std::vector<Codec> rungs(3);
  rungs[1].values = Values::kInt8;
  rungs[2].values = Values::kInt4;
  for (const double density : {0.2, 0.1, 0.03}) {
    Codec& codec = rungs.emplace_back();
    codec.sparse = true;
    codec.density = density;
    codec.values = Values::kInt4;
  }
  return rungs;
}

class Need {
 public:
  Need(const Problem& problem, const std::vector<Link>& links, Partition& partition)
      : problem_(problem), links_(links), partition_(partition), rungs_(Rungs()), rung_of_(links.size(), 0) {}

  void Choose() {
    for (const Link& link : links_) SetCodec(link, Codec(), partition_);
    target_ = kNearFreeLinks * SimulateStepSeconds(problem_, partition_, {.free_links = true});
    LightenOverloadedResources();
    step_ = Step();
    while (step_ > target_ && Compress()) {
    }
    // Where even the strongest codecs miss the target, what they gain beyond a per cent is not worth them.
    target_ = std::max(target_, step_ * kWorthCompressing);
    Relax();
  }

 private:
  double Step() const { return SimulateStepSeconds(problem_, partition_); }

  void Set(int link, int rung) {
    rung_of_[link] = rung;
    SetCodec(links_[link], rungs_[rung], partition_);
  }

  bool Strongest(int link) const { return rung_of_[link] + 1 == static_cast<int>(rungs_.size()); }

  /// Of the busier direction.
  double LinkSeconds(int link) const {
    int64_t value = 0;
    int64_t gradient = 0;
    for (const codec::Layout& layout : links_[link].layouts) {
      value += codec::ValueBytes(rungs_[rung_of_[link]], layout);
      gradient += codec::GradientBytes(rungs_[rung_of_[link]], layout);
    }
    return std::max(static_cast<double>(value) / links_[link].way.bytes_per_second,
                    static_cast<double>(gradient) / links_[link].back.bytes_per_second);
  }

  /// Links that can be compressed more, the heaviest first.
  std::vector<int> Heaviest() const {
    std::vector<int> order;
    for (int link = 0; link < static_cast<int>(links_.size()); ++link) {
      if (!Strongest(link)) order.push_back(link);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return LinkSeconds(a) > LinkSeconds(b); });
    return order;
  }

  /// No schedule hides a resource that is busy for longer than the step may last: needs no simulation.
  void LightenOverloadedResources() {
    while (true) {
      const std::vector<double> seconds =
          ResourceSeconds(problem_, partition_, MakeQuotient(problem_, partition_));
      const auto overloaded = [&](const Way& way) {
        return std::any_of(way.resources.begin(), way.resources.end(),
                           [&](int r) { return seconds[r] > target_; });
      };
      const std::vector<int> order = Heaviest();
      const auto link = std::find_if(order.begin(), order.end(), [&](int l) {
        return overloaded(links_[l].way) || overloaded(links_[l].back);
      });
      if (link == order.end()) return;
      Set(*link, rung_of_[*link] + 1);
    }
  }

  /// Takes the next rung of the link where it shortens the step the most; of the heaviest where none does by
  /// itself. False: no link has one.
  bool Compress() {
    std::vector<int> tried = Heaviest();
    if (tried.empty()) return false;
    if (tried.size() > kTriedLinks) tried.resize(kTriedLinks);
    int best = -1;
    double best_seconds = step_ * (1 - 1e-6);
    for (const int link : tried) {
      Set(link, rung_of_[link] + 1);
      const double seconds = Step();
      Set(link, rung_of_[link] - 1);
      if (seconds < best_seconds) {
        best = link;
        best_seconds = seconds;
      }
    }
    const int chosen = best < 0 ? tried.front() : best;
    Set(chosen, rung_of_[chosen] + 1);
    step_ = best < 0 ? Step() : best_seconds;
    return true;
  }

  /// Takes back what is not needed, the lightest links first.
  void Relax() {
    std::vector<int> order(links_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return links_[a].DenseSeconds() < links_[b].DenseSeconds(); });
    for (const int link : order) {
      while (rung_of_[link] > 0) {
        Set(link, rung_of_[link] - 1);
        if (Step() <= target_) continue;
        Set(link, rung_of_[link] + 1);
        break;
      }
    }
  }

  const Problem& problem_;
  const std::vector<Link>& links_;
  Partition& partition_;
  const std::vector<Codec> rungs_;
  std::vector<int> rung_of_;  ///< by link
  double target_ = 0;
  double step_ = 0;  ///< of partition_
};

}  // namespace

absl::Status ChooseCodecs(const Problem& problem, const Compression& compression, Partition& partition) {
  partition.codecs.clear();
  const std::vector<Link> links = CompressibleLinks(problem, partition);
  if (links.empty()) return absl::OkStatus();
  switch (compression.type()) {
    case Compression::None:
      break;
    case Compression::AdaTopK:
    case Compression::TopK:
      if (!(compression.ratio() >= 1)) {
        return absl::InvalidArgumentError(
            absl::StrCat("spec.communication.compression.ratio: ", compression.ratio(), " is less than 1"));
      }
      compression.type() == Compression::TopK ? TopK(links, compression, partition)
                                              : AdaTopK(links, compression, partition);
      break;
    case Compression::Quantize:
      Quantize(links, compression, partition);
      break;
    default:
      Need(problem, links, partition).Choose();
  }
  std::sort(partition.codecs.begin(), partition.codecs.end(), [](const LinkCodec& a, const LinkCodec& b) {
    return std::pair(a.from_stage, a.to_stage) < std::pair(b.from_stage, b.to_stage);
  });
  return absl::OkStatus();
}

}  // namespace fusion::scheduler
