#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "graph/families.h"
#include "graph/registry.h"
#include "worker/data/dataset.h"

namespace fusion::worker {
namespace {

v1alpha1::FusionJobSpec Job(const std::string& model) {
  v1alpha1::FusionJobSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(model, spec.mutable_model())) << model;
  spec.mutable_data()->set_kind(v1alpha1::Data::synthetic);
  spec.mutable_training()->set_seed(3);
  spec.mutable_training()->mutable_batch()->set_global(8);
  spec.mutable_training()->mutable_validation()->set_batches(2);
  return spec;
}

constexpr char kGpt2[] = "family: gpt2 config { layers: 1 heads: 1 width: 4 context: 32 vocabulary: 12 }";
constexpr char kBert[] = "family: bert config { layers: 1 heads: 1 width: 4 context: 32 vocabulary: 12 }";
constexpr char kTowers[] =
    "family: bert config { layers: 1 heads: 1 width: 4 context: 32 vocabulary: 5000 towers: 2 }";
constexpr char kMlp[] = "family: mlp config { inputs: 3 outputs: 2 }";
constexpr char kClasses[] = "family: mlp config { inputs: 3 outputs: 4 } loss { type: CrossEntropy }";

std::unique_ptr<Dataset> Open(const std::string& model) {
  auto data = OpenDataset(Job(model), "");
  EXPECT_TRUE(data.ok()) << data.status();
  return *std::move(data);
}

std::vector<int64_t> Integers(const Tensor& tensor) {
  const auto* first = reinterpret_cast<const int64_t*>(tensor.data.get());
  return {first, first + tensor.elements()};
}

std::string Bits(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data.get()), static_cast<size_t>(tensor.bytes())};
}

class Synthetic : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Synthetic, FitsTheModelAndDependsOnSeedAndBatchOnly) {
  const std::string model = GetParam().second;
  const auto graph = graph::BuildModel(Job(model).model());
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto data = Open(model);
  for (const graph::v1::Operator& op : graph->operators()) {
    if (op.kind() != graph::v1::Operator::PLACEHOLDER) continue;
    const Placeholder placeholder = op.name() == "input" ? Placeholder::kInput : Placeholder::kLabel;
    const Tensor whole = data->Read(placeholder, {true, 5, 0, 8});
    EXPECT_EQ(whole.dtype, op.outputs(0).dtype());
    EXPECT_EQ(whole.shape, graph::ShapeOf(op.outputs(0), 8));
    std::string joined;
    for (int64_t first = 0; first < 8; first += 2)
      joined += Bits(data->Read(placeholder, {true, 5, first, 2}));
    EXPECT_EQ(joined, Bits(whole)) << "slices of one batch";
    EXPECT_EQ(Bits(Open(model)->Read(placeholder, {true, 5, 0, 8})), Bits(whole));
    if (op.name() == "input") {
      EXPECT_NE(Bits(data->Read(placeholder, {true, 6, 0, 8})), Bits(whole));
      EXPECT_NE(Bits(data->Read(placeholder, {false, 4, 0, 8})), Bits(whole)) << "validation has its own";
      auto other = Job(model);
      other.mutable_training()->set_seed(4);
      EXPECT_NE(Bits((*OpenDataset(other, ""))->Read(placeholder, {true, 5, 0, 8})), Bits(whole));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Synthetic,
                         ::testing::Values(std::pair("gpt2", kGpt2), std::pair("bert", kBert),
                                           std::pair("towers", kTowers), std::pair("mlp", kMlp),
                                           std::pair("classes", kClasses)),
                         [](const auto& info) { return std::string(info.param.first); });

TEST(Synthetic, AChainFollowsItsRuleSevenTimesOfEight) {
  const auto data = Open(kGpt2);
  std::map<int64_t, std::map<int64_t, int>> after;
  int all = 0;
  for (int64_t step = 1; step <= 50; ++step) {
    const auto input = Integers(data->Read(Placeholder::kInput, {true, step, 0, 8}));
    const auto label = Integers(data->Read(Placeholder::kLabel, {true, step, 0, 8}));
    for (size_t i = 0; i < input.size(); ++i) {
      if (i % 32 != 31) {
        EXPECT_EQ(label[i], input[i + 1]) << "the label is the next token";
      }
      ++after[input[i]][label[i]];
      ++all;
    }
  }
  int most = 0;
  for (const auto& [token, next] : after) {
    EXPECT_TRUE(token >= 1 && token < 12);
    int best = 0;
    for (const auto& [other, count] : next) best = std::max(best, count);
    most += best;
  }
  EXPECT_NEAR(static_cast<double>(most) / all, 0.875 + 0.125 / 11, 0.02);
}

TEST(Synthetic, MaskedChainsHideTheirTargets) {
  const auto data = Open(kBert);
  const auto input = Integers(data->Read(Placeholder::kInput, {true, 1, 0, 8}));
  const auto label = Integers(data->Read(Placeholder::kLabel, {true, 1, 0, 8}));
  const int64_t targets = std::count_if(label.begin(), label.end(), [](int64_t id) { return id != -100; });
  EXPECT_EQ(targets, TargetsOf(Job(kBert))({true, 1, 0, 8}));
  EXPECT_GT(std::count(input.begin(), input.end(), 11), targets / 2);
}

TEST(Synthetic, TextsOfAPairShareTheirWords) {
  const auto data = Open(kTowers);
  const auto first = Integers(data->Read(Placeholder::kInput, {true, 1, 0, 8}));
  const auto second = Integers(data->Read(Placeholder::kLabel, {true, 1, 0, 8}));
  std::set<size_t> lengths;
  const auto words = [&](const std::vector<int64_t>& texts, int64_t sample) {
    std::set<int64_t> found(texts.begin() + sample * 32, texts.begin() + (sample + 1) * 32);
    lengths.insert(
        static_cast<size_t>(std::count(texts.begin() + sample * 32, texts.begin() + (sample + 1) * 32, 0)));
    found.erase(0);
    return found;
  };
  const auto shared = [](const std::set<int64_t>& a, const std::set<int64_t>& b) {
    return std::count_if(a.begin(), a.end(), [&](int64_t word) { return b.contains(word); });
  };
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_GE(shared(words(first, i), words(second, i)), 4);
    EXPECT_LE(shared(words(first, i), words(second, (i + 1) % 8)), 1);
  }
  EXPECT_GT(lengths.size(), 4U) << "texts have lengths of their own";
}

TEST(Synthetic, ColumnsHaveALearnableFunction) {
  const auto data = Open(kClasses);
  std::set<int64_t> classes;
  for (int64_t step = 1; step <= 10; ++step) {
    for (const int64_t label : Integers(data->Read(Placeholder::kLabel, {true, step, 0, 8}))) {
      EXPECT_TRUE(label >= 0 && label < 4);
      classes.insert(label);
    }
  }
  EXPECT_GE(classes.size(), 2U);
  const Tensor columns = Open(kMlp)->Read(Placeholder::kInput, {true, 1, 0, 8});
  for (const float x : columns.floats()) {
    EXPECT_LE(std::abs(x), 1);
  }
}

TEST(Synthetic, AnImageIsOfItsClass) {
  const auto data = Open("family: resnet config { classes: 3 image_size: 8 channels: 1 }");
  const BatchSlice slice{true, 1, 0, 8};
  const Tensor images = data->Read(Placeholder::kInput, slice);
  EXPECT_EQ(images.shape, (std::vector<int64_t>{8, 1, 8, 8}));
  const auto classes = Integers(data->Read(Placeholder::kLabel, slice));
  const auto distance = [&](int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t p = 0; p < 64; ++p)
      sum += std::pow(images.floats()[a * 64 + p] - images.floats()[b * 64 + p], 2);
    return sum;
  };
  double alike = 0;
  double unlike = 0;
  int alike_count = 0;
  int unlike_count = 0;
  for (int64_t a = 0; a < 8; ++a) {
    for (int64_t b = 0; b < a; ++b) {
      const bool same = classes[static_cast<size_t>(a)] == classes[static_cast<size_t>(b)];
      (same ? alike : unlike) += distance(a, b);
      ++(same ? alike_count : unlike_count);
    }
  }
  ASSERT_GT(alike_count, 0);
  ASSERT_GT(unlike_count, 0);
  EXPECT_LT(1.3 * alike / alike_count, unlike / unlike_count);
}

TEST(Synthetic, AGraphOfOnesOwnGetsWhatItsSizesSay) {
  const BatchSlice slice{true, 2, 0, 4};
  for (const auto& [sizes, family] :
       std::vector<std::pair<std::string, std::string>>{{"inputs: 3 outputs: 2", "mlp"},
                                                        {"context: 6 vocabulary: 9", "gpt2"},
                                                        {"context: 6 vocabulary: 9 towers: 2", "bert"},
                                                        {"classes: 3 image_size: 8 channels: 1", "resnet"}}) {
    const auto own = Open("graph { uri: 'graph.pb' } config { " + sizes + " }");
    const auto expected = Open("family: " + family + " config { " + sizes + " }");
    for (const Placeholder placeholder : {Placeholder::kInput, Placeholder::kLabel}) {
      const Tensor found = own->Read(placeholder, slice);
      const Tensor wanted = expected->Read(placeholder, slice);
      EXPECT_EQ(found.shape, wanted.shape) << sizes;
      EXPECT_EQ(std::memcmp(found.data.get(), wanted.data.get(), static_cast<size_t>(wanted.bytes())), 0)
          << sizes;
    }
  }
}

TEST(Synthetic, NeedsAModelThatSaysWhatToMake) {
  EXPECT_FALSE(OpenDataset(Job("family: gpt2"), "").ok());
  EXPECT_FALSE(OpenDataset(Job("graph { uri: 'graph.pb' }"), "").ok());
}

}  // namespace
}  // namespace fusion::worker
