#include "worker/data/csv.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace fusion::worker {
namespace {

constexpr size_t kShownCharacters = 40;  // of a cell in a message

std::string Shown(absl::string_view cell) {
  const bool cut = cell.size() > kShownCharacters;
  return absl::StrCat("'", absl::CHexEscape(cell.substr(0, kShownCharacters)), cut ? "…'" : "'");
}

// The cells of one line, quotes removed.
absl::StatusOr<std::vector<std::string>> SplitLine(absl::string_view line) {
  std::vector<std::string> cells;
  while (true) {
    line = absl::StripLeadingAsciiWhitespace(line);
    std::string cell;
    if (absl::ConsumePrefix(&line, "\"")) {
      bool closed = false;
      while (!line.empty() && !closed) {
        if (absl::ConsumePrefix(&line, "\"\"")) {
          cell.push_back('"');
        } else if (absl::ConsumePrefix(&line, "\"")) {
          closed = true;
        } else {
          cell.push_back(line.front());
          line.remove_prefix(1);
        }
      }
      line = absl::StripLeadingAsciiWhitespace(line);
      if (!closed || (!line.empty() && line.front() != ',')) {
        return absl::InvalidArgumentError(
            absl::StrCat("column ", cells.size() + 1, ": a quoted cell does not end before the next comma"));
      }
    } else {
      const size_t end = std::min(line.find(','), line.size());
      cell = std::string(absl::StripAsciiWhitespace(line.substr(0, end)));
      line.remove_prefix(end);
    }
    cells.push_back(std::move(cell));
    if (line.empty()) {
      return cells;
    }
    line.remove_prefix(1);
  }
}

absl::Status AtLine(int64_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

absl::Status CheckHeader(const std::vector<std::string>& names, int64_t line) {
  std::set<std::string> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) {
      return AtLine(line, absl::StrCat("column ", i + 1, " has no name; the first line must be a header"));
    }
    if (!seen.insert(names[i]).second) {
      return AtLine(line, absl::StrCat("two columns are named ", Shown(names[i])));
    }
  }
  return absl::OkStatus();
}

absl::Status AppendRow(const std::vector<std::string>& cells, int64_t line, NumberTable& table) {
  if (cells.size() != table.columns.size()) {
    return AtLine(line, absl::StrCat(cells.size(), " cells where the first line has ", table.columns.size()));
  }
  for (size_t i = 0; i < cells.size(); ++i) {
    double number = 0;
    if (!absl::SimpleAtod(cells[i], &number) || !std::isfinite(number)) {
      return AtLine(line, absl::StrCat("column ", i + 1, " (", Shown(table.columns[i]),
                                       "): ", Shown(cells[i]), " is not a finite number"));
    }
    table.cells.push_back(number);
  }
  table.lines.push_back(line);
  ++table.rows;
  return absl::OkStatus();
}

bool HasNumber(const std::vector<std::string>& cells) {
  double number = 0;
  return std::any_of(cells.begin(), cells.end(),
                     [&number](const std::string& cell) { return absl::SimpleAtod(cell, &number); });
}

std::vector<std::string> NumberedColumns(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 1; i <= count; ++i) {
    names.push_back(absl::StrCat(i));
  }
  return names;
}

}  // namespace

absl::StatusOr<NumberTable> ParseCsv(absl::string_view text, CsvHeader header) {
  absl::ConsumePrefix(&text, "\xef\xbb\xbf");
  if (const size_t zero = text.find('\0'); zero != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("binary data (a zero byte at offset %d); expected CSV", zero));
  }
  NumberTable table;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    absl::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    absl::ConsumeSuffix(&line, "\r");
    if (absl::StripAsciiWhitespace(line).empty()) {
      continue;
    }
    auto cells = SplitLine(line);
    if (!cells.ok()) {
      return AtLine(number, cells.status().message());
    }
    const bool first = table.columns.empty();
    if (first && header == CsvHeader::kOptional && HasNumber(*cells)) {
      table.columns = NumberedColumns(cells->size());
    }
    const bool is_header = table.columns.empty();
    const absl::Status status = is_header ? CheckHeader(*cells, number) : AppendRow(*cells, number, table);
    if (!status.ok()) {
      return status;
    }
    if (is_header) {
      table.columns = *std::move(cells);
    }
  }
  if (table.columns.empty()) {
    return absl::InvalidArgumentError(header == CsvHeader::kRequired ? "no header: the file is empty"
                                                                     : "the file is empty");
  }
  if (table.rows == 0) {
    return absl::InvalidArgumentError("a header but no rows");
  }
  return table;
}

}  // namespace fusion::worker
