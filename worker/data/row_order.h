// Which row of a file is which sample of a batch, for data sets of rows: each epoch reads the training rows
// in an order of its own; validation samples are spread evenly over the rows at the end.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace fusion::worker {

class RowOrder {
 public:
  /// Keeps the last `options.validation_fraction` of the rows for validation. INVALID_ARGUMENT where
  /// validation batches are to be read and that is no row.
  static absl::StatusOr<RowOrder> Create(const DatasetOptions& options, int64_t rows);

  int64_t training_rows() const { return training_rows_; }

  /// Row of sample `sample` of the slice's global batch.
  int64_t Row(const BatchSlice& slice, int64_t sample) const;

 private:
  RowOrder(const DatasetOptions& options, int64_t training_rows, int64_t validation_rows)
      : options_(options), training_rows_(training_rows), validation_rows_(validation_rows) {}

  DatasetOptions options_;
  int64_t training_rows_;
  int64_t validation_rows_;
};

}  // namespace fusion::worker
