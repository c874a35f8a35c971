#include "absl/strings/str_split.h"
#include "proto/validation.h"

namespace fusion::api {
namespace {

bool MatchesOne(absl::string_view glob, absl::string_view name) {
  size_t g = 0;
  size_t n = 0;
  size_t star = absl::string_view::npos;  // the last * seen, and where it stopped to match
  size_t star_name = 0;
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      star_name = n;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == name[n])) {
      ++g;
      ++n;
    } else if (star != absl::string_view::npos) {
      g = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

}  // namespace

bool MatchesGlob(absl::string_view glob, absl::string_view name) {
  for (absl::string_view alternative : absl::StrSplit(glob, '|')) {
    if (MatchesOne(alternative, name)) return true;
  }
  return false;
}

}  // namespace fusion::api
