// The family resnet: residual networks for images, as torchvision builds them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::graph {

/// Operators have torchvision's module paths (conv1, layer1.0.bn1, fc); a module that a block uses again gets
/// the number of the use (layer1.0.relu, layer1.0.relu.1), the sum of a block is layer1.0.add. Variables have
/// torchvision's names, shapes and initial values, BatchNorm's statistics among them. `input` is float32
/// [batch, channels, imageSize, imageSize], `label` int64 [batch].
absl::StatusOr<v1::Graph> BuildResnet(const v1alpha1::Model& model);
absl::StatusOr<std::string> ResnetConfigJson(const v1alpha1::Model& model);

}  // namespace fusion::graph
