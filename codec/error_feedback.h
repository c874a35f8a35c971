// Error feedback: what a lossy message left out is added to the next message of the same edge and direction.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "codec/codec.h"

namespace fusion::codec {

/// The sender's state of one edge and direction. Starts with nothing left out. A message of another size than
/// the one before also starts anew: what was left out belongs to other places. Part of a checkpoint. Not
/// thread-safe.
class ErrorFeedback {
 public:
  /// As the functions in codec.h, of value + residual. Afterwards the residual is what the receiver does not
  /// get.
  absl::Status EncodeValue(const Codec& codec, const Layout& layout, absl::Span<const float> value,
                           absl::Span<std::byte> message, Mask* mask);

  /// Where the value's mask is reused, the gradient outside of it is zero by definition, so nothing is left
  /// out there.
  absl::Status EncodeGradient(const Codec& codec, const Layout& layout, absl::Span<const float> gradient,
                              const Mask& mask, absl::Span<std::byte> message);

  /// For checkpoints; empty before the first message.
  absl::Span<const float> residual() const { return residual_; }
  void Restore(std::vector<float> residual) { residual_ = std::move(residual); }

 private:
  /// residual_ + values, in scratch memory.
  absl::Span<const float> Correct(absl::Span<const float> values);
  /// Keeps corrected_ - decoded_; a non-finite difference is dropped, it would never go away.
  void KeepDifference();

  std::vector<float> residual_;
  std::vector<float> corrected_;
  std::vector<float> decoded_;
};

}  // namespace fusion::codec
