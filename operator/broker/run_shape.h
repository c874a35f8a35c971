// What of a job's spec shapes its run, as numbers.
#pragma once

#include <cstdint>

#include "fusion/v1alpha1/api.pb.h"

namespace fusion::op {

struct RunShape {
  int stages = 0;
  bool evaluate = false;  ///< one validation, no steps, no checkpoint
  int64_t steps = 0;
  int64_t samples_per_step = 0;
  int64_t tokens_per_sample = 0;  ///< 0: the data is no text
  bool validates = false;
  int64_t validate_every = 0;    ///< 0: after the last step only
  int64_t checkpoint_every = 0;  ///< 0: after the last step only

  /// A validation belongs to this step.
  bool ValidatesAfter(int64_t step) const { return validates && FallsOn(step, validate_every); }
  bool CheckpointsAfter(int64_t step) const { return !evaluate && FallsOn(step, checkpoint_every); }

 private:
  bool FallsOn(int64_t step, int64_t every) const {
    return step == steps || (every > 0 && step % every == 0);
  }
};

RunShape ShapeOf(const v1alpha1::FusionJobSpec& spec, int stages);

}  // namespace fusion::op
