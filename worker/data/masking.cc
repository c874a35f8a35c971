#include "worker/data/masking.h"

#include <algorithm>
#include <utility>

#include "worker/data/sampling.h"

namespace fusion::worker {
namespace {

constexpr uint64_t kChosenPercent = 15;
// Of ten chosen tokens.
constexpr uint64_t kHidden = 8;
constexpr uint64_t kReplaced = 1;

enum class Draw : uint64_t { kChosen, kAtLeast, kFate, kReplacement };

/// Apart from those of windows and tables, and training's from validation's.
uint64_t Stream(const BatchSlice& slice, Draw draw) {
  return 0x6d61736bULL << 8 | (slice.training ? 0x10U : 0U) | static_cast<uint64_t>(draw);
}

class MaskedDataset : public Dataset {
 public:
  MaskedDataset(std::unique_ptr<Dataset> windows, const MaskingOptions& options)
      : windows_(std::move(windows)), masking_(options), context_(options.context) {}

  Tensor Read(Placeholder placeholder, const BatchSlice& slice) const override {
    Tensor tensor = windows_->Read(Placeholder::kInput, slice);
    auto* tokens = reinterpret_cast<int64_t*>(tensor.data.get());
    for (int64_t i = 0; i < slice.count; ++i) {
      const int64_t sample = slice.first + i;
      const std::vector<bool> chosen = masking_.Chosen(slice, sample);
      for (int64_t t = 0; t < context_; ++t) {
        int64_t& token = tokens[i * context_ + t];
        const bool is_target = chosen[static_cast<size_t>(t)];
        if (placeholder == Placeholder::kLabel) {
          token = is_target ? token : kIgnoredLabel;
        } else if (is_target) {
          token = masking_.Shown(slice, sample, t, token);
        }
      }
    }
    return tensor;
  }

 private:
  const std::unique_ptr<Dataset> windows_;
  const Masking masking_;
  const int64_t context_;
};

}  // namespace

std::vector<bool> Masking::Chosen(const BatchSlice& slice, int64_t sample) const {
  const auto seed = static_cast<uint64_t>(options_.seed);
  const auto index = static_cast<uint64_t>(SampleIndex(slice, options_.global_batch) + sample);
  const auto context = static_cast<uint64_t>(options_.context);
  std::vector<bool> chosen(context);
  bool any = false;
  for (uint64_t t = 0; t < context; ++t) {
    chosen[t] = RandomBelow(100, seed, Stream(slice, Draw::kChosen), index * context + t) < kChosenPercent;
    any = any || chosen[t];
  }
  if (!any) chosen[RandomBelow(context, seed, Stream(slice, Draw::kAtLeast), index)] = true;
  return chosen;
}

int64_t Masking::Count(const BatchSlice& slice) const {
  int64_t count = 0;
  for (int64_t i = 0; i < slice.count; ++i) {
    const std::vector<bool> chosen = Chosen(slice, slice.first + i);
    count += std::count(chosen.begin(), chosen.end(), true);
  }
  return count;
}

int64_t Masking::Shown(const BatchSlice& slice, int64_t sample, int64_t position, int64_t token) const {
  const auto seed = static_cast<uint64_t>(options_.seed);
  const int64_t index = SampleIndex(slice, options_.global_batch) + sample;
  const auto counter = static_cast<uint64_t>(index * options_.context + position);
  const uint64_t fate = RandomBelow(10, seed, Stream(slice, Draw::kFate), counter);
  if (fate < kHidden) return options_.mask_token;
  if (fate >= kHidden + kReplaced) return token;
  return static_cast<int64_t>(RandomBelow(static_cast<uint64_t>(options_.mask_token), seed,
                                          Stream(slice, Draw::kReplacement), counter));
}

std::unique_ptr<Dataset> Masked(std::unique_ptr<Dataset> windows, const MaskingOptions& options) {
  return std::make_unique<MaskedDataset>(std::move(windows), options);
}

}  // namespace fusion::worker
