// Text to tokens as BERT's models split it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fusion::worker {

/// transformers' BertTokenizer: text is cleaned (controls dropped, all white space alike), ideographs stand
/// alone, case and accents are folded where asked, words end at white space and punctuation, and each word is
/// the longest pieces of the vocabulary from its start, those inside a word written with ##.
class WordPiece {
 public:
  /// `vocabulary` has one token a line, the id being the line's number from 0. Any bytes are safe to pass.
  /// INVALID_ARGUMENT: a token that is there twice, no [PAD] with id 0, or no [UNK], [CLS] or [SEP].
  static absl::StatusOr<WordPiece> Parse(absl::string_view vocabulary, bool lowercase);

  /// Any bytes are safe to pass; what is not UTF-8 is dropped, and what is beyond 64 MiB.
  std::vector<int32_t> Encode(absl::string_view text) const;

  /// [CLS], at most `limit` - 2 tokens, [SEP]. REQUIRES: limit >= 2.
  std::vector<int32_t> EncodeWithEnds(absl::string_view text, size_t limit) const;

  int64_t size() const { return size_; }

 private:
  void AppendWord(absl::string_view word, std::vector<int32_t>& tokens) const;

  absl::flat_hash_map<std::string, int32_t> ids_;
  int64_t size_ = 0;
  int32_t unknown_ = 0;
  int32_t begin_ = 0;
  int32_t end_ = 0;
  bool lowercase_ = true;
};

}  // namespace fusion::worker
