#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/convergence/training_run.h"
#include "bench/convergence/variant.h"
#include "worker/data/dataset.h"
#include "worker/engine/engine.h"
#include "worker/pipeline/learning_rate.h"

namespace fusion::bench {
namespace {

using worker::BatchSlice;
using worker::Dataset;
using worker::Engine;
using worker::Pass;
using worker::Placeholder;

class OneProcessRun : public TrainingRun {
 public:
  OneProcessRun(const JobSetup& setup, std::unique_ptr<Dataset> data, std::unique_ptr<Engine> engine,
                std::set<std::string> placeholders)
      : training_(setup.spec.training()),
        global_batch_(setup.spec.training().batch().global()),
        micro_batch_(setup.spec.training().batch().micro()),
        validation_batches_(worker::ValidationBatches(setup.spec)),
        data_(std::move(data)),
        engine_(std::move(engine)),
        placeholders_(std::move(placeholders)) {}

  absl::StatusOr<double> Step(int64_t step) override {
    const auto loss = Losses(step, /*training=*/true, /*batch=*/step, /*first_pass=*/0);
    if (!loss.ok()) {
      return loss.status();
    }
    const auto update = engine_->Update(step, worker::LearningRateFactor(training_, step));
    if (!update.ok()) {
      return update.status();
    }
    if (!update->finite) {
      return absl::OutOfRangeError(absl::StrCat("step ", step, ": a gradient is not finite"));
    }
    return *loss / static_cast<double>(global_batch_);
  }

  absl::StatusOr<double> Validate(int64_t step) override {
    double sum = 0;
    for (int64_t batch = 0; batch < validation_batches_; ++batch) {
      const auto loss = Losses(step, /*training=*/false, batch, (1 + batch) * (global_batch_ / micro_batch_));
      if (!loss.ok()) {
        return loss.status();
      }
      sum += *loss;
    }
    return sum / static_cast<double>(validation_batches_ * global_batch_);
  }

  absl::StatusOr<std::map<std::string, worker::Tensor>> Parameters() override {
    std::map<std::string, worker::Tensor> parameters;
    for (const worker::VariableInfo& variable : engine_->Variables()) {
      auto value = engine_->ReadVariable(variable.name);
      if (!value.ok()) {
        return value.status();
      }
      parameters[variable.name] = *std::move(value);
    }
    return parameters;
  }

  absl::Status SetParameters(const std::map<std::string, worker::Tensor>& parameters) override {
    for (const worker::VariableInfo& variable : engine_->Variables()) {
      const auto found = parameters.find(variable.name);
      if (found == parameters.end()) {
        continue;
      }
      if (absl::Status status = engine_->WriteVariable(variable.name, found->second); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  /// Sum over the samples of one global batch.
  absl::StatusOr<double> Losses(int64_t step, bool training, int64_t batch, int64_t first_pass) {
    const auto samples = static_cast<double>(micro_batch_);
    double sum = 0;
    for (int64_t first = 0; first < global_batch_; first += micro_batch_) {
      const Pass pass{.step = step,
                      .micro_batch = static_cast<int32_t>(first_pass + first / micro_batch_),
                      .training = training,
                      .samples = micro_batch_,
                      .weight = samples / static_cast<double>(global_batch_)};
      const auto loss =
          OneMicroBatch(pass, {.training = training, .batch = batch, .first = first, .count = micro_batch_});
      engine_->Release(pass);
      if (!loss.ok()) {
        return loss.status();
      }
      sum += samples * *loss;
    }
    return sum;
  }

  absl::StatusOr<double> OneMicroBatch(const Pass& pass, const BatchSlice& slice) {
    for (const std::string& placeholder : placeholders_) {
      const Placeholder kind = placeholder == "input" ? Placeholder::kInput : Placeholder::kLabel;
      if (absl::Status status = engine_->Feed(pass, placeholder, data_->Read(kind, slice)); !status.ok()) {
        return status;
      }
    }
    const auto result = engine_->Forward(pass, 0);
    if (!result.ok()) {
      return result.status();
    }
    if (!result->loss.has_value()) {
      return absl::InternalError("the model computes no loss");
    }
    if (pass.training) {
      if (const auto gradients = engine_->Backward(pass, 0); !gradients.ok()) {
        return gradients.status();
      }
    }
    return *result->loss;
  }

  const v1alpha1::Training training_;
  const int64_t global_batch_;
  const int64_t micro_batch_;
  const int64_t validation_batches_;
  const std::unique_ptr<Dataset> data_;
  const std::unique_ptr<Engine> engine_;
  const std::set<std::string> placeholders_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingRun>> MakeOneProcessRun(const JobSetup& setup,
                                                               const graph::v1::Graph& graph) {
  const auto program = WholeProgram(graph);
  if (!program.ok()) {
    return program.status();
  }
  auto data = worker::OpenDataset(setup.spec, setup.base_directory);
  if (!data.ok()) {
    return data.status();
  }
  auto engine = worker::LoadEngine("torch");
  if (!engine.ok()) {
    return engine.status();
  }
  const absl::Status loaded = (*engine)->Load(
      *program, {.seed = setup.spec.training().seed(), .threads = 1, .training = setup.spec.training()});
  if (!loaded.ok()) {
    return loaded;
  }
  std::set<std::string> placeholders;
  for (const graph::v1::Operator& op : graph.operators()) {
    if (op.kind() == graph::v1::Operator::PLACEHOLDER) {
      placeholders.insert(op.name());
    }
  }
  return std::make_unique<OneProcessRun>(setup, *std::move(data), *std::move(engine),
                                         std::move(placeholders));
}

}  // namespace fusion::bench
