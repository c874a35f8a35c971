// Which tokens a masked language model has to predict, and what it sees in their place: BERT's 15 %, of which
// 80 % are hidden behind [MASK], 10 % replaced by a random token and 10 % left as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/data/dataset.h"

namespace fusion::worker {

/// What cross_entropy_loss ignores.
inline constexpr int64_t kIgnoredLabel = -100;

struct MaskingOptions {
  int64_t seed = 0;
  int64_t global_batch = 1;
  int64_t context = 0;
  int64_t mask_token = 0;  ///< replacements are drawn from the ids below it
};

/// Functions of (seed, batch, sample) alone and not of the text, so that a stage without the file knows how
/// many targets a micro-batch has.
class Masking {
 public:
  explicit Masking(const MaskingOptions& options) : options_(options) {}

  /// By position: whether the token is to be predicted. At least one is.
  std::vector<bool> Chosen(const BatchSlice& slice, int64_t sample) const;

  /// Targets of all samples of the slice.
  int64_t Count(const BatchSlice& slice) const;

  /// What the model sees for a chosen `token`.
  int64_t Shown(const BatchSlice& slice, int64_t sample, int64_t position, int64_t token) const;

 private:
  const MaskingOptions options_;
};

/// `windows`' input with the chosen tokens masked; the label has the chosen tokens, and kIgnoredLabel
/// elsewhere.
std::unique_ptr<Dataset> Masked(std::unique_ptr<Dataset> windows, const MaskingOptions& options);

}  // namespace fusion::worker
