// A job like the demo, for tests: GPT-2 over six unequal compnodes in two sites.
#pragma once

#include <google/protobuf/text_format.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "graph/families.h"
#include "scheduler/planner.h"

namespace fusion::scheduler {

struct TestJob {
  v1alpha1::FusionJobSpec spec;
  graph::v1::Graph graph;
  std::vector<v1alpha1::Compnode> compnodes;
  MachineProfile machine;

  PlanRequest request() const { return {"gpt2", spec, graph, compnodes, machine}; }
};

template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  if (!google::protobuf::TextFormat::ParseFromString(text, &message)) std::abort();
  return message;
}

/// 1 Gbps and 1 ms inside the site, 8 Mbps and 40 ms to the other one.
inline v1alpha1::Compnode SiteNode(const std::string& name, const std::string& site, const std::string& other,
                                   double flops) {
  return FromText<v1alpha1::Compnode>(absl::Substitute(
      R"(metadata { name: "$0" }
         spec {
           cluster: "$1"
           devices { name: "cpu" memory: "2Gi" }
           emulation { flops: $3 links: true }
           links { peer: "$1" bandwidth: "1Gbps" latency: "1ms" }
           links { peer: "$2" bandwidth: "8Mbps" latency: "40ms" }
         })",
      name, site, other, flops));
}

inline TestJob TwoSites();

/// ResNet-18 on small images, over the same compnodes.
inline TestJob TwoSitesResnet() {
  TestJob job = TwoSites();
  job.spec = FromText<v1alpha1::FusionJobSpec>(
      R"(model { family: resnet config { depth: 18 width: 16 classes: 10 image_size: 32 stem: small } }
         data { kind: images uri: "images" }
         training { steps: 200 batch { global: 32 micro: 4 } seed: 1 optimizer { type: SGD momentum: 0.9 } })");
  job.graph = *graph::BuildModel(job.spec.model());
  return job;
}

/// Compnodes in file order a1 b1 a2 b2 a3 b3, so that a chain in file order crosses between the sites five
/// times.
inline TestJob TwoSites() {
  TestJob job;
  job.spec = FromText<v1alpha1::FusionJobSpec>(
      R"(model { family: gpt2 config { layers: 4 heads: 4 width: 128 context: 64 vocabulary: 256 } }
         data { kind: text uri: "text" }
         training { steps: 200 batch { global: 64 micro: 4 } seed: 1 optimizer { type: AdamW } })");
  job.graph = *graph::BuildModel(job.spec.model());
  const std::string a = "site-a";
  const std::string b = "site-b";
  job.compnodes = {SiteNode("a1", a, b, 16e9), SiteNode("b1", b, a, 12e9), SiteNode("a2", a, b, 8e9),
                   SiteNode("b2", b, a, 6e9),  SiteNode("a3", a, b, 4e9),  SiteNode("b3", b, a, 4e9)};
  job.machine = UnmeasuredProfile(50e9);
  job.machine.lambda = {0.9, 0.5, 0.1, 0.1, 0.1};
  job.machine.memory_bytes_per_second = 10e9;
  job.machine.operator_seconds = 10e-6;
  job.machine.update_seconds_per_parameter = 2e-9;
  return job;
}

}  // namespace fusion::scheduler
