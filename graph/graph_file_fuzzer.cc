// Any bytes as a graph's file: what is accepted must be costed, written and read again as the same graph.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "fusion/graph/v1/graph.pb.h"
#include "graph/graph_file.h"
#include "graph/job_data.h"
#include "graph/registry.h"
#include "nlohmann/json.hpp"
#include "proto/json_mapper.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto graph = fusion::graph::ParseGraph({reinterpret_cast<const char*>(data), size});
  if (!graph.ok()) return 0;
  for (int i = 0; i < graph->operators_size(); ++i) {
    if (!fusion::graph::CostOf(*graph, i, 3).ok()) std::abort();
  }
  fusion::v1alpha1::FusionJobSpec spec;
  spec.mutable_model()->mutable_graph()->set_uri("model.json");
  spec.mutable_data()->set_kind(fusion::v1alpha1::Data::table);
  fusion::graph::CompleteSpec(*graph, &spec).IgnoreError();
  const std::string text =
      fusion::api::ToJson(*graph).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto again = fusion::graph::ParseGraph(text);
  if (!again.ok() || fusion::api::ToJson(*again) != fusion::api::ToJson(*graph)) std::abort();
  return 0;
}
