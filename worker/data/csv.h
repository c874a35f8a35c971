// A table of numbers from comma-separated text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fusion::worker {

struct NumberTable {
  std::vector<std::string> columns;  ///< names from the header; numbers from 1 without
  int64_t rows = 0;
  std::vector<double> cells;   ///< row-major, all finite
  std::vector<int64_t> lines;  ///< of each row in the file, from 1

  double at(int64_t row, int64_t column) const {
    return cells[static_cast<size_t>(row) * columns.size() + static_cast<size_t>(column)];
  }
};

/// kOptional: the first line is a header where none of its cells is a number.
enum class CsvHeader { kRequired, kOptional };

/// Reads a header and rows of finite numbers. Cells may be quoted; blank lines and a byte-order mark are
/// skipped, both line ends are taken. Any bytes are safe to pass. INVALID_ARGUMENT with line and column:
/// binary data, no header, a name that is empty or there twice, a row with more or fewer cells than the
/// first line, a cell that is not a finite number, no rows.
absl::StatusOr<NumberTable> ParseCsv(absl::string_view text, CsvHeader header = CsvHeader::kRequired);

}  // namespace fusion::worker
