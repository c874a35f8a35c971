// A job's training inside this process, at full speed, without a broker.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"
#include "worker/tensor.h"

namespace fusion::bench {

/// What a job trains on: its spec, and the folder that relative paths are seen from. Seed, batch, optimizer,
/// data and number of validation batches are the spec's; the number of steps is the caller's.
struct JobSetup {
  v1alpha1::FusionJobSpec spec;
  std::string base_directory;
};

/// Used by one thread. After an error a run is of no use.
class TrainingRun {
 public:
  virtual ~TrainingRun() = default;
  /// One optimizer step; its loss. Steps count up from 1.
  virtual absl::StatusOr<double> Step(int64_t step) = 0;
  /// Mean loss over the validation batches, after `step`, with the codecs that training has.
  virtual absl::StatusOr<double> Validate(int64_t step) = 0;
  /// Parameters by the operator's name, as a checkpoint would hold them.
  virtual absl::StatusOr<std::map<std::string, worker::Tensor>> Parameters() = 0;
  /// Replaces the parameters that the model has under these names.
  virtual absl::Status SetParameters(const std::map<std::string, worker::Tensor>& parameters) = 0;
};

/// The whole graph in one engine on the calling thread, micro-batches one after the other.
absl::StatusOr<std::unique_ptr<TrainingRun>> MakeOneProcessRun(const JobSetup& setup,
                                                               const graph::v1::Graph& graph);

/// What workers run: an engine, a pipeline and a thread for each stage, joined by in-memory transports with
/// the edges' codecs.
absl::StatusOr<std::unique_ptr<TrainingRun>> MakePipelineRun(
    const JobSetup& setup, const std::vector<graph::v1::StageProgram>& programs);

}  // namespace fusion::bench
