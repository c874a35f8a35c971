#include "proto/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"

namespace fusion::api {
namespace {

using testing::HasSubstr;

constexpr char kJob[] = R"(apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: job}
spec:
  model:
    family: gpt2
    config: {layers: 2, heads: 2, width: 16, context: 8, vocabulary: 256}
  data: {kind: text, uri: text.txt}
  training:
    steps: 10
    batch: {global: 8, micro: 2}
    optimizer: {type: AdamW, learningRate: 1e-3}
)";

constexpr char kCompnodes[] = R"(apiVersion: fusion.dev/v1alpha1
kind: Compnode
metadata: {name: a1}
spec:
  cluster: site-a
  devices: [{name: cpu, memory: 1Gi}]
  links: [{peer: site-b, bandwidth: 8Mbps, latency: 40ms}]
  emulation: {flops: 1e9, links: true}
---
apiVersion: fusion.dev/v1alpha1
kind: Compnode
metadata: {name: b1}
spec:
  cluster: site-b
  devices: [{name: cpu, memory: 1Gi}]
  emulation: {flops: 2e9, links: true}
)";

std::string Errors(const Manifest& manifest) {
  return absl::StrJoin(manifest.errors, "\n", [](std::string* out, const ManifestError& error) {
    absl::StrAppend(out, error.ToString());
  });
}

TEST(Manifest, ReadsJobsAndCompnodesWithDefaults) {
  const Manifest manifest = ParseManifest({{"job.yaml", kJob}, {"nodes.yaml", kCompnodes}});
  EXPECT_EQ(Errors(manifest), "");
  ASSERT_EQ(manifest.jobs.size(), 1U);
  ASSERT_EQ(manifest.compnodes.size(), 2U);
  EXPECT_EQ(manifest.jobs[0].object.spec().placement().policy(), v1alpha1::Placement::OpFence);
  EXPECT_EQ(manifest.compnodes[1].object.metadata().name(), "b1");
  EXPECT_EQ(manifest.compnodes[1].document.index, 2);
}

/// One change of a sound manifest, and the one field that is then in error.
struct Malformed {
  const char* what;
  const char* from;
  const char* to;
  const char* field;
  const char* message;
};

// Each is a mistake that a user can make; together they are the corpus of design issue "bad input".
TEST(Manifest, EachMistakeIsNamedByItsField) {
  const std::vector<Malformed> cases = {
      {"text for an integer", "steps: 10", "steps: \"10\"", "spec.training.steps", "must be an integer"},
      {"a word for an integer", "steps: 10", "steps: many", "spec.training.steps", "must be an integer"},
      {"negative", "steps: 10", "steps: -1", "spec.training.steps", "is -1; must be at least 1"},
      {"huge", "steps: 10", "steps: 1e30", "spec.training.steps", "is out of range"},
      {"huge but an integer", "steps: 10", "steps: 10000000000", "spec.training.steps", "must be at most"},
      {"NaN", "learningRate: 1e-3", "learningRate: .nan", "spec.training.optimizer.learningRate", "not NaN"},
      {"infinite", "learningRate: 1e-3", "learningRate: .inf", "spec.training.optimizer.learningRate",
       "not infinity"},
      {"unknown family", "family: gpt2", "family: gpt5", "spec.model.family", "must be one of"},
      {"a family that comes later", "{layers: 2, heads: 2, width: 16, context: 8, vocabulary: 256}",
       "{layers: 2, heads: 2, width: 16, context: 8, vocabulary: 256}\n    loss: {type: InfoNCE}",
       "spec.model.loss.type", "not supported yet"},
      {"unknown field", "steps: 10", "steps: 10\n    epochs: 3", "spec.training.epochs", "unknown field"},
      {"misspelt field", "learningRate: 1e-3", "learningrate: 1e-3", "spec.training.optimizer.learningrate",
       "did you mean learningRate?"},
      {"field of another family", "layers: 2", "layers: 2, hidden: [4]", "spec.model.config.hidden",
       "no field of family gpt2"},
      {"a needed field left out", "layers: 2, ", "", "spec.model.config.layers",
       "is required for family gpt2"},
      {"heads do not divide width", "heads: 2", "heads: 3", "spec.model.config.heads",
       "does not divide width 16"},
      {"too few tokens for bytes", "vocabulary: 256", "vocabulary: 100", "spec.model.config.vocabulary",
       "needs 256"},
      {"loss of another family", "  data:", "    loss: {type: MeanSquaredError}\n  data:",
       "spec.model.loss.type", "does not fit family gpt2"},
      {"data of another family", "kind: text", "kind: table", "spec.data.kind",
       "does not fit family gpt2; use text"},
      {"no data", "  data: {kind: text, uri: text.txt}\n", "", "spec.data", "is required"},
      {"no uri", ", uri: text.txt", "", "spec.data.uri", "is required for data of kind text"},
      {"field of other data", "uri: text.txt", "uri: text.txt, target: price", "spec.data.target",
       "is of table data"},
      {"micro does not divide global", "micro: 2", "micro: 3", "spec.training.batch.micro",
       "does not divide global 8"},
      {"micro left out", ", micro: 2", "", "spec.training.batch.micro", "is required"},
      {"steps left out", "    steps: 10\n", "", "spec.training.steps", "is required for task Train"},
      {"optimizer left out", "    optimizer: {type: AdamW, learningRate: 1e-3}\n", "",
       "spec.training.optimizer.type", "is required for task Train"},
      {"Evaluate without parameters", "spec:\n  model:", "spec:\n  task: Evaluate\n  model:",
       "spec.model.initFrom", "is required for task Evaluate"},
      {"momentum of AdamW", "type: AdamW", "type: AdamW, momentum: 0.9", "spec.training.optimizer.momentum",
       "no field of AdamW"},
      {"a group changes the type", "  training:\n",
       "  training:\n    parameterGroups: [{match: '*', optimizer: {type: SGD}}]\n",
       "spec.training.parameterGroups[0].optimizer.type", "differs from the optimizer's AdamW"},
      {"a group without match", "  training:\n",
       "  training:\n    parameterGroups: [{optimizer: {weightDecay: 0}}]\n",
       "spec.training.parameterGroups[0].match", "is required"},
      {"schedule without type", "steps: 10", "steps: 10\n    learningRateSchedule: {warmupSteps: 1}",
       "spec.training.learningRateSchedule.type", "is required"},
      {"final fraction of Constant", "steps: 10",
       "steps: 10\n    learningRateSchedule: {type: Constant, finalFraction: 0.1}",
       "spec.training.learningRateSchedule.finalFraction", "not of Constant"},
      {"warm-up longer than the job", "steps: 10",
       "steps: 10\n    learningRateSchedule: {type: Linear, warmupSteps: 11}",
       "spec.training.learningRateSchedule.warmupSteps", "the job has 10 steps"},
      {"ratio left out", "  training:\n", "  communication: {compression: {type: AdaTopK}}\n  training:\n",
       "spec.communication.compression.ratio", "is required for AdaTopK"},
      {"ratio where none is", "  training:\n", "  communication: {compression: {ratio: 5}}\n  training:\n",
       "spec.communication.compression.ratio", "not of Need"},
      {"values that are not quantized", "  training:\n",
       "  communication: {compression: {type: Quantize, values: fp16}}\n  training:\n",
       "spec.communication.compression.values", "give int8 or int4"},
      {"pin on an unknown compnode", "  training:\n",
       "  placement: {pins: [{operators: input, compnode: a2}]}\n  training:\n",
       "spec.placement.pins[0].compnode", "there are a1, b1"},
      {"pins that contradict", "  training:\n",
       "  placement: {pins: [{operators: 'input|loss', compnode: a1}, {operators: 'l*', compnode: b1}]}\n  "
       "training:\n",
       "spec.placement.pins[1].operators", "pins loss to b1, but pins[0] pins it to a1"},
      {"pin outside of the clusters", "  training:\n",
       "  placement: {clusters: [site-a], pins: [{operators: input, compnode: b1}]}\n  training:\n",
       "spec.placement.pins[0].compnode", "is in cluster site-b"},
      {"unknown cluster", "  training:\n", "  placement: {clusters: [site-a, site-c]}\n  training:\n",
       "spec.placement.clusters[1]", "no compnode is in cluster \"site-c\""},
      {"cluster listed twice", "  training:\n", "  placement: {clusters: [site-a, site-a]}\n  training:\n",
       "spec.placement.clusters[1]", "listed twice"},
      {"null", "global: 8", "global: null", "spec.training.batch.global", "not null"},
      {"list for an object", "batch: {global: 8, micro: 2}", "batch: [8, 2]", "spec.training.batch",
       "must be an object, not a list"},
      {"a boolean by surprise", "{name: job}", "{name: yes}", "metadata.name", "must be a string, not true"},
      {"bad name", "{name: job}", "{name: My_Job}", "metadata.name", "is not a DNS label"},
      {"no name", "metadata: {name: job}", "metadata: {}", "metadata.name", "is required"},
      {"no metadata", "metadata: {name: job}\n", "", "metadata", "is required"},
      {"unknown kind", "kind: FusionJob", "kind: Job", "kind", "\"Job\" is not known"},
      {"unknown version", "v1alpha1", "v9", "apiVersion", "is not known"},
      {"duplicate key", "    steps: 10\n", "    steps: 10\n    steps: 11\n", "spec.training.steps",
       "given twice"},
      {"compnode twice", "{name: b1}", "{name: a1}", "metadata.name", "a second Compnode named \"a1\""},
      {"bandwidth without unit", "8Mbps", "8", "spec.links[0].bandwidth", "must be a string"},
      {"bandwidth in bytes", "8Mbps", "8MB", "spec.links[0].bandwidth", "is not a bandwidth"},
      {"negative latency", "40ms", "-40ms", "spec.links[0].latency", "is not a duration"},
      {"bad quantity", "memory: 1Gi", "memory: 1GB", "spec.devices[0].memory", "is not a quantity"},
      {"peak speed of zero", "flops: 1e9", "flops: 0", "spec.emulation.flops", "must be more than 0"},
      {"emulation without a speed", "flops: 1e9, ", "", "spec.emulation.flops", "is required"},
      {"unknown class", "cluster: site-a", "cluster: site-a\n  class: Server", "spec.class",
       "must be one of Supernode, Antnode"},
      {"device twice", "{name: cpu, memory: 1Gi}", "{name: cpu}, {name: cpu}", "spec.devices[1]",
       "has the same name (cpu) as item 0"},
      {"no link between clusters", "  links: [{peer: site-b, bandwidth: 8Mbps, latency: 40ms}]\n", "",
       "spec.links", "no link from cluster site-a to cluster site-b"},
      {"link to an unknown compnode", "{peer: site-b,",
       "{peerKind: Compnode, peer: b2, bandwidth: 1Gbps, latency: 1ms}, {peer: site-b,", "spec.links[0].peer",
       "there are a1, b1"},
      {"link to itself", "{peer: site-b,",
       "{peerKind: Compnode, peer: a1, bandwidth: 1Gbps, latency: 1ms}, {peer: site-b,", "spec.links[0].peer",
       "is the compnode itself"},
  };
  EXPECT_GE(cases.size(), 40U);
  for (const Malformed& mistake : cases) {
    const bool in_job = std::string(kJob).find(mistake.from) != std::string::npos;
    std::string job = kJob;
    std::string nodes = kCompnodes;
    std::string& target = in_job ? job : nodes;
    const size_t at = target.find(mistake.from);
    ASSERT_NE(at, std::string::npos) << mistake.what;
    target.replace(at, std::string(mistake.from).size(), mistake.to);
    const Manifest manifest = ParseManifest({{"job.yaml", job}, {"nodes.yaml", nodes}});
    ASSERT_EQ(manifest.errors.size(), 1U) << mistake.what << "\n" << Errors(manifest);
    EXPECT_EQ(manifest.errors[0].field, mistake.field) << mistake.what;
    EXPECT_THAT(manifest.errors[0].message, HasSubstr(mistake.message)) << mistake.what;
    EXPECT_EQ(manifest.errors[0].file, in_job ? "job.yaml" : "nodes.yaml") << mistake.what;
    EXPECT_GT(manifest.errors[0].line, 0) << mistake.what;
  }
}

TEST(Manifest, ErrorsSayFileDocumentAndLine) {
  const std::string nodes = absl::StrReplaceAll(kCompnodes, {{"2e9", "two"}, {"8Mbps", "fast"}});
  const Manifest manifest = ParseManifest({{"n.yaml", nodes}});
  ASSERT_EQ(manifest.errors.size(), 2U);
  EXPECT_EQ(
      manifest.errors[0].ToString(),
      "n.yaml:1:7: spec.links[0].bandwidth: \"fast\" is not a bandwidth; write it as 8Mbps, 1Gbps or 1.5Gbps "
      "(decimal bits per second)");
  EXPECT_EQ(manifest.errors[1].ToString(),
            "n.yaml:2:16: spec.emulation.flops: must be a number, not the string \"two\"");
  EXPECT_EQ(
      manifest.errors[1].ToJson().dump(),
      R"({"file":"n.yaml","document":2,"line":16,"field":"spec.emulation.flops","message":"must be a number, not the string \"two\""})");
}

TEST(Manifest, LinksOfOneClusterAgree) {
  std::string nodes = kCompnodes;
  absl::StrAppend(&nodes,
                  "---\napiVersion: fusion.dev/v1alpha1\nkind: Compnode\nmetadata: {name: a2}\nspec:\n  "
                  "cluster: site-a\n",
                  "  links:\n  - {peer: site-a, bandwidth: 1Gbps, latency: 1ms}\n",
                  "  - {peer: site-b, bandwidth: 9Mbps, latency: 40ms}\n");
  const Manifest manifest = ParseManifest({{"n.yaml", nodes}});
  ASSERT_EQ(manifest.errors.size(), 1U) << Errors(manifest);
  EXPECT_EQ(manifest.errors[0].field, "spec.links[1]");
  EXPECT_THAT(
      manifest.errors[0].message,
      HasSubstr("declares 9Mbps, 40ms to cluster site-b, but a1 of the same cluster declares 8Mbps, 40ms"));
  const std::string same = absl::StrReplaceAll(nodes, {{"9Mbps, latency: 40ms", "8000kbps, latency: 0.04s"}});
  EXPECT_EQ(Errors(ParseManifest({{"n.yaml", same}})), "");
}

TEST(Manifest, ClustersThatNoJobJoinsNeedNoLink) {
  const std::string nodes =
      absl::StrReplaceAll(kCompnodes, {{"  links: [{peer: site-b, bandwidth: 8Mbps, latency: 40ms}]\n", ""}});
  const std::string job =
      absl::StrReplaceAll(kJob, {{"  training:\n", "  placement: {clusters: [site-a]}\n  training:\n"}});
  EXPECT_EQ(Errors(ParseManifest({{"job.yaml", job}, {"n.yaml", nodes}})), "");
}

TEST(Manifest, DuplicateJobsOfTwoFiles) {
  const Manifest manifest = ParseManifest({{"a.yaml", kJob}, {"b.yaml", kJob}});
  ASSERT_EQ(manifest.errors.size(), 1U);
  EXPECT_EQ(manifest.errors[0].ToString(),
            "b.yaml:1:3: metadata.name: a second FusionJob named \"job\"; rename one of them");
}

TEST(Manifest, SizesAreBounded) {
  const std::string big = absl::StrReplaceAll(
      kCompnodes, {{"{name: a1}", absl::StrCat("{name: a1, annotations: {a: ", std::string(16000, 'x'),
                                               ", b: ", std::string(1000, 'x'), "}}")}});
  const Manifest manifest = ParseManifest({{"n.yaml", big}});
  ASSERT_EQ(manifest.errors.size(), 1U);
  EXPECT_THAT(manifest.errors[0].message, HasSubstr("at most 16384 are allowed"));
}

class ManifestFiles : public testing::Test {
 protected:
  ManifestFiles() {
    std::string pattern = testing::TempDir() + "manifest-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~ManifestFiles() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  std::string OneError(const std::string& file) const {
    const Manifest manifest = LoadManifest({file});
    EXPECT_EQ(manifest.errors.size(), 1U) << Errors(manifest);
    return manifest.errors.empty() ? "" : manifest.errors[0].message;
  }
  std::filesystem::path folder_;
};

TEST_F(ManifestFiles, WhatIsNoManifestIsRefused) {
  EXPECT_EQ(OneError((folder_ / "none.yaml").string()), "cannot be read: No such file or directory");
  EXPECT_EQ(OneError(folder_.string()), "is a folder; give its files");
  EXPECT_EQ(OneError(Write("empty.yaml", "")), "is empty; it should hold FusionJobs or Compnodes");
  EXPECT_EQ(OneError(Write("comments.yaml", "# nothing\n---\n")),
            "is empty; it should hold FusionJobs or Compnodes");
  EXPECT_EQ(OneError(Write("binary.yaml", std::string("\x7f"
                                                      "ELF\x02\x01\0\0",
                                                      8))),
            "is not a text in UTF-8; give a YAML or JSON file");
  EXPECT_EQ(OneError(Write("huge.yaml", std::string(5 << 20, '#'))), "is larger than 4 MiB; split the file");
  EXPECT_EQ(OneError(Write("list.yaml", "[1, 2]")),
            "is no object; write apiVersion, kind, metadata and spec");
  EXPECT_EQ(OneError(Write("text.yaml", "hello")), "is no object; write apiVersion, kind, metadata and spec");
  EXPECT_THAT(OneError(Write("broken.yaml", "a: [1, 2\nb: 3\n")), HasSubstr("is not YAML: "));
  EXPECT_THAT(OneError("/dev/zero"), HasSubstr("is larger than 4 MiB"));
}

TEST_F(ManifestFiles, JsonFilesWork) {
  const Manifest manifest = LoadManifest({Write("job.json", ParseYaml(kJob).documents[0].value.dump(2))});
  EXPECT_EQ(Errors(manifest), "");
  EXPECT_EQ(manifest.jobs.size(), 1U);
}

TEST(Manifest, ExamplesAreValid) {
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FUSION_SOURCE_DIR "/examples")) {
    if (entry.path().extension() != ".yaml") continue;
    const Manifest manifest = LoadManifest({entry.path().string()});
    EXPECT_EQ(Errors(manifest), "") << entry.path();
    EXPECT_FALSE(manifest.jobs.empty()) << entry.path();
    ++examples;
  }
  EXPECT_GE(examples, 2);
}

TEST(ResolveUri, IsRelativeToTheJobFile) {
  EXPECT_EQ(ResolveUri("examples/a.yaml", "data/t.txt"), "examples/data/t.txt");
  EXPECT_EQ(ResolveUri("a.yaml", "../t.txt"), "../t.txt");
  EXPECT_EQ(ResolveUri("examples/a.yaml", "/t.txt"), "/t.txt");
  EXPECT_EQ(ResolveUri("examples/a.yaml", "file:///t.txt"), "/t.txt");
  EXPECT_EQ(ResolveUri("examples/a.yaml", "pvc://claim/t.txt"), "pvc://claim/t.txt");
  EXPECT_EQ(ResolveUri("-", "t.txt"), "t.txt");
}

}  // namespace
}  // namespace fusion::api
