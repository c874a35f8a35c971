// Where fusionctl writes, and what is known of it.
#pragma once

#include <iosfwd>
#include <string>

#include "absl/strings/string_view.h"

namespace fusion::cli {

enum class Style { kPlain, kBold, kDim, kGood, kBad, kAccent };

/// Results go to `out`, progress and errors to `err`. Not thread-safe.
struct Console {
  std::ostream& out;
  std::ostream& err;
  bool out_styled = false;       ///< a terminal, and NO_COLOR is not set
  bool err_styled = false;       ///< likewise
  bool err_terminal = false;     ///< lines may be overwritten
  int (*err_width)() = nullptr;  ///< columns of the terminal now; null: unknown

  /// Of the standard streams.
  static Console Standard();

  /// The text in the style, where `err` shows styles.
  std::string Err(Style style, absl::string_view text) const;
  std::string Out(Style style, absl::string_view text) const;

  /// "error: text" on err.
  void Error(absl::string_view text);
  void Note(absl::string_view text);
};

}  // namespace fusion::cli
