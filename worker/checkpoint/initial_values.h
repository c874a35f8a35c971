// model.initFrom: a model's variables from somebody's safetensors files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/wanted_tensors.h"
#include "worker/engine/engine.h"

namespace fusion::worker {

/// Sets the engine's variables from `path`: a safetensors file, an index of shards, a folder with one of them
/// (as transformers saves models), or a step-N folder of ours, whose manifest is checked. wanted_tensors.h
/// says which tensor belongs to which variable and what is converted. `model` is the whole model's variables,
/// so that every stage says the same. Returns what was left out on either side; errors begin with
/// model.initFrom and the path.
absl::StatusOr<TensorMatch> InitializeFrom(const std::string& path, const std::vector<WantedTensor>& model,
                                           Engine& engine);

}  // namespace fusion::worker
