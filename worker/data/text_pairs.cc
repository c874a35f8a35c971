#include "worker/data/text_pairs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "worker/data/dataset.h"
#include "worker/data/sampling.h"
#include "worker/data/word_piece.h"
#include "worker/mapped_file.h"

namespace fusion::worker {
namespace {

constexpr uint64_t kPairStream = 0x7061697273;  // apart from the windows' and the table's

TextPair Halves(absl::string_view record) {
  size_t cut = record.size() / 2;
  for (size_t away = 0; away <= record.size() / 2; ++away) {
    const size_t before = record.size() / 2 - away;
    const size_t after = record.size() / 2 + away;
    if (absl::ascii_isspace(static_cast<unsigned char>(record[before]))) {
      cut = before;
      break;
    }
    if (after < record.size() && absl::ascii_isspace(static_cast<unsigned char>(record[after]))) {
      cut = after;
      break;
    }
  }
  return {absl::StripTrailingAsciiWhitespace(record.substr(0, cut)),
          absl::StripLeadingAsciiWhitespace(record.substr(cut))};
}

class PairDataset : public Dataset {
 public:
  PairDataset(const DatasetOptions& options, int64_t context) : options_(options), context_(context) {}

  /// Texts of a pair, first and second in turn, cut at `context`.
  void Append(absl::Span<const int32_t> tokens) {
    const size_t kept = std::min(tokens.size(), static_cast<size_t>(context_));
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(kept));
    ends_.push_back(tokens_.size());
  }

  void SetTraining(int64_t pairs) { training_ = pairs; }
  int64_t pairs() const { return static_cast<int64_t>(ends_.size() / 2); }

  Tensor Read(Placeholder placeholder, const BatchSlice& slice) const override {
    Tensor tensor = AllocateTensor(graph::v1::INT64, {slice.count, context_});
    auto* out = reinterpret_cast<int64_t*>(tensor.data.get());
    std::fill_n(out, slice.count * context_, kPaddingToken);
    for (int64_t i = 0; i < slice.count; ++i) {
      const auto text = static_cast<size_t>(2 * Pair(slice, slice.first + i) +
                                            (placeholder == Placeholder::kLabel ? 1 : 0));
      const size_t begin = text == 0 ? 0 : ends_[text - 1];
      std::copy(tokens_.begin() + static_cast<ptrdiff_t>(begin),
                tokens_.begin() + static_cast<ptrdiff_t>(ends_[text]), out + i * context_);
    }
    return tensor;
  }

 private:
  int64_t Pair(const BatchSlice& slice, int64_t sample) const {
    const auto index = static_cast<uint64_t>(SampleIndex(slice, options_.global_batch) + sample);
    if (slice.training) {
      const auto size = static_cast<uint64_t>(training_);
      return static_cast<int64_t>(
          Permute(index % size, size, static_cast<uint64_t>(options_.seed), kPairStream + index / size));
    }
    const auto all = static_cast<uint64_t>(options_.validation_batches * options_.global_batch);
    return training_ +
           static_cast<int64_t>(EvenlySpread(index, all, static_cast<uint64_t>(pairs() - training_)));
  }

  const DatasetOptions options_;
  const int64_t context_;
  int64_t training_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<size_t> ends_;
};

/// Bytes that no text may have, as they are not ids of the model or mean padding.
absl::Status CheckBytes(absl::string_view text, int64_t vocabulary, const std::string& path) {
  for (size_t i = 0; i < text.size(); ++i) {
    const int byte = static_cast<unsigned char>(text[i]);
    if (byte == kPaddingToken) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.uri: a zero byte at offset %d of %s; in pairs of texts 0 is padding", i, path));
    }
    if (byte >= vocabulary) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "data.uri: byte %d at offset %d of %s is not below model.config.vocabulary %d; raw bytes need 256",
          byte, i, path, vocabulary));
    }
  }
  return absl::OkStatus();
}

std::vector<int32_t> BytesOf(absl::string_view text) {
  std::vector<int32_t> tokens(text.size());
  std::transform(text.begin(), text.end(), tokens.begin(),
                 [](char c) { return static_cast<unsigned char>(c); });
  return tokens;
}

absl::StatusOr<WordPiece> OpenTokenizer(const PairOptions& pairs) {
  auto file = MappedFile::Open(pairs.tokenizer);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat("data.tokenizer.uri: ", file.status().message()));
  }
  const absl::Span<const std::byte> bytes = file->bytes();
  auto tokenizer =
      WordPiece::Parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, pairs.lowercase);
  if (!tokenizer.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.tokenizer.uri: ", pairs.tokenizer, ": ", tokenizer.status().message()));
  }
  if (tokenizer->size() > pairs.vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("data.tokenizer.uri: ", pairs.tokenizer, " has ",
                                                   tokenizer->size(), " tokens, model.config.vocabulary is ",
                                                   pairs.vocabulary));
  }
  if (pairs.context < 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.config.context: is ", pairs.context, "; [CLS], a token and [SEP] need 3"));
  }
  return tokenizer;
}

absl::Status Fill(absl::string_view text, const std::vector<TextPair>& found, const PairOptions& pairs,
                  const std::string& path, PairDataset& dataset) {
  if (pairs.tokenizer.empty()) {
    if (auto status = CheckBytes(text, pairs.vocabulary, path); !status.ok()) return status;
    for (const TextPair& pair : found) {
      for (const absl::string_view half : {pair.first, pair.second}) {
        dataset.Append(BytesOf(half));
      }
    }
    return absl::OkStatus();
  }
  const auto tokenizer = OpenTokenizer(pairs);
  if (!tokenizer.ok()) return tokenizer.status();
  for (const TextPair& pair : found) {
    for (const absl::string_view half : {pair.first, pair.second}) {
      dataset.Append(tokenizer->EncodeWithEnds(half, static_cast<size_t>(pairs.context)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<TextPair> SplitPairs(absl::string_view text) {
  std::vector<TextPair> pairs;
  const auto add = [&pairs](absl::string_view record) {
    record = absl::StripAsciiWhitespace(record);
    if (record.size() >= 2) pairs.push_back(Halves(record));
  };
  size_t record = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    absl::string_view line = text.substr(at, end - at);
    absl::ConsumeSuffix(&line, "\r");
    if (line == "%") {
      add(text.substr(record, at - record));
      record = end;
    }
    at = end + 1;
  }
  add(text.substr(std::min(record, text.size())));
  return pairs;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenTextPairs(const DatasetOptions& options,
                                                       const PairOptions& pairs) {
  auto file = MappedFile::Open(options.path);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat("data.uri: ", file.status().message()));
  }
  const absl::Span<const std::byte> bytes = file->bytes();
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::vector<TextPair> found = SplitPairs(text);
  if (found.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.uri: ", options.path, " has ", found.size(),
                     " records of two characters or more between lines %; pairs of texts need at least 2"));
  }
  const auto count = static_cast<int64_t>(found.size());
  const auto validation = static_cast<int64_t>(static_cast<double>(count) * options.validation_fraction);
  if (options.validation_batches > 0 && validation == 0) {
    return absl::InvalidArgumentError(absl::StrCat("data.uri: the validation part of ", count, " records of ",
                                                   options.path, " is empty; raise data.validationFraction"));
  }
  auto dataset = std::make_unique<PairDataset>(options, pairs.context);
  dataset->SetTraining(count - validation);
  if (auto status = Fill(text, found, pairs, options.path, *dataset); !status.ok()) return status;
  return dataset;
}

}  // namespace fusion::worker
