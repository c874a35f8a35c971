#include "bench/convergence/variant.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "codec/codec.h"
#include "graph/slicing.h"
#include "worker/pipeline/edge_codec.h"
#include "worker/pipeline/message_table.h"

namespace fusion::bench {
namespace {

using graph::v1::Operator;
using graph::v1::PlannedLink;

/// One past the last operator that is `cut` or lies in the module `cut`; 0 where there is none.
int EndOf(const graph::v1::Graph& graph, const std::string& cut) {
  int end = 0;
  for (int i = 0; i < graph.operators_size(); ++i) {
    const std::string& name = graph.operators(i).name();
    if (name == cut || absl::StartsWith(name, absl::StrCat(cut, "."))) {
      end = i + 1;
    }
  }
  return end;
}

absl::StatusOr<graph::Placement> PlacementAfter(const graph::v1::Graph& graph,
                                                const std::vector<std::string>& cuts) {
  std::set<int> ends;
  for (const std::string& cut : cuts) {
    const int end = EndOf(graph, cut);
    if (end == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cut '", cut, "': the model has no such operator or module"));
    }
    if (end == graph.operators_size() || !ends.insert(end).second) {
      return absl::InvalidArgumentError(absl::StrCat("cut '", cut, "' leaves a stage without operators"));
    }
  }
  graph::Placement placement(1, graph::StagePlacement{{{.operators = {}, .depth = 1}}});
  for (int i = 0; i < graph.operators_size(); ++i) {
    if (ends.contains(i)) {
      placement.push_back({{{.operators = {}, .depth = 1}}});
    }
    if (graph.operators(i).kind() != Operator::VARIABLE) {
      placement.back().sub_dags[0].operators.push_back(graph.operators(i).name());
    }
  }
  // A stage may run ahead by as many micro-batches as there are stages after it.
  for (size_t stage = 0; stage < placement.size(); ++stage) {
    placement[stage].sub_dags[0].depth = static_cast<int32_t>(placement.size() - stage);
  }
  return placement;
}

template <typename Function>
void ForEachEdge(const Variant& variant, Function function) {
  for (const graph::v1::StageProgram& program : variant.programs) {
    for (const graph::v1::Edge& edge : program.incoming()) {
      if (edge.differentiable()) {
        function(edge);
      }
    }
  }
}

}  // namespace

absl::StatusOr<Variant> CutVariant(const graph::v1::Graph& graph, const std::vector<std::string>& cuts,
                                   const std::string& codec) {
  std::string name = graph::kDenseCodec;
  if (codec != kDense) {
    const auto parsed = codec::ParseCodec(codec);
    if (!parsed.ok()) {
      return parsed.status();
    }
    name = codec::CodecName(*parsed);
  }
  const auto placement = PlacementAfter(graph, cuts);
  if (!placement.ok()) {
    return placement.status();
  }
  graph::v1::Plan links;
  for (int from = 0; from < static_cast<int>(placement->size()); ++from) {
    for (int to = 0; to < static_cast<int>(placement->size()); ++to) {
      if (from != to) {
        PlannedLink* link = links.add_links();
        link->set_from(from);
        link->set_to(to);
        link->set_direction(from < to ? PlannedLink::Forward : PlannedLink::Backward);
        link->set_codec(name);
      }
    }
  }
  Variant variant{.name = codec, .programs = {}};
  auto programs = graph::Slice(graph, *placement);
  if (!programs.ok()) {
    return programs.status();
  }
  variant.programs = *std::move(programs);
  if (const absl::Status status = graph::SetCodecs(links, variant.programs); !status.ok()) {
    return status;
  }
  return variant;
}

absl::StatusOr<Variant> PlanVariant(const graph::v1::Graph& graph, const std::string& name,
                                    const graph::v1::Plan& plan) {
  auto programs = graph::Slice(graph, graph::PlacementOf(plan));
  if (!programs.ok()) {
    return programs.status();
  }
  Variant variant{.name = name, .programs = *std::move(programs)};
  if (const absl::Status status = graph::SetCodecs(plan, variant.programs); !status.ok()) {
    return status;
  }
  return variant;
}

absl::StatusOr<MessageSizes> SizesOf(const Variant& variant, int64_t samples) {
  MessageSizes sizes;
  absl::Status status;
  ForEachEdge(variant, [&](const graph::v1::Edge& edge) {
    const auto codecs = worker::ParseEdgeCodecs(edge);
    if (!codecs.ok()) {
      status.Update(codecs.status());
      return;
    }
    const std::vector<int64_t> shape = worker::ShapeFor(edge.spec(), samples);
    const auto bytes = [&](const worker::EdgeCodecs& of, wire::v1::Direction direction) {
      return worker::MessageBytes(of, direction, edge.spec().dtype(), shape);
    };
    sizes.forward += bytes(*codecs, wire::v1::FORWARD);
    sizes.backward += bytes(*codecs, wire::v1::BACKWARD) * codecs->gradients;
    sizes.dense += bytes({}, wire::v1::FORWARD);
  });
  if (!status.ok()) {
    return status;
  }
  return sizes;
}

std::vector<std::string> EdgesOf(const Variant& variant) {
  std::vector<std::string> edges;
  ForEachEdge(variant, [&](const graph::v1::Edge& edge) {
    edges.push_back(absl::StrCat(edge.value().operator_(), " ", edge.forward_codec()));
    if (edge.backward_codec() != edge.forward_codec()) {
      absl::StrAppend(&edges.back(), " ", edge.backward_codec());
    }
  });
  return edges;
}

bool HasErrorFeedback(const Variant& variant) {
  bool found = false;
  ForEachEdge(variant, [&](const graph::v1::Edge& edge) {
    for (const std::string& name : {edge.forward_codec(), edge.backward_codec()}) {
      const auto codec = codec::ParseCodec(name);
      found = found || (codec.ok() && codec->error_feedback);
    }
  });
  return found;
}

absl::StatusOr<graph::v1::StageProgram> WholeProgram(const graph::v1::Graph& graph) {
  const auto placement = PlacementAfter(graph, {});
  if (!placement.ok()) {
    return placement.status();
  }
  auto programs = graph::Slice(graph, *placement);
  if (!programs.ok()) {
    return programs.status();
  }
  return std::move(programs->front());
}

}  // namespace fusion::bench
