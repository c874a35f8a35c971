#include "proto/manifests/manifests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/yaml.h"

namespace fusion::api {
namespace {

using nlohmann::json;

std::string Read(const std::string& path) {
  std::ifstream input(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(input), {}};
}

const std::map<std::string, std::string>& Generated() {
  static const auto& files =
      *new auto(GenerateManifests(Read(FUSION_BINARY_DIR "/proto/api.descriptors")).value());
  return files;
}

json Crd(const std::string& plural) {
  const YamlStream stream = ParseYaml(Generated().at("crds/fusion.dev_" + plural + ".yaml"));
  return stream.documents.at(0).value;
}

json Schema(const std::string& plural) {
  return Crd(plural)["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
}

TEST(Manifests, AreNotStale) {
  for (const auto& [name, text] : Generated()) {
    EXPECT_EQ(Read(std::string(FUSION_SOURCE_DIR "/") + name), text)
        << name << " is stale; run make manifests";
  }
}

TEST(Manifests, FitInOneRequest) {
  EXPECT_EQ(Generated().size(), 4U);
  for (const auto& [name, text] : Generated()) EXPECT_LT(text.size(), size_t{256} << 10) << name;
}

TEST(Crd, NamesColumnsAndStatus) {
  const json crd = Crd("fusionjobs");
  EXPECT_EQ(crd["metadata"]["name"], "fusionjobs.fusion.dev");
  EXPECT_EQ(crd["spec"]["scope"], "Namespaced");
  EXPECT_EQ(Crd("compnodes")["spec"]["scope"], "Cluster");
  const json& version = crd["spec"]["versions"][0];
  EXPECT_EQ(version["subresources"]["status"], json::object());
  std::vector<std::string> columns;
  for (const json& column : version["additionalPrinterColumns"]) columns.push_back(column["name"]);
  EXPECT_THAT(columns, testing::ElementsAre("Phase", "Stages", "Step", "Loss", "Throughput", "Clusters",
                                            "Restarts", "Age"));
}

std::vector<std::string> RulesOf(const json& schema) {
  std::vector<std::string> rules;
  for (const json& rule : schema["x-kubernetes-validations"]) rules.push_back(rule["rule"]);
  return rules;
}

TEST(Crd, FieldsCarryWhatTheOptionsSay) {
  const json spec = Schema("fusionjobs")["properties"]["spec"];
  EXPECT_EQ(spec["required"].dump(), R"(["model","data"])");
  EXPECT_EQ(spec["properties"]["task"]["enum"].dump(), R"(["Train","Evaluate"])");
  EXPECT_EQ(spec["properties"]["task"]["default"], "Train");
  EXPECT_EQ(spec["properties"]["placement"]["default"], json::object());
  EXPECT_THAT(RulesOf(spec["properties"]["model"]),
              testing::ElementsAre("has(self.family) != has(self.graph)", "self == oldSelf"));
  EXPECT_THAT(RulesOf(spec["properties"]["training"]),
              testing::Contains("has(self.optimizer) == has(oldSelf.optimizer)"));
  const json& steps = spec["properties"]["training"]["properties"]["steps"];
  EXPECT_EQ(steps["type"], "integer");
  EXPECT_EQ(steps["format"], "int64");
  EXPECT_EQ(steps["minimum"], 1);
  EXPECT_EQ(steps["maximum"], 1000000000);
  EXPECT_THAT(steps["description"].get<std::string>(), testing::HasSubstr("Optimizer steps"));

  const json node = Schema("compnodes")["properties"]["spec"]["properties"];
  EXPECT_EQ(node["links"]["x-kubernetes-list-type"], "map");
  EXPECT_EQ(node["links"]["x-kubernetes-list-map-keys"].dump(), R"(["peerKind","peer"])");
  EXPECT_EQ(node["taints"]["x-kubernetes-list-type"], "atomic");
  EXPECT_EQ(node["hostMemory"]["x-kubernetes-int-or-string"], true);
  EXPECT_EQ(node["emulation"]["properties"]["flops"]["exclusiveMinimum"], true);
}

TEST(Crd, MetadataRestrictsTheNameAlone) {
  const json metadata = Schema("compnodes")["properties"]["metadata"];
  EXPECT_EQ(metadata["properties"].size(), 1U);
  EXPECT_EQ(metadata["properties"]["name"]["maxLength"], 63);
}

/// What a structural schema must have at every node, and what it must not.
void CheckStructural(const json& schema, const std::string& path) {
  EXPECT_TRUE(schema.contains("type") || schema.contains("x-kubernetes-int-or-string")) << path;
  EXPECT_FALSE(schema.contains("$ref")) << path;
  if (schema.contains("x-kubernetes-list-map-keys")) {
    const json& items = schema["items"];
    for (const json& key : schema["x-kubernetes-list-map-keys"]) {
      const json& property = items["properties"].at(key.get<std::string>());
      const json required = items.value("required", json::array());
      const bool present =
          property.contains("default") || std::find(required.begin(), required.end(), key) != required.end();
      EXPECT_TRUE(present) << path << " key " << key;
    }
  }
  if (schema.contains("items")) CheckStructural(schema["items"], path + "[]");
  if (schema.contains("properties")) {
    for (const auto& [name, property] : schema["properties"].items())
      CheckStructural(property, absl::StrCat(path, ".", name));
  }
}

TEST(Crd, SchemasAreStructural) {
  for (const char* plural : {"fusionjobs", "compnodes", "fusionclusters"})
    CheckStructural(Schema(plural), plural);
}

TEST(Reference, EveryLinkLeadsToASection) {
  const std::string& page = Generated().at("docs/api.md");
  std::set<std::string> sections;
  for (size_t at = page.find("\n### "); at != std::string::npos; at = page.find("\n### ", at + 1)) {
    sections.insert(absl::AsciiStrToLower(page.substr(at + 5, page.find('\n', at + 5) - at - 5)));
  }
  EXPECT_TRUE(sections.contains("optimizer"));
  int links = 0;
  for (size_t at = page.find("](#"); at != std::string::npos; at = page.find("](#", at + 1), ++links) {
    const std::string target = page.substr(at + 3, page.find(')', at) - at - 3);
    EXPECT_TRUE(sections.contains(target)) << target;
  }
  EXPECT_GT(links, 20);
}

}  // namespace
}  // namespace fusion::api
