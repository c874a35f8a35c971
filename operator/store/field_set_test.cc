#include "operator/store/field_set.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace fusion::op {
namespace {

using nlohmann::json;

const json kJob = json::parse(R"({
  "metadata": {"labels": {"team": "x"}, "finalizers": ["b", "a"]},
  "spec": {"placement": {"clusters": ["s1", "s2"], "stages": {}}},
  "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Stalled", "status": "False"}]}
})");

TEST(FieldSetTest, LeavesFollowTheListTypesOfTheApi) {
  const FieldSet leaves = LeavesOf(MergeSchema::Of(kFusionJobs), kJob);
  std::vector<std::string> paths;
  for (const FieldPath& path : leaves) paths.push_back(PathString(path));
  EXPECT_EQ(paths,
            (std::vector<std::string>{
                ".metadata.finalizers[=\"a\"]", ".metadata.finalizers[=\"b\"]", ".metadata.labels.team",
                ".spec.placement.clusters", ".spec.placement.stages", ".status.conditions[type=\"Ready\"]",
                ".status.conditions[type=\"Ready\"].status", ".status.conditions[type=\"Ready\"].type",
                ".status.conditions[type=\"Stalled\"]", ".status.conditions[type=\"Stalled\"].status",
                ".status.conditions[type=\"Stalled\"].type"}));
}

TEST(FieldSetTest, FieldsV1IsKubernetesNotation) {
  const FieldSet leaves = LeavesOf(MergeSchema::Of(kFusionJobs), kJob);
  const json fields = FieldsV1(leaves);
  EXPECT_EQ(fields["f:status"]["f:conditions"]["k:{\"type\":\"Ready\"}"],
            json({{".", json::object()}, {"f:type", json::object()}, {"f:status", json::object()}}));
  EXPECT_EQ(fields["f:metadata"]["f:finalizers"],
            json({{"v:\"a\"", json::object()}, {"v:\"b\"", json::object()}}));
  EXPECT_EQ(ParseFieldsV1(fields), leaves);
}

TEST(FieldSetTest, MergingAndErasingAreInverse) {
  const MergeSchema schema = MergeSchema::Of(kFusionJobs);
  const json base = json::parse(R"({"metadata": {}, "spec": {}, "status": {}})");
  json merged = base;
  MergeInto(schema, merged, kJob);
  EXPECT_EQ(merged, kJob);
  const FieldSet leaves = LeavesOf(schema, kJob);
  for (const FieldPath& path : leaves) {
    ASSERT_NE(ValueAt(schema, kJob, path), nullptr) << PathString(path);
    EraseAt(schema, merged, path);
    EXPECT_EQ(ValueAt(schema, merged, path), nullptr) << PathString(path);
  }
  EXPECT_EQ(merged, base);
}

TEST(FieldSetTest, UnknownFieldsMergeAsObjectsAndListsAsOneValue) {
  const MergeSchema schema = MergeSchema::Of(kFusionJobs);
  json target = json::parse(R"({"spec": {"new": {"a": 1, "list": [1]}}})");
  MergeInto(schema, target, json::parse(R"({"spec": {"new": {"b": 2, "list": [2]}}})"));
  EXPECT_EQ(target, json::parse(R"({"spec": {"new": {"a": 1, "b": 2, "list": [2]}}})"));
}

}  // namespace
}  // namespace fusion::op
