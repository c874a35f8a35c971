#include "worker/data/word_piece.h"

#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace fusion::worker {
namespace {

constexpr size_t kLongestWord = 100;  // in characters; a longer one is [UNK]
constexpr UChar32 kReplacement = 0xFFFD;
constexpr size_t kLongestText = 1 << 26;  // in bytes; what comes after does not count

bool IsControl(UChar32 c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const int category = u_charType(c);
  return category == U_CONTROL_CHAR || category == U_FORMAT_CHAR || category == U_PRIVATE_USE_CHAR ||
         category == U_SURROGATE || category == U_UNASSIGNED;
}

bool IsSpace(UChar32 c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || u_charType(c) == U_SPACE_SEPARATOR;
}

bool IsPunctuation(UChar32 c) {
  // ASCII's symbols count, though Unicode calls some of them otherwise: ^, $, `.
  if ((c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126)) {
    return true;
  }
  return (U_GET_GC_MASK(c) & U_GC_P_MASK) != 0;
}

/// The blocks of CJK ideographs that BERT names.
bool IsIdeograph(UChar32 c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B820 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/// Lower case without accents.
icu::UnicodeString Folded(const icu::UnicodeString& text) {
  icu::UnicodeString lower = text;
  lower.toLower(icu::Locale::getRoot());
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* decomposition = icu::Normalizer2::getNFDInstance(error);
  if (U_FAILURE(error)) return lower;
  const icu::UnicodeString apart = decomposition->normalize(lower, error);
  if (U_FAILURE(error)) return lower;
  icu::UnicodeString bare;
  for (int32_t i = 0; i < apart.length(); i = apart.moveIndex32(i, 1)) {
    if (u_charType(apart.char32At(i)) != U_NON_SPACING_MARK) bare.append(apart.char32At(i));
  }
  return bare;
}

std::vector<std::string> Words(absl::string_view text, bool lowercase) {
  text = text.substr(0, kLongestText);
  icu::UnicodeString whole = icu::UnicodeString::fromUTF8({text.data(), static_cast<int32_t>(text.size())});
  if (lowercase) whole = Folded(whole);
  std::vector<std::string> words;
  icu::UnicodeString word;
  const auto end_word = [&] {
    if (word.isEmpty()) return;
    words.emplace_back();
    word.toUTF8String(words.back());
    word.remove();
  };
  for (int32_t i = 0; i < whole.length(); i = whole.moveIndex32(i, 1)) {
    const UChar32 c = whole.char32At(i);
    if (IsSpace(c)) {
      end_word();
    } else if (c == 0 || c == kReplacement || IsControl(c)) {
      continue;
    } else if (IsPunctuation(c) || IsIdeograph(c)) {
      end_word();
      word.append(c);
      end_word();
    } else {
      word.append(c);
    }
  }
  end_word();
  return words;
}

/// Characters of UTF-8.
size_t Characters(absl::string_view word) {
  return static_cast<size_t>(
      std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

absl::StatusOr<WordPiece> WordPiece::Parse(absl::string_view vocabulary, bool lowercase) {
  WordPiece result;
  result.lowercase_ = lowercase;
  while (!vocabulary.empty()) {
    const size_t end = std::min(vocabulary.find('\n'), vocabulary.size());
    absl::string_view line = vocabulary.substr(0, end);
    vocabulary.remove_prefix(std::min(end + 1, vocabulary.size()));
    absl::ConsumeSuffix(&line, "\r");
    constexpr int64_t kMostTokens = 10'000'000;
    if (result.size_ == kMostTokens) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMostTokens, " lines"));
    }
    const auto [found, is_new] =
        result.ids_.try_emplace(std::string(line), static_cast<int32_t>(result.size_));
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", result.size_ + 1, " has the same token as line ", found->second + 1));
    }
    ++result.size_;
  }
  const struct {
    const char* name;
    int32_t* id;
  } special[] = {{"[UNK]", &result.unknown_}, {"[CLS]", &result.begin_}, {"[SEP]", &result.end_}};
  for (const auto& [name, id] : special) {
    const auto found = result.ids_.find(name);
    if (found == result.ids_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("no line is ", name, "; give the vocab.txt of a BERT"));
    }
    *id = found->second;
  }
  const auto padding = result.ids_.find("[PAD]");
  if (padding == result.ids_.end() || padding->second != 0) {
    return absl::InvalidArgumentError("the first line must be [PAD]; padding has id 0");
  }
  return result;
}

void WordPiece::AppendWord(absl::string_view word, std::vector<int32_t>& tokens) const {
  const size_t before = tokens.size();
  std::string piece;
  for (size_t at = 0; at < word.size();) {
    const int32_t* id = nullptr;
    size_t end = word.size();
    for (; id == nullptr && end > at; end = id == nullptr ? end - 1 : end) {
      piece.assign(at > 0 ? "##" : "");
      piece.append(word.data() + at, end - at);
      if (const auto found = ids_.find(piece); found != ids_.end()) id = &found->second;
    }
    if (id == nullptr) {
      tokens.resize(before);
      tokens.push_back(unknown_);
      return;
    }
    tokens.push_back(*id);
    at = end;
  }
}

std::vector<int32_t> WordPiece::Encode(absl::string_view text) const {
  std::vector<int32_t> tokens;
  for (const std::string& word : Words(text, lowercase_)) {
    if (Characters(word) > kLongestWord) {
      tokens.push_back(unknown_);
    } else {
      AppendWord(word, tokens);
    }
  }
  return tokens;
}

std::vector<int32_t> WordPiece::EncodeWithEnds(absl::string_view text, size_t limit) const {
  std::vector<int32_t> tokens = Encode(text);
  tokens.resize(std::min(tokens.size(), limit - 2));
  tokens.insert(tokens.begin(), begin_);
  tokens.push_back(end_);
  return tokens;
}

}  // namespace fusion::worker
