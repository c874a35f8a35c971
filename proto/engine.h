// Which engine computes the stages of a compnode: an annotation of it.
#pragma once

#include <string>

#include "fusion/v1alpha1/api.pb.h"

namespace fusion::api {

inline constexpr char kEngineAnnotation[] = "fusion.dev/engine";
inline constexpr char kTorchEngine[] = "torch";  ///< the default: fusion-worker with LibTorch
inline constexpr char kJaxEngine[] = "jax";      ///< fusion-jax-worker, on CPUs

inline std::string EngineOf(const v1alpha1::Compnode& compnode) {
  const auto& annotations = compnode.metadata().annotations();
  const auto found = annotations.find(kEngineAnnotation);
  return found == annotations.end() ? kTorchEngine : found->second;
}

}  // namespace fusion::api
