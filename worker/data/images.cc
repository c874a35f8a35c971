#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/data/csv.h"
#include "worker/data/dataset.h"
#include "worker/data/gzip.h"
#include "worker/data/row_order.h"
#include "worker/mapped_file.h"

namespace fusion::worker {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{8} << 30;

class ImageDataset : public Dataset {
 public:
  ImageDataset(const ImageOptions& images, RowOrder order) : images_(images), order_(std::move(order)) {}

  Tensor Read(Placeholder placeholder, const BatchSlice& slice) const override {
    if (placeholder == Placeholder::kLabel) {
      Tensor labels = AllocateTensor(graph::v1::INT64, {slice.count});
      auto* out = reinterpret_cast<int64_t*>(labels.data.get());
      for (int64_t i = 0; i < slice.count; ++i) {
        out[i] = classes[static_cast<size_t>(order_.Row(slice, slice.first + i))];
      }
      return labels;
    }
    Tensor images = AllocateTensor(graph::v1::FLOAT32,
                                   {slice.count, images_.channels, images_.image_size, images_.image_size});
    float* out = images.mutable_floats().data();
    for (int64_t i = 0; i < slice.count; ++i) {
      const float* image = pixels.data() + order_.Row(slice, slice.first + i) * images_.pixels();
      out = std::copy(image, image + images_.pixels(), out);
    }
    return images;
  }

  std::vector<float> pixels;
  std::vector<int64_t> classes;

 private:
  const ImageOptions images_;
  const RowOrder order_;
};

absl::StatusOr<std::unique_ptr<Dataset>> FromNumbers(const DatasetOptions& options,
                                                     const ImageOptions& images, const NumberTable& numbers) {
  const auto cells = static_cast<int64_t>(numbers.columns.size());
  if (cells != images.pixels() + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a row has ", cells, " numbers, but images of ", images.channels, " x ", images.image_size, " x ",
        images.image_size, " pixels (model.config.channels and imageSize) with a label have ",
        images.pixels() + 1));
  }
  auto order = RowOrder::Create(options, numbers.rows);
  if (!order.ok()) {
    return order.status();
  }
  auto dataset = std::make_unique<ImageDataset>(images, *std::move(order));
  dataset->pixels.reserve(static_cast<size_t>(numbers.rows * images.pixels()));
  for (int64_t row = 0; row < numbers.rows; ++row) {
    const auto at_line = [&](auto... what) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", numbers.lines[static_cast<size_t>(row)], ": ", what...));
    };
    for (int64_t i = 0; i < images.pixels(); ++i) {
      const auto value = static_cast<float>(numbers.at(row, i) * images.scale);
      if (!std::isfinite(value)) {
        return at_line("pixel ", i + 1, ": ", numbers.at(row, i), " times data.scale ", images.scale,
                       " is beyond float32");
      }
      dataset->pixels.push_back(value);
    }
    const double label = numbers.at(row, images.pixels());
    if (label != std::floor(label) || label < 0 || label >= static_cast<double>(images.classes)) {
      return at_line("the label ", label, " is not a class from 0 to ", images.classes - 1,
                     " (model.config.classes - 1)");
    }
    dataset->classes.push_back(static_cast<int64_t>(label));
  }
  return dataset;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> ParseImages(absl::string_view bytes, const DatasetOptions& options,
                                                     const ImageOptions& images) {
  std::string unpacked;
  if (IsGzip(bytes)) {
    auto text = Gunzip(bytes, kMaxTextBytes);
    if (!text.ok()) {
      return text.status();
    }
    unpacked = *std::move(text);
    bytes = unpacked;
  }
  const auto numbers = ParseCsv(bytes, CsvHeader::kOptional);
  if (!numbers.ok()) {
    return numbers.status();
  }
  return FromNumbers(options, images, *numbers);
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenImages(const DatasetOptions& options,
                                                    const ImageOptions& images) {
  auto file = MappedFile::Open(options.path);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat("data.uri: ", file.status().message()));
  }
  const absl::Span<const std::byte> bytes = file->bytes();
  auto dataset = ParseImages({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, options, images);
  if (!dataset.ok()) {
    return absl::Status(dataset.status().code(),
                        absl::StrCat("data.uri: ", options.path, ": ", dataset.status().message()));
  }
  return dataset;
}

}  // namespace fusion::worker
