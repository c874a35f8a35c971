#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/data/dataset.h"
#include "worker/data/sampling.h"
#include "worker/mapped_file.h"

namespace fusion::worker {
namespace {

constexpr uint64_t kTextStream = 0x74657874;  // apart from the table's

class TextDataset : public Dataset {
 public:
  TextDataset(MappedFile file, const DatasetOptions& options, int64_t context, int64_t training_bytes)
      : file_(std::move(file)), options_(options), context_(context), training_bytes_(training_bytes) {}

  Tensor Read(Placeholder placeholder, const BatchSlice& slice) const override {
    Tensor tensor = AllocateTensor(graph::v1::INT64, {slice.count, context_});
    auto* out = reinterpret_cast<int64_t*>(tensor.data.get());
    const int64_t shift = placeholder == Placeholder::kLabel ? 1 : 0;
    for (int64_t i = 0; i < slice.count; ++i) {
      const std::byte* window = file_.bytes().data() + Start(slice, slice.first + i) + shift;
      out = std::transform(window, window + context_, out,
                           [](std::byte b) { return std::to_integer<int64_t>(b); });
    }
    return tensor;
  }

 private:
  int64_t Start(const BatchSlice& slice, int64_t sample) const {
    const int64_t index = (slice.training ? slice.batch - 1 : slice.batch) * options_.global_batch + sample;
    const auto starts = [this](int64_t bytes) { return static_cast<uint64_t>(bytes - context_); };
    if (slice.training) {
      return static_cast<int64_t>(RandomBelow(starts(training_bytes_), static_cast<uint64_t>(options_.seed),
                                              kTextStream, static_cast<uint64_t>(index)));
    }
    const int64_t all = options_.validation_batches * options_.global_batch;
    const int64_t bytes = static_cast<int64_t>(file_.bytes().size()) - training_bytes_;
    return training_bytes_ + static_cast<int64_t>(EvenlySpread(static_cast<uint64_t>(index),
                                                               static_cast<uint64_t>(all), starts(bytes)));
  }

  const MappedFile file_;
  const DatasetOptions options_;
  const int64_t context_;
  const int64_t training_bytes_;
};

absl::Status TooShort(const std::string& path, absl::string_view part, int64_t bytes, int64_t window,
                      absl::string_view advice) {
  return absl::InvalidArgumentError(absl::StrCat("data.uri: the ", part, " part of ", path, " has ", bytes,
                                                 " bytes, and one window of context + 1 needs ", window, "; ",
                                                 advice));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const DatasetOptions& options, int64_t context,
                                                  int64_t vocabulary) {
  auto file = MappedFile::Open(options.path);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat("data.uri: ", file.status().message()));
  }
  const absl::Span<const std::byte> bytes = file->bytes();
  if (bytes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("data.uri: ", options.path, " is empty"));
  }
  const auto size = static_cast<int64_t>(bytes.size());
  const auto validation = static_cast<int64_t>(static_cast<double>(size) * options.validation_fraction);
  const int64_t training = size - validation;
  if (training < context + 1) {
    return TooShort(options.path, "training", training, context + 1, "give more text or a smaller context");
  }
  if (options.validation_batches > 0 && validation < context + 1) {
    return TooShort(options.path, "validation", validation, context + 1,
                    "raise data.validationFraction or give more text");
  }
  const auto* outside = std::find_if(bytes.begin(), bytes.end(), [vocabulary](std::byte b) {
    return std::to_integer<int64_t>(b) >= vocabulary;
  });
  if (outside != bytes.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data.uri: byte %d at offset %d of %s is not below %d, the ids that model.config.vocabulary has for "
        "text; raw bytes need 256, and bert one more for [MASK]",
        std::to_integer<int>(*outside), outside - bytes.begin(), options.path, vocabulary));
  }
  return std::make_unique<TextDataset>(*std::move(file), options, context, training);
}

}  // namespace fusion::worker
