#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/data/dataset.h"
#include "worker/data/gzip.h"

namespace fusion::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Gzip(const std::string& text) {
  z_stream stream{};
  constexpr int kGzip = 16 + MAX_WBITS;
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string bytes(deflateBound(&stream, text.size()), '\0');
  std::string source = text;
  stream.next_in = reinterpret_cast<Bytef*>(source.data());
  stream.avail_in = static_cast<uInt>(source.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  bytes.resize(stream.total_out);
  deflateEnd(&stream);
  return bytes;
}

// Image r has the pixels 8 r, 8 r + 1, … and the class r % 3: two channels of 2 x 2.
std::string Rows(int count) {
  std::string text;
  for (int row = 0; row < count; ++row) {
    for (int i = 0; i < 8; ++i) absl::StrAppend(&text, 8 * row + i, ",");
    absl::StrAppend(&text, row % 3, "\n");
  }
  return text;
}

constexpr ImageOptions kImages = {.channels = 2, .image_size = 2, .classes = 3, .scale = 0.5};

absl::StatusOr<std::unique_ptr<Dataset>> Images(const std::string& bytes, double validation_fraction = 0.2) {
  return ParseImages(
      bytes,
      {.validation_fraction = validation_fraction, .seed = 1, .global_batch = 4, .validation_batches = 1},
      kImages);
}

std::vector<int64_t> Classes(const Tensor& tensor) {
  EXPECT_EQ(tensor.dtype, graph::v1::INT64);
  const auto* first = reinterpret_cast<const int64_t*>(tensor.data.get());
  return {first, first + tensor.elements()};
}

TEST(Images, ArePixelsByChannelRowAndColumnScaled) {
  const auto images = Images(Rows(10));
  ASSERT_TRUE(images.ok()) << images.status();
  const Tensor input =
      (*images)->Read(Placeholder::kInput, {.training = false, .batch = 0, .first = 0, .count = 4});
  EXPECT_EQ(input.shape, (std::vector<int64_t>{4, 2, 2, 2}));
  EXPECT_THAT(input.floats().subspan(0, 8), ElementsAre(32, 32.5, 33, 33.5, 34, 34.5, 35, 35.5)) << "row 8";
  EXPECT_EQ(input.floats()[2 * 8], 36) << "row 9, as two rows are spread over four samples";
  EXPECT_THAT(
      Classes((*images)->Read(Placeholder::kLabel, {.training = false, .batch = 0, .first = 0, .count = 4})),
      ElementsAre(2, 2, 0, 0));
}

TEST(Images, AnEpochReadsEachTrainingImageOnceWithItsClass) {
  const auto images = Images(Rows(10));
  ASSERT_TRUE(images.ok()) << images.status();
  std::set<int64_t> rows;
  for (int64_t step = 1; step <= 2; ++step) {
    const BatchSlice slice{.training = true, .batch = step, .first = 0, .count = 4};
    const Tensor input = (*images)->Read(Placeholder::kInput, slice);
    const std::vector<int64_t> classes = Classes((*images)->Read(Placeholder::kLabel, slice));
    for (int i = 0; i < 4; ++i) {
      const auto row = static_cast<int64_t>(input.floats()[8 * i] / 4);
      rows.insert(row);
      EXPECT_EQ(classes[i], row % 3);
    }
  }
  EXPECT_THAT(rows, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Images, GzipAndAHeaderAreRecognised) {
  const BatchSlice slice{.training = true, .batch = 3, .first = 1, .count = 3};
  const auto plain = Images(Rows(10));
  ASSERT_TRUE(plain.ok());
  const auto expected = Classes((*plain)->Read(Placeholder::kLabel, slice));
  const std::string two_members = Gzip(Rows(10).substr(0, 100)) + Gzip(Rows(10).substr(100));
  for (const std::string& bytes : {Gzip(Rows(10)), two_members, "a,b,c,d,e,f,g,h,class\n" + Rows(10)}) {
    const auto images = Images(bytes);
    ASSERT_TRUE(images.ok()) << images.status();
    EXPECT_EQ(Classes((*images)->Read(Placeholder::kLabel, slice)), expected);
  }
}

TEST(Images, TheFileIsThatOfTheJob) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/images-", getpid(), ".csv.gz");
  std::ofstream(path, std::ios::binary) << Gzip(Rows(30));
  v1alpha1::FusionJobSpec spec;
  spec.mutable_data()->set_kind(v1alpha1::Data::images);
  spec.mutable_data()->set_uri(path);
  spec.mutable_data()->set_scale(2);
  spec.mutable_training()->mutable_batch()->set_global(4);
  EXPECT_THAT(std::string(OpenDataset(spec, "/").status().message()), HasSubstr("model.config.classes"));
  v1alpha1::ModelConfig& config = *spec.mutable_model()->mutable_config();
  config.set_classes(3);
  EXPECT_THAT(std::string(OpenDataset(spec, "/").status().message()), HasSubstr("3 x 224 x 224"));
  config.set_channels(2);
  config.set_image_size(2);
  const auto images = OpenDataset(spec, "/");
  ASSERT_TRUE(images.ok()) << images.status();
  const Tensor input =
      (*images)->Read(Placeholder::kInput, {.training = true, .batch = 1, .first = 0, .count = 1});
  EXPECT_EQ(input.floats()[1] - input.floats()[0], 2);
}

struct BadImages {
  std::string name;
  std::string bytes;
  std::string message;
};

void PrintTo(const BadImages& bad, std::ostream* out) { *out << bad.name; }

class MalformedImages : public ::testing::TestWithParam<BadImages> {};

TEST_P(MalformedImages, AreRefusedWithThePlace) {
  const auto images = Images(GetParam().bytes);
  ASSERT_FALSE(images.ok());
  EXPECT_THAT(std::string(images.status().message()), HasSubstr(GetParam().message));
}

std::string Changed(std::string bytes, size_t at, char to) {
  bytes[at] = to;
  return bytes;
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, MalformedImages,
    ::testing::Values(
        BadImages{"Empty", "", "the file is empty"},
        BadImages{"HeaderOnly", "a,b,c,d,e,f,g,h,i\n", "no rows"},
        BadImages{"TooFewPixels", "1,2,3,0\n", "a row has 4 numbers, but images of 2 x 2 x 2"},
        BadImages{"NoLabel", "1,2,3,4,5,6,7,8\n1,2,3,4,5,6,7,8\n", "with a label have 9"},
        BadImages{"ShortRow", Rows(3) + "1,2\n", "line 4: 2 cells where the first line has 9"},
        BadImages{"PixelIsText", Rows(3) + "1,2,3,x,5,6,7,8,0\n", "line 4: column 4 ('4'): 'x'"},
        BadImages{"PixelIsNan", Rows(3) + "1,2,3,nan,5,6,7,8,0\n", "'nan' is not a finite number"},
        BadImages{"PixelBeyondFloat", Rows(9) + "1,2,3,4e38,5,6,7,8e39,0\n", "line 10: pixel 8"},
        BadImages{"ClassTooLarge", Rows(9) + "1,2,3,4,5,6,7,8,3\n",
                  "line 10: the label 3 is not a class from 0 to 2"},
        BadImages{"NegativeClass", Rows(9) + "1,2,3,4,5,6,7,8,-1\n", "the label -1"},
        BadImages{"HalfAClass", Rows(9) + "1,2,3,4,5,6,7,8,0.5\n", "the label 0.5"},
        BadImages{"HugeClass", Rows(9) + "1,2,3,4,5,6,7,8,1e300\n", "the label 1e+300"},
        BadImages{"NothingToValidate", Rows(3), "validation part of 3 rows is empty"},
        BadImages{"Binary", Rows(1) + std::string(3, '\0'), "binary data"},
        BadImages{"GzipMagicOnly", "\x1f\x8b", "cut short"},
        BadImages{"GzipCutShort", Gzip(Rows(99)).substr(0, 60), "gzip data is cut short after 60 bytes"},
        BadImages{"GzipWithoutItsEnd", Gzip(Rows(99)).substr(0, Gzip(Rows(99)).size() - 1), "cut short"},
        BadImages{"GzipOfAnotherMethod", Changed(Gzip(Rows(9)), 2, 7), "damaged gzip data"},
        BadImages{"GzipWithAWrongChecksum", Changed(Gzip(Rows(9)), Gzip(Rows(9)).size() - 8, 'x'),
                  "damaged gzip data"},
        BadImages{"GzipAndMore", Gzip(Rows(9)) + "more", "and other data follows"},
        BadImages{"GzipOfNothing", Gzip(""), "the file is empty"},
        BadImages{"GzipOfText", Gzip("hello\n"), "no rows"}),
    [](const auto& info) { return info.param.name; });

TEST(Gunzip, StopsAtItsLimit) {
  const std::string bomb = Gzip(std::string(10'000'000, 'a'));
  EXPECT_LT(bomb.size(), 20'000u);
  const auto text = Gunzip(bomb, 1'000'000);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Gunzip(bomb, 10'000'000)->size(), 10'000'000u);
}

}  // namespace
}  // namespace fusion::worker
