#include "worker/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::TestWithParam;

std::string WriteFile(const std::string& name, const std::string& contents) {
  // Cases run as processes of their own, at the same time.
  const std::string path = absl::StrCat(::testing::TempDir(), "/dataset-", getpid(), "-", name);
  std::ofstream(path, std::ios::binary) << contents;
  return path;
}

std::vector<int64_t> Integers(const Tensor& tensor) {
  const auto* first = reinterpret_cast<const int64_t*>(tensor.data.get());
  return {first, first + tensor.elements()};
}

std::vector<float> Floats(const Tensor& tensor) { return {tensor.floats().begin(), tensor.floats().end()}; }

std::string Digits(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text.push_back(static_cast<char>(i % 128));
  }
  return text;
}

constexpr int64_t kContext = 8;

std::unique_ptr<Dataset> Text(int64_t seed = 1) {
  auto dataset = OpenText({.path = WriteFile("text", Digits(1000)),
                           .validation_fraction = 0.1,
                           .seed = seed,
                           .global_batch = 12,
                           .validation_batches = 3},
                          kContext, 256);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

TEST(Text, LabelIsTheNextByte) {
  const auto text = Text();
  const BatchSlice slice{.training = true, .batch = 5, .first = 0, .count = 12};
  const Tensor input = text->Read(Placeholder::kInput, slice);
  const Tensor label = text->Read(Placeholder::kLabel, slice);
  EXPECT_EQ(input.shape, (std::vector<int64_t>{12, kContext}));
  EXPECT_EQ(input.dtype, graph::v1::INT64);
  const auto bytes = Integers(input);
  const auto next = Integers(label);
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(next[i], (bytes[i] + 1) % 128);
  }
}

TEST(Text, MicroBatchesAreSlicesOfTheGlobalBatch) {
  const auto text = Text();
  for (const bool training : {true, false}) {
    const auto whole = Integers(text->Read(Placeholder::kInput, {training, 2, 0, 12}));
    std::vector<int64_t> joined;
    for (int64_t first = 0; first < 12; first += 3) {
      const auto part = Integers(text->Read(Placeholder::kInput, {training, 2, first, 3}));
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, whole);
  }
}

TEST(Text, BatchesDependOnSeedAndStepOnly) {
  const auto text = Text();
  const auto step3 = Integers(text->Read(Placeholder::kInput, {true, 3, 0, 12}));
  EXPECT_NE(Integers(text->Read(Placeholder::kInput, {true, 4, 0, 12})), step3);
  EXPECT_EQ(Integers(Text()->Read(Placeholder::kInput, {true, 3, 0, 12})), step3);
  EXPECT_NE(Integers(Text(2)->Read(Placeholder::kInput, {true, 3, 0, 12})), step3);
}

TEST(Text, TrainingNeverSeesTheValidationPart) {
  std::string contents(1000, 'a');
  std::fill(contents.begin() + 900, contents.end(), 'z');
  auto text = OpenText({.path = WriteFile("parts", contents),
                        .validation_fraction = 0.1,
                        .seed = 1,
                        .global_batch = 50,
                        .validation_batches = 2},
                       kContext, 256);
  ASSERT_TRUE(text.ok());
  for (int64_t step = 1; step <= 40; ++step) {
    for (const int64_t byte : Integers((*text)->Read(Placeholder::kLabel, {true, step, 0, 50}))) {
      ASSERT_EQ(byte, 'a');
    }
  }
  for (int64_t batch = 0; batch < 2; ++batch) {
    for (const int64_t byte : Integers((*text)->Read(Placeholder::kLabel, {false, batch, 0, 50}))) {
      ASSERT_EQ(byte, 'z');
    }
  }
}

TEST(Text, AFileOfExactlyOneWindowWorks) {
  const auto text =
      OpenText({.path = WriteFile("one", Digits(kContext + 1)), .validation_fraction = 0}, kContext, 256);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(Integers((*text)->Read(Placeholder::kInput, {true, 1, 0, 1})),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

struct BadText {
  std::string contents;
  double validation_fraction;
  int64_t validation_batches;
  int64_t vocabulary;
  std::string message;
};

class MalformedText : public TestWithParam<BadText> {};

TEST_P(MalformedText, IsRefused) {
  const auto text = OpenText({.path = WriteFile("bad", GetParam().contents),
                              .validation_fraction = GetParam().validation_fraction,
                              .validation_batches = GetParam().validation_batches},
                             kContext, GetParam().vocabulary);
  ASSERT_FALSE(text.ok());
  EXPECT_THAT(std::string(text.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, MalformedText,
    ::testing::Values(BadText{"", 0, 0, 256, "is empty"}, BadText{"12345678", 0, 0, 256, "training part"},
                      BadText{"123456789", 0.05, 1, 256, "validation part"},
                      BadText{Digits(100), 0, 1, 256, "raise data.validationFraction"},
                      BadText{"aaaaaaaaaaa\x80zzz", 0, 0, 128, "byte 128 at offset 11"}));

TEST(Text, AMissingFileAndAFolderAreRefused) {
  const auto missing = OpenText({.path = "/nonexistent/text"}, 8, 256);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("data.uri: cannot open /nonexistent/text"));
  const auto folder = OpenText({.path = ::testing::TempDir()}, 8, 256);
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("not a regular file"));
}

std::string Csv(int rows) {
  std::string text = "x,y,z\n";
  for (int i = 0; i < rows; ++i) {
    absl::StrAppend(&text, i, ",", 10 * i + 3, ",", i % 4, "\n");
  }
  return text;
}

absl::StatusOr<std::unique_ptr<Dataset>> Table(const std::string& csv, const TableOptions& table,
                                               double validation_fraction = 0.2) {
  return OpenTable({.path = WriteFile("table.csv", csv),
                    .validation_fraction = validation_fraction,
                    .seed = 1,
                    .global_batch = 10,
                    .validation_batches = 1},
                   table);
}

TEST(Table, AnEpochReadsEachTrainingRowOnceInAnOrderOfItsOwn) {
  const auto table = Table(Csv(50), {.standardize = false, .inputs = 2, .outputs = 1});
  ASSERT_TRUE(table.ok()) << table.status();
  std::vector<std::vector<float>> epochs;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<float> rows;
    for (int64_t step = 1; step <= 4; ++step) {
      const Tensor input = (*table)->Read(Placeholder::kInput, {true, 4 * epoch + step, 0, 10});
      EXPECT_EQ(input.shape, (std::vector<int64_t>{10, 2}));
      for (int64_t i = 0; i < 10; ++i) {
        rows.push_back(input.floats()[2 * i]);
      }
    }
    EXPECT_EQ(std::set<float>(rows.begin(), rows.end()).size(), 40);
    EXPECT_LT(*std::max_element(rows.begin(), rows.end()), 40);
    epochs.push_back(rows);
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(Table, InputAndLabelComeFromTheSameRow) {
  const auto table = Table(Csv(50), {.target = "y", .standardize = false, .inputs = 2, .outputs = 1});
  ASSERT_TRUE(table.ok()) << table.status();
  for (const bool training : {true, false}) {
    const Tensor input = (*table)->Read(Placeholder::kInput, {training, 0 + training, 0, 10});
    const Tensor label = (*table)->Read(Placeholder::kLabel, {training, 0 + training, 0, 10});
    EXPECT_EQ(label.shape, (std::vector<int64_t>{10, 1}));
    for (int64_t i = 0; i < 10; ++i) {
      EXPECT_EQ(label.floats()[i], 10 * input.floats()[2 * i] + 3);
    }
  }
}

TEST(Table, ValidationReadsTheTailInOrder) {
  const auto table = Table(Csv(50), {.standardize = false, .inputs = 2, .outputs = 1});
  ASSERT_TRUE(table.ok());
  const Tensor input = (*table)->Read(Placeholder::kInput, {false, 0, 0, 10});
  for (int64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(input.floats()[2 * i], 40 + i);
  }
}

TEST(Table, StandardizesByTheTrainingPart) {
  // Training rows 1, 3; the validation row's 100 does not count.
  const auto table = Table("x,y\n1,10\n3,30\n100,20\n", {.inputs = 1, .outputs = 1}, 0.34);
  ASSERT_TRUE(table.ok()) << table.status();
  std::vector<float> rows = Floats((*table)->Read(Placeholder::kInput, {true, 1, 0, 2}));
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ(rows, (std::vector<float>{-1, 1}));
  EXPECT_EQ(Floats((*table)->Read(Placeholder::kInput, {false, 0, 0, 1})), (std::vector<float>{98}));
  EXPECT_EQ(Floats((*table)->Read(Placeholder::kLabel, {false, 0, 0, 1})), (std::vector<float>{0}));
}

TEST(Table, ClassesAreIntegers) {
  const auto table = Table(Csv(50), {.standardize = true, .inputs = 2, .outputs = 4, .class_labels = true});
  ASSERT_TRUE(table.ok()) << table.status();
  const Tensor label = (*table)->Read(Placeholder::kLabel, {false, 0, 0, 10});
  EXPECT_EQ(label.dtype, graph::v1::INT64);
  EXPECT_EQ(Integers(label), (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1}));
}

TEST(Table, SeveralTargetsAreTheLastColumns) {
  const auto table = Table(Csv(50), {.standardize = false, .inputs = 1, .outputs = 2});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(Floats((*table)->Read(Placeholder::kLabel, {false, 0, 1, 1})), (std::vector<float>{413, 1}));
}

struct BadTable {
  std::string csv;
  TableOptions options;
  std::string message;
};

class MalformedTable : public TestWithParam<BadTable> {};

TEST_P(MalformedTable, IsRefused) {
  const auto table = Table(GetParam().csv, GetParam().options);
  ASSERT_FALSE(table.ok());
  EXPECT_THAT(std::string(table.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, MalformedTable,
    ::testing::Values(
        BadTable{Csv(9),
                 {.inputs = 3, .outputs = 1},
                 "model.config.inputs is 3, but the table has 2 input columns"},
        BadTable{
            Csv(9), {.target = "w", .inputs = 2, .outputs = 1}, "no column is named 'w'; there are x, y, z"},
        BadTable{Csv(9), {.target = "z", .inputs = 1, .outputs = 2}, "names one column"},
        BadTable{Csv(9), {.inputs = 2, .outputs = 2, .class_labels = true}, "line 4: 2 in the target column"},
        BadTable{"x,y\n1,0.5\n2,1\n3,1\n4,1\n5,1\n",
                 {.inputs = 1, .outputs = 2, .class_labels = true},
                 "line 2: 0.5"},
        BadTable{"x,y\n1,2\n1,3\n1,4\n1,5\n2,6\n",
                 {.inputs = 1, .outputs = 1},
                 "column 'x' is constant over the 4"},
        BadTable{
            "x,y\n0.1,2\n0.1,3\n0.1,4\n0.1,5\n2,6\n", {.inputs = 1, .outputs = 1}, "column 'x' is constant"},
        BadTable{"x,y\n1,2\n2,3\n", {.inputs = 1, .outputs = 1}, "validation part of 2 rows is empty"},
        BadTable{"x,y\n1,2\n2\n", {.inputs = 1, .outputs = 1}, "line 3"}));

v1alpha1::FusionJobSpec TextJob(const std::string& uri) {
  v1alpha1::FusionJobSpec spec;
  spec.mutable_data()->set_kind(v1alpha1::Data::text);
  spec.mutable_data()->set_uri(uri);
  spec.mutable_model()->mutable_config()->set_context(kContext);
  spec.mutable_model()->mutable_config()->set_vocabulary(256);
  spec.mutable_training()->mutable_batch()->set_global(4);
  return spec;
}

TEST(OpenDataset, FindsRelativePathsAndRefusesSchemes) {
  const std::filesystem::path path = WriteFile("relative", Digits(1000));
  EXPECT_TRUE(OpenDataset(TextJob(path.filename()), path.parent_path()).ok());
  const auto remote = OpenDataset(TextJob("s3://bucket/text"), ::testing::TempDir());
  EXPECT_EQ(remote.status().code(), absl::StatusCode::kUnimplemented);
}

TEST(OpenDataset, SaysWhatTheModelLacks) {
  auto spec = TextJob("relative");
  spec.mutable_data()->set_kind(v1alpha1::Data::table);
  EXPECT_THAT(std::string(OpenDataset(spec, "/").status().message()),
              HasSubstr("model.config.inputs and outputs"));
}

TEST(ValidationBatches, AreThoseOfTheJob) {
  v1alpha1::FusionJobSpec spec;
  EXPECT_EQ(ValidationBatches(spec), 0);
  spec.mutable_training()->mutable_validation()->set_every_steps(5);
  EXPECT_EQ(ValidationBatches(spec), 20);
  spec.mutable_training()->mutable_validation()->set_batches(3);
  EXPECT_EQ(ValidationBatches(spec), 3);
}

}  // namespace
}  // namespace fusion::worker
