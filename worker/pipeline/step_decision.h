// One step is one decision: from the sums of squares of all parameters' gradients follows, alike on every
// stage, what the update does. They travel along the tree of graph.proto's StepDecision.
#pragma once

#include <vector>

#include "fusion/v1alpha1/api.pb.h"
#include "worker/engine/engine.h"
#include "worker/tensor.h"

namespace fusion::worker {

/// Sum over parameters in ascending position, so that it has the same bits for any cut.
double SumOfSquares(std::vector<GradientNorm> norms);

/// What training.gradientClipping makes of gradients whose sum of squares over the job is `squared_norm`:
/// min(1, maxNorm / (norm + 1e-6)), as PyTorch's clip_grad_norm_; 1 without it. REQUIRES: finite.
double ClippingFactor(const v1alpha1::Training& training, double squared_norm);

/// The step's update, for all stages: with learning rate and clipping; skipped where a gradient of any stage
/// is not finite.
UpdateOptions DecideUpdate(const v1alpha1::Training& training, int64_t step, double squared_norm);

/// As they travel: float64 [norms, 2], and float64 [1].
Tensor NormsMessage(const std::vector<GradientNorm>& norms);
std::vector<GradientNorm> NormsOf(const Tensor& message);
Tensor DecisionMessage(double squared_norm);
double SquaredNormOf(const Tensor& message);

}  // namespace fusion::worker
