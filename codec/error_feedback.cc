#include "codec/error_feedback.h"

#include <cmath>

namespace fusion::codec {

absl::Status ErrorFeedback::EncodeValue(const Codec& codec, const Layout& layout,
                                        absl::Span<const float> value, absl::Span<std::byte> message,
                                        Mask* mask) {
  absl::Status status = codec::EncodeValue(codec, layout, Correct(value), message, mask);
  if (status.ok()) status = DecodeValue(codec, layout, message, absl::MakeSpan(decoded_), nullptr);
  if (status.ok()) KeepDifference();
  return status;
}

absl::Status ErrorFeedback::EncodeGradient(const Codec& codec, const Layout& layout,
                                           absl::Span<const float> gradient, const Mask& mask,
                                           absl::Span<std::byte> message) {
  absl::Status status = codec::EncodeGradient(codec, layout, Correct(gradient), mask, message);
  if (status.ok()) status = DecodeGradient(codec, layout, message, mask, absl::MakeSpan(decoded_));
  if (!status.ok()) return status;
  if (codec.sparse && !codec.independent_mask) {
    // Makes the difference zero wherever the mask keeps nothing.
    std::vector<float> inside(corrected_.size());
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t i = 0; i < mask.kept_per_row; ++i) {
        const int64_t place = row * layout.columns + mask.columns[row * mask.kept_per_row + i];
        inside[place] = corrected_[place];
      }
    }
    corrected_ = std::move(inside);
  }
  KeepDifference();
  return status;
}

absl::Span<const float> ErrorFeedback::Correct(absl::Span<const float> values) {
  if (residual_.size() != values.size()) residual_.assign(values.size(), 0.0F);
  corrected_.resize(values.size());
  decoded_.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) corrected_[i] = values[i] + residual_[i];
  return corrected_;
}

void ErrorFeedback::KeepDifference() {
  for (size_t i = 0; i < residual_.size(); ++i) {
    const float difference = corrected_[i] - decoded_[i];
    residual_[i] = std::isfinite(difference) ? difference : 0.0F;
  }
}

}  // namespace fusion::codec
