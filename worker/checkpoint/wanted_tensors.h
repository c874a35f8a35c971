// Which tensor of a file belongs to which variable of a model, and what to say where that does not work out.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/engine/engine.h"

namespace fusion::worker {

/// A variable as checkpoints name it.
struct WantedTensor {
  std::string name;
  DataType dtype = graph::v1::FLOAT32;
  std::vector<int64_t> shape;
  bool trainable = true;
};

/// Those of the engine's stage.
std::vector<WantedTensor> WantedBy(const Engine& engine);

/// How freely names and types are taken.
enum class Matching {
  kExact,     ///< the names and dtypes that we write ourselves; each tensor of the file has a variable
  kPublished  ///< the rules below
};

/// Published files spell names differently. For a variable NAME the tensor is taken that is first found of
///   1. NAME;
///   2. BASE, which is NAME without a leading "transformer." or "bert.", and "transformer.", "bert.",
///   "model.",
///      "module.", "module.transformer.", "module.bert." before BASE;
///   3. these with "LayerNorm.gamma" for "LayerNorm.weight" and "LayerNorm.beta" for "LayerNorm.bias";
///   4. these with "cls.predictions.decoder.bias" for "cls.predictions.bias", and the other way round.
/// No tensor is taken twice; NAME itself comes first for all variables. FLOAT16, BFLOAT16, FLOAT32 and
/// FLOAT64 are converted, integers widened. A buffer named num_batches_tracked may be missing: old files have
/// none.
struct TensorMatch {
  std::map<std::string, std::string> tensors;  ///< variable -> tensor of the file
  std::vector<std::string> unused;             ///< tensors of the file
  std::vector<std::string> unset;              ///< variables that keep their initial value
};

/// INVALID_ARGUMENT lists, as "missing: …; misshaped: …; of no variable: …", what does not fit in `path`.
absl::StatusOr<TensorMatch> MatchTensors(const std::string& path,
                                         const std::map<std::string, TensorView>& tensors,
                                         const std::vector<WantedTensor>& model, Matching matching);

/// "a, b, c and 17 more": at most `limit` of them.
std::string ListText(const std::vector<std::string>& items, size_t limit = 20);

}  // namespace fusion::worker
