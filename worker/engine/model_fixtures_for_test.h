// Small models and seeded data for them.
#pragma once

#include <cstdint>
#include <vector>

#include "fusion/v1alpha1/api.pb.h"
#include "worker/engine/engine_test_support.h"

namespace fusion::worker {

/// 5 inputs, hidden layers of 8 and 6 with tanh, 3 outputs.
v1alpha1::Model SmallMlp(v1alpha1::Loss::Type loss);

/// 2 layers, 2 heads, width 16, context 8, vocabulary 13.
/// Images of 8 x 8 with two channels, in stages of one and two blocks.
v1alpha1::Model SmallResnet(bool bottleneck, v1alpha1::ModelConfig::Stem stem);
v1alpha1::Model SmallGpt2(double dropout);

/// 2 layers, 2 heads, width 16, context 8, vocabulary 13. One tower predicts masked tokens, two compare
/// pairs.
v1alpha1::Model SmallBert(int towers, double dropout);

/// Three micro-batches of unequal size, weighted by it (masked language modelling: by the targets), the same
/// for the same step.
std::vector<MicroBatch> BatchesFor(const v1alpha1::Model& model, int64_t step);

}  // namespace fusion::worker
