#include "worker/data/row_order.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/data/sampling.h"

namespace fusion::worker {

absl::StatusOr<RowOrder> RowOrder::Create(const DatasetOptions& options, int64_t rows) {
  const auto validation = static_cast<int64_t>(static_cast<double>(rows) * options.validation_fraction);
  if (options.validation_batches > 0 && validation == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the validation part of ", rows, " rows is empty; raise data.validationFraction"));
  }
  return RowOrder(options, rows - validation, validation);
}

int64_t RowOrder::Row(const BatchSlice& slice, int64_t sample) const {
  const auto index = static_cast<uint64_t>(
      (slice.training ? slice.batch - 1 : slice.batch) * options_.global_batch + sample);
  if (slice.training) {
    const auto rows = static_cast<uint64_t>(training_rows_);
    return static_cast<int64_t>(
        Permute(index % rows, rows, static_cast<uint64_t>(options_.seed), index / rows));
  }
  const auto all = static_cast<uint64_t>(options_.validation_batches * options_.global_batch);
  return training_rows_ +
         static_cast<int64_t>(EvenlySpread(index, all, static_cast<uint64_t>(validation_rows_)));
}

}  // namespace fusion::worker
