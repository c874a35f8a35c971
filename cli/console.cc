#include "cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"

namespace fusion::cli {
namespace {

bool ShowsStyles(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  if (no_color != nullptr && *no_color != '\0') return false;
  return isatty(descriptor) == 1 && (terminal == nullptr || absl::string_view(terminal) != "dumb");
}

int StandardErrorWidth() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string Styled(bool styled, Style style, absl::string_view text) {
  if (!styled || style == Style::kPlain) return std::string(text);
  const char* code = "0";
  switch (style) {
    case Style::kBold:
      code = "1";
      break;
    case Style::kDim:
      code = "2";
      break;
    case Style::kGood:
      code = "32";
      break;
    case Style::kBad:
      code = "31";
      break;
    case Style::kAccent:
      code = "36";
      break;
    case Style::kPlain:
      break;
  }
  return absl::StrCat("\x1b[", code, "m", text, "\x1b[0m");
}

}  // namespace

Console Console::Standard() {
  return {std::cout,
          std::cerr,
          ShowsStyles(STDOUT_FILENO),
          ShowsStyles(STDERR_FILENO),
          isatty(STDERR_FILENO) == 1,
          &StandardErrorWidth};
}

std::string Console::Err(Style style, absl::string_view text) const {
  return Styled(err_styled, style, text);
}
std::string Console::Out(Style style, absl::string_view text) const {
  return Styled(out_styled, style, text);
}

void Console::Error(absl::string_view text) { err << Err(Style::kBad, "error:") << " " << text << "\n"; }
void Console::Note(absl::string_view text) { err << Err(Style::kDim, text) << "\n"; }

}  // namespace fusion::cli
