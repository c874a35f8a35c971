// What a job's `input` and `label` operators are fed with. A stage that hosts one of them opens the data
// itself and reads what it needs; all stages see the same batches because a batch depends on (seed, step)
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fusion/v1alpha1/api.pb.h"
#include "worker/tensor.h"

namespace fusion::worker {

enum class Placeholder { kInput, kLabel };

/// Samples [first, first + count) of one global batch.
struct BatchSlice {
  bool training = true;
  int64_t batch = 0;  ///< training: the step, from 1; validation: the batch, from 0
  int64_t first = 0;
  int64_t count = 0;
};

/// Number of the slice's global batch's first sample, counted over all batches of its kind.
inline int64_t SampleIndex(const BatchSlice& slice, int64_t global_batch) {
  return (slice.training ? slice.batch - 1 : slice.batch) * global_batch;
}

/// What shapes the batches, beside the file itself.
struct DatasetOptions {
  std::string path = {};
  double validation_fraction = 0.05;  ///< of the samples or bytes, at the end
  int64_t seed = 0;
  int64_t global_batch = 1;
  int64_t validation_batches = 0;  ///< 0: the validation part is never read
};

/// Thread-safe after construction.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// A new tensor whose first dimension is `slice.count`. REQUIRES: the slice lies inside the global batch;
  /// validation batches are below DatasetOptions.validation_batches.
  virtual Tensor Read(Placeholder placeholder, const BatchSlice& slice) const = 0;
};

/// Raw bytes. Training samples are windows of context + 1 bytes at random places of the training part;
/// validation samples are spread evenly over the validation part. input = the first `context` bytes, label =
/// the last, both int64 [B, context]. Errors: missing or empty file, a part shorter than one window, a byte
/// that is not below `vocabulary`.
absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const DatasetOptions& options, int64_t context,
                                                  int64_t vocabulary);

/// Masked language modelling over the windows of OpenText: the last id of the vocabulary is [MASK], bytes are
/// below it. input = the window with some tokens hidden, label = those tokens and -100 elsewhere
/// (worker/data/masking.h). Errors: those of OpenText.
absl::StatusOr<std::unique_ptr<Dataset>> OpenMaskedText(const DatasetOptions& options, int64_t context,
                                                        int64_t vocabulary);

/// What fills a text up to `context` tokens.
inline constexpr int64_t kPaddingToken = 0;

struct PairOptions {
  int64_t context = 0;
  int64_t vocabulary = 0;
  std::string tokenizer =
      {};  ///< path of a vocab.txt (worker/data/word_piece.h); empty: bytes are the tokens
  bool lowercase = true;
};

/// Pairs of worker/data/text_pairs.h. Each epoch reads the training pairs in an order of its own, validation
/// pairs are spread evenly over the validation part. input = the first texts, label = the second, both int64
/// [B, context], cut to the context and padded with kPaddingToken. Errors: a missing file, fewer than two
/// records, an empty validation part, a byte that is 0 or not below `vocabulary`, a tokenizer that does not
/// fit.
absl::StatusOr<std::unique_ptr<Dataset>> OpenTextPairs(const DatasetOptions& options,
                                                       const PairOptions& pairs);

/// Made from the seed, for any family: chains of tokens (gpt2, bert), pairs of texts on one topic (bert with
/// two towers), columns with a function of them (mlp), patterns with noise (resnet); for a graph by its sizes
/// in model.config. Every batch is new.
absl::StatusOr<std::unique_ptr<Dataset>> OpenSynthetic(const DatasetOptions& options,
                                                       const v1alpha1::Model& model);

struct TableOptions {
  std::string target =
      {};  ///< the target column; empty: the last `outputs` columns (the last one for classes)
  bool standardize =
      true;  ///< scale columns, targets of a regression too, to mean 0 and variance 1 of the training part
  int64_t inputs = 0;         ///< input columns: all that are not targets
  int64_t outputs = 0;        ///< target columns, or classes
  bool class_labels = false;  ///< the target is a class in [0, outputs)
};

/// CSV with a header. Each epoch reads the training rows in an order of its own; validation rows are spread
/// evenly over the validation part. input = float32 [B, inputs]; label = float32 [B, outputs], or int64 [B]
/// of classes. Errors name line and column.
absl::StatusOr<std::unique_ptr<Dataset>> OpenTable(const DatasetOptions& options, const TableOptions& table);

struct ImageOptions {
  int64_t channels = 0;
  int64_t image_size = 0;  ///< height and width
  int64_t classes = 0;
  double scale = 1;  ///< factor of the pixels

  int64_t pixels() const { return channels * image_size * image_size; }
};

/// CSV, or gzip of it, with or without a header: a row is the pixels of an image, by channel, row and column,
/// then its class. Batches are chosen as a table's. input = float32 [B, channels, imageSize, imageSize];
/// label = int64 [B]. Errors name line and column.
absl::StatusOr<std::unique_ptr<Dataset>> OpenImages(const DatasetOptions& options,
                                                    const ImageOptions& images);
/// The same from a file's bytes, which may be any.
absl::StatusOr<std::unique_ptr<Dataset>> ParseImages(absl::string_view bytes, const DatasetOptions& options,
                                                     const ImageOptions& images);

/// The dataset of `spec.data`, with relative paths seen from `base_directory`. Errors name the field.
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const v1alpha1::FusionJobSpec& spec,
                                                     const std::string& base_directory);

/// Counted targets of a slice, by which the losses of a step's micro-batches are weighted: masked positions
/// for masked language modelling, else samples. Reads no file, so that the stage of the loss needs none.
using TargetCounter = std::function<int64_t(const BatchSlice&)>;
TargetCounter TargetsOf(const v1alpha1::FusionJobSpec& spec);

/// Global batches in one validation: 0 where the job has none.
int64_t ValidationBatches(const v1alpha1::FusionJobSpec& spec);

}  // namespace fusion::worker
