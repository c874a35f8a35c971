#include "worker/engine/torch/torch_engine.h"

namespace fusion::worker::engine {

absl::StatusOr<MachineMeasurement> TorchEngine::Measure(const graph::v1::Graph& /*graph*/,
                                                        int64_t /*samples*/) {
  return absl::UnimplementedError("measure");
}

}  // namespace fusion::worker::engine
