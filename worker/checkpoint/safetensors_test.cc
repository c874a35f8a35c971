#include "worker/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <rapidcheck/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

using ::testing::HasSubstr;

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string File(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

std::string TestPath(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/safetensors-", getpid(), "-", name);
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ParseSafetensors, ReadsWhatTheFormatsOwnLibraryWrites) {
  // numpy: {"b": uint8 [2], "a": float32 [2, 1] of 1 and -2}, with metadata.
  const auto tensors = ParseSafetensors(
      Bytes(File(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                 R"("b":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}}   )",
                 std::string("\0\0\x80\x3f\0\0\0\xc0\x07\x09", 10))));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2);
  const Tensor a = CopyTensor(tensors->at("a"));
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(a.floats()[0], 1);
  EXPECT_EQ(a.floats()[1], -2);
  EXPECT_EQ(tensors->at("b").dtype, graph::v1::UINT8);
  EXPECT_EQ(std::to_integer<int>(tensors->at("b").bytes[1]), 9);
}

struct BadFile {
  std::string file;
  std::string message;
};

std::string OneTensor(const std::string& entry, size_t bytes) {
  return File(absl::StrCat(R"({"x":)", entry, "}"), std::string(bytes, '\0'));
}

class MalformedSafetensors : public ::testing::TestWithParam<BadFile> {};

TEST_P(MalformedSafetensors, IsDataLoss) {
  const auto tensors = ParseSafetensors(Bytes(GetParam().file));
  ASSERT_FALSE(tensors.ok());
  EXPECT_EQ(tensors.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(tensors.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, MalformedSafetensors,
    ::testing::Values(
        BadFile{"", "0 bytes are too few"}, BadFile{"1234567", "7 bytes are too few"},
        BadFile{std::string(8, '\xff'), "does not fit into 8"},
        BadFile{std::string("\x20\0\0\0\0\0\0\0{}", 10), "a header of 32 bytes does not fit"},
        BadFile{File("", ""), "not a JSON object"}, BadFile{File("[]", ""), "not a JSON object"},
        BadFile{File("{\"x\":", ""), "not a JSON object"},
        BadFile{File(std::string(100000, '['), ""), "not a JSON object"},
        BadFile{File("\xff\xfe{}", ""), "not a JSON object"},
        BadFile{OneTensor("1", 0), "tensor 'x': no dtype"},
        BadFile{OneTensor(R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})", 4), "no dtype"},
        BadFile{OneTensor(R"({"dtype":"F4","shape":[1],"data_offsets":[0,4]})", 4),
                "dtype 'F4' is not supported"},
        BadFile{OneTensor(R"({"dtype":"F32","data_offsets":[0,4]})", 4), "shape is not a list"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4), "shape holds -1"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", 4), "shape holds 1.5"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})", 4), "shape holds \"1\""},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[1]})", 4), "data_offsets is not a list"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", 4), "data_offsets [0]"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4), "do not lie in 4 bytes"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 4), "do not lie in 4 bytes"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]})", 4),
                "not a size"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4), "needs 8 bytes"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})", 4),
                "overflows"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 8),
                "4 bytes after the last"},
        BadFile{OneTensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8), "hole at byte 0"},
        BadFile{File(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                     R"("y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                     "abc"),
                "overlap or leave a hole at byte 2"},
        BadFile{File(R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                     R"("x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                     "a"),
                "'x' is there twice"}));

RC_GTEST_PROP(ParseSafetensors, SurvivesAnyChangeOfAGoodFile, ()) {
  std::string file = OneTensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8);
  const auto at = *rc::gen::inRange<size_t>(0, file.size());
  file[at] = static_cast<char>(*rc::gen::arbitrary<unsigned char>());
  file.resize(*rc::gen::inRange<size_t>(0, file.size() + 1));
  const auto tensors = ParseSafetensors(Bytes(file));
  if (tensors.ok()) {
    for (const auto& [name, view] : *tensors) {
      RC_ASSERT(CopyTensor(view).bytes() == static_cast<int64_t>(view.bytes.size()));
    }
  }
}

RC_GTEST_PROP(WriteSafetensors, ReadsBackEqual, ()) {
  const auto shapes = *rc::gen::container<std::map<std::string, std::vector<uint8_t>>>(
      rc::gen::string<std::string>(),
      rc::gen::container<std::vector<uint8_t>>(rc::gen::inRange<uint8_t>(0, 4)));
  std::map<std::string, Tensor> tensors;
  for (const auto& [key, extents] : shapes) {
    std::string name = "t";  // names are UTF-8
    for (const char c : key) {
      absl::StrAppend(&name, static_cast<int>(c));
    }
    if (extents.size() > 4) {
      continue;
    }
    Tensor tensor = AllocateTensor(graph::v1::INT64, {extents.begin(), extents.end()});
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      reinterpret_cast<int64_t*>(tensor.data.get())[i] = i * 31;
    }
    tensors[name] = tensor;
  }
  std::map<std::string, TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    views[name] = ViewOf(tensor);
  }
  const std::string path = TestPath("roundtrip");
  RC_ASSERT(WriteSafetensors(path, views).ok());
  const auto file = SafetensorsFile::Open(path);
  RC_ASSERT(file.ok());
  RC_ASSERT(file->tensors().size() == tensors.size());
  for (const auto& [name, view] : file->tensors()) {
    RC_ASSERT(view.shape == tensors[name].shape);
    RC_ASSERT(view.bytes == ViewOf(tensors[name]).bytes);
  }
}

TEST(WriteSafetensors, AFullDiskIsAnErrorThatNamesTheFile) {
  Tensor tensor = AllocateTensor(graph::v1::FLOAT32, {1024});
  std::memset(tensor.data.get(), 0, 4096);
  const std::string path = TestPath("full");
  std::filesystem::create_symlink("/dev/full", path);
  const absl::Status status = WriteSafetensors(path, {{"x", ViewOf(tensor)}});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  EXPECT_FALSE(std::filesystem::is_symlink(path)) << "what could not be written whole must not stay";
}

TEST(WriteSafetensors, AMissingFolderIsAnErrorThatNamesTheFile) {
  const absl::Status status = WriteSafetensors(TestPath("no/such/folder"), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot create"));
}

TEST(SafetensorsFile, ErrorsCarryThePath) {
  const std::string path = TestPath("garbage");
  std::ofstream(path) << "garbage that is no header";
  EXPECT_THAT(std::string(SafetensorsFile::Open(path).status().message()), HasSubstr(path));
  EXPECT_EQ(ReadAll(path), "garbage that is no header");
}

}  // namespace
}  // namespace fusion::worker
