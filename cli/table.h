// Text tables, as kubectl prints them: columns two spaces apart, headers in capitals.
#pragma once

#include <string>
#include <vector>

namespace fusion::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string header;
  Align align = Align::kLeft;
};

/// Rows have as many cells as there are columns; cells are one line of text each. Widths count characters of
/// UTF-8.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  /// Lines end with a newline and without trailing spaces.
  std::string Render() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Characters of UTF-8 in the text.
int DisplayWidth(const std::string& text);

}  // namespace fusion::cli
