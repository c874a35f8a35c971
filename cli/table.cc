#include "cli/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace fusion::cli {

int DisplayWidth(const std::string& text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string Table::Render() const {
  std::vector<int> widths;
  widths.reserve(columns_.size());
  for (const Column& column : columns_) widths.push_back(DisplayWidth(column.header));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string out;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& cell = cell_of(i);
      const std::string padding(static_cast<size_t>(widths[i] - DisplayWidth(cell)), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", columns_[i].align == Align::kRight ? padding : "", cell,
                      columns_[i].align == Align::kLeft ? padding : "");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  };
  add_line([&](size_t i) -> const std::string& { return columns_[i].header; });
  for (const auto& row : rows_) {
    add_line([&](size_t i) -> const std::string& { return row[i]; });
  }
  return out;
}

}  // namespace fusion::cli
