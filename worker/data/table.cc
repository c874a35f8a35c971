#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/data/csv.h"
#include "worker/data/dataset.h"
#include "worker/data/row_order.h"
#include "worker/mapped_file.h"

namespace fusion::worker {
namespace {

class TableDataset : public Dataset {
 public:
  explicit TableDataset(RowOrder order) : order_(std::move(order)) {}

  Tensor Read(Placeholder placeholder, const BatchSlice& slice) const override {
    if (placeholder == Placeholder::kInput) {
      return Gather(inputs, slice);
    }
    if (classes.empty()) {
      return Gather(targets, slice);
    }
    Tensor tensor = AllocateTensor(graph::v1::INT64, {slice.count});
    auto* out = reinterpret_cast<int64_t*>(tensor.data.get());
    for (int64_t i = 0; i < slice.count; ++i) {
      out[i] = classes[static_cast<size_t>(order_.Row(slice, slice.first + i))];
    }
    return tensor;
  }

  struct Columns {
    int64_t count = 0;
    std::vector<float> values;  ///< rows x count
  };
  Columns inputs;
  Columns targets;               ///< of a regression
  std::vector<int64_t> classes;  ///< of a classification

 private:
  Tensor Gather(const Columns& columns, const BatchSlice& slice) const {
    Tensor tensor = AllocateTensor(graph::v1::FLOAT32, {slice.count, columns.count});
    float* out = tensor.mutable_floats().data();
    for (int64_t i = 0; i < slice.count; ++i) {
      const float* row = columns.values.data() + order_.Row(slice, slice.first + i) * columns.count;
      out = std::copy(row, row + columns.count, out);
    }
    return tensor;
  }

  const RowOrder order_;
};

// Which columns are inputs and which are targets.
struct Roles {
  std::vector<int64_t> inputs;
  std::vector<int64_t> targets;
};

absl::StatusOr<Roles> AssignRoles(const NumberTable& numbers, const TableOptions& table) {
  const auto columns = static_cast<int64_t>(numbers.columns.size());
  const int64_t wanted = table.class_labels ? 1 : table.outputs;
  Roles roles;
  if (!table.target.empty()) {
    const auto found = std::find(numbers.columns.begin(), numbers.columns.end(), table.target);
    if (found == numbers.columns.end()) {
      return absl::InvalidArgumentError(absl::StrCat("data.target: no column is named '", table.target,
                                                     "'; there are ", absl::StrJoin(numbers.columns, ", ")));
    }
    if (wanted != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.target names one column, but model.config.outputs is ", wanted,
                       "; leave it out to take the last ", wanted, " columns"));
    }
    roles.targets = {found - numbers.columns.begin()};
  } else {
    for (int64_t column = std::max<int64_t>(0, columns - wanted); column < columns; ++column) {
      roles.targets.push_back(column);
    }
  }
  for (int64_t column = 0; column < columns; ++column) {
    if (std::find(roles.targets.begin(), roles.targets.end(), column) == roles.targets.end()) {
      roles.inputs.push_back(column);
    }
  }
  if (static_cast<int64_t>(roles.inputs.size()) != table.inputs) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.config.inputs is ", table.inputs, ", but the table has ", roles.inputs.size(),
                     " input columns beside ", roles.targets.size(), " of targets"));
  }
  return roles;
}

// Two passes in fp64 over the training rows: mean, then population variance about it.
absl::StatusOr<TableDataset::Columns> Select(const NumberTable& numbers,
                                             const std::vector<int64_t>& selection, bool standardize,
                                             int64_t training_rows) {
  TableDataset::Columns columns{.count = static_cast<int64_t>(selection.size()), .values = {}};
  columns.values.resize(static_cast<size_t>(numbers.rows) * selection.size());
  for (size_t i = 0; i < selection.size(); ++i) {
    double mean = 0;
    double scale = 1;
    if (standardize) {
      for (int64_t row = 0; row < training_rows; ++row) {
        mean += numbers.at(row, selection[i]) / static_cast<double>(training_rows);
      }
      double variance = 0;
      double largest = 0;
      for (int64_t row = 0; row < training_rows; ++row) {
        const double value = numbers.at(row, selection[i]);
        variance += (value - mean) * (value - mean) / static_cast<double>(training_rows);
        largest = std::max(largest, std::abs(value));
      }
      // Below this, what varies is the rounding of the mean.
      if (std::sqrt(variance) <= 1e-12 * largest) {
        return absl::InvalidArgumentError(absl::StrCat(
            "column '", numbers.columns[static_cast<size_t>(selection[i])], "' is constant over the ",
            training_rows,
            " training rows and cannot be standardized; drop it, or set data.standardize to false"));
      }
      scale = 1 / std::sqrt(variance);
    }
    for (int64_t row = 0; row < numbers.rows; ++row) {
      columns.values[static_cast<size_t>(row) * selection.size() + i] =
          static_cast<float>((numbers.at(row, selection[i]) - mean) * scale);
    }
  }
  return columns;
}

absl::StatusOr<std::vector<int64_t>> Classes(const NumberTable& numbers, int64_t column, int64_t classes) {
  std::vector<int64_t> labels;
  for (int64_t row = 0; row < numbers.rows; ++row) {
    const double value = numbers.at(row, column);
    if (value != std::floor(value) || value < 0 || value >= static_cast<double>(classes)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", numbers.lines[static_cast<size_t>(row)], ": ",
                                                     value, " in the target column is not a class from 0 to ",
                                                     classes - 1, " (model.config.outputs - 1)"));
    }
    labels.push_back(static_cast<int64_t>(value));
  }
  return labels;
}

absl::StatusOr<std::unique_ptr<Dataset>> FromNumbers(const DatasetOptions& options, const TableOptions& table,
                                                     const NumberTable& numbers) {
  auto roles = AssignRoles(numbers, table);
  if (!roles.ok()) {
    return roles.status();
  }
  auto order = RowOrder::Create(options, numbers.rows);
  if (!order.ok()) {
    return order.status();
  }
  const int64_t training = order->training_rows();
  auto dataset = std::make_unique<TableDataset>(*std::move(order));
  auto inputs = Select(numbers, roles->inputs, table.standardize, training);
  if (!inputs.ok()) {
    return inputs.status();
  }
  dataset->inputs = *std::move(inputs);
  if (table.class_labels) {
    auto classes = Classes(numbers, roles->targets[0], table.outputs);
    if (!classes.ok()) {
      return classes.status();
    }
    dataset->classes = *std::move(classes);
    return dataset;
  }
  auto targets = Select(numbers, roles->targets, table.standardize, training);
  if (!targets.ok()) {
    return targets.status();
  }
  dataset->targets = *std::move(targets);
  return dataset;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenTable(const DatasetOptions& options, const TableOptions& table) {
  auto file = MappedFile::Open(options.path);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat("data.uri: ", file.status().message()));
  }
  const absl::Span<const std::byte> bytes = file->bytes();
  auto numbers = ParseCsv({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!numbers.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.uri: ", options.path, ": ", numbers.status().message()));
  }
  auto dataset = FromNumbers(options, table, *numbers);
  if (!dataset.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(options.path, ": ", dataset.status().message()));
  }
  return dataset;
}

}  // namespace fusion::worker
