// Any bytes: decoding and validation must answer, and whatever they accept must be costed and sliced.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "fusion/graph/v1/graph.pb.h"
#include "graph/registry.h"
#include "graph/slicing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fusion::graph::v1::Graph graph;
  if (!graph.ParseFromArray(data, static_cast<int>(size)) || !fusion::graph::ValidateGraph(graph).ok())
    return 0;
  fusion::graph::Placement placement(1);
  placement[0].sub_dags.resize(1);
  for (int i = 0; i < graph.operators_size(); ++i) {
    if (!fusion::graph::CostOf(graph, i, 3).ok()) std::abort();
    if (fusion::graph::OperatorSignature(graph, i, 3).empty() && !graph.operators(i).type().empty())
      std::abort();
    if (graph.operators(i).kind() != fusion::graph::v1::Operator::VARIABLE) {
      placement[0].sub_dags[0].operators.push_back(graph.operators(i).name());
    }
  }
  if (!fusion::graph::Slice(graph, placement).ok()) std::abort();
  return 0;
}
