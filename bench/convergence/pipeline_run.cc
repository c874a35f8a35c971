#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/convergence/training_run.h"
#include "worker/data/dataset.h"
#include "worker/engine/engine.h"
#include "worker/pipeline/stage_runner.h"
#include "worker/transport/memory_transport.h"

namespace fusion::bench {
namespace {

using worker::Dataset;
using worker::Engine;
using worker::Placeholder;
using worker::StageRunner;
using worker::Tensor;
using worker::Transport;

constexpr double kCloseSeconds = 10;

/// Members in the order that their destruction needs: the runner before the transport and the engine.
struct Stage {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<StageRunner> runner;
};

class PipelineRun : public TrainingRun {
 public:
  explicit PipelineRun(const JobSetup& setup) : validation_batches_(worker::ValidationBatches(setup.spec)) {}
  ~PipelineRun() override {
    for (Stage& stage : stages_) {
      // The run is over; what a peer still sends goes nowhere.
      (void)stage.transport->Close(kCloseSeconds);
    }
  }

  absl::Status Open(const JobSetup& setup, const std::vector<graph::v1::StageProgram>& programs) {
    auto data = worker::OpenDataset(setup.spec, setup.base_directory);
    if (!data.ok()) {
      return data.status();
    }
    data_ = *std::move(data);
    const auto hub = std::make_shared<worker::MemoryHub>();
    stages_.reserve(programs.size());
    for (const graph::v1::StageProgram& program : programs) {
      auto stage = OpenStage(setup, program, hub);
      if (!stage.ok()) {
        return stage.status();
      }
      stages_.push_back(*std::move(stage));
    }
    return OnEveryStage([this](Stage& stage) -> absl::Status {
      std::vector<std::pair<int, std::string>> peers;
      for (const int peer : stage.runner->Receivers()) {
        peers.emplace_back(peer, stages_[static_cast<size_t>(peer)].transport->address());
      }
      return stage.transport->Connect(peers);
    });
  }

  absl::StatusOr<double> Step(int64_t step) override {
    std::optional<double> loss;  // one stage sets it
    const absl::Status status = OnEveryStage([&](Stage& stage) {
      const auto report = stage.runner->RunStep(step);
      if (report.ok() && report->has_loss()) {
        loss = report->loss();
      }
      return report.status();
    });
    return Result(status, loss);
  }

  absl::StatusOr<double> Validate(int64_t step) override {
    std::optional<double> loss;  // one stage sets it
    const absl::Status status = OnEveryStage([&](Stage& stage) {
      const auto result = stage.runner->RunValidation(step, validation_batches_);
      if (result.ok() && result->has_value()) {
        loss = **result;
      }
      return result.status();
    });
    return Result(status, loss);
  }

  absl::StatusOr<std::map<std::string, Tensor>> Parameters() override {
    std::map<std::string, Tensor> parameters;
    for (const Stage& stage : stages_) {
      for (const worker::VariableInfo& variable : stage.engine->Variables()) {
        if (variable.borrowed) {
          continue;
        }
        auto value = stage.engine->ReadVariable(variable.name);
        if (!value.ok()) {
          return value.status();
        }
        parameters[variable.name] = *std::move(value);
      }
    }
    return parameters;
  }

  absl::Status SetParameters(const std::map<std::string, Tensor>& parameters) override {
    for (const Stage& stage : stages_) {
      for (const worker::VariableInfo& variable : stage.engine->Variables()) {
        const auto found = parameters.find(variable.name);
        if (variable.borrowed || found == parameters.end()) {
          continue;
        }
        if (absl::Status status = stage.engine->WriteVariable(variable.name, found->second); !status.ok()) {
          return status;
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Stage> OpenStage(const JobSetup& setup, const graph::v1::StageProgram& program,
                                  const std::shared_ptr<worker::MemoryHub>& hub) {
    Stage stage;
    auto engine = worker::LoadEngine("torch");
    if (!engine.ok()) {
      return engine.status();
    }
    stage.engine = *std::move(engine);
    const v1alpha1::Training& training = setup.spec.training();
    if (const absl::Status status =
            stage.engine->Load(program, {.seed = training.seed(), .threads = 1, .training = training});
        !status.ok()) {
      return status;
    }
    worker::TransportOptions options;
    options.job = "convergence";
    options.incarnation = 1;
    options.stage = program.stage();
    auto transport = worker::MakeMemoryTransport(hub, options);
    if (!transport.ok()) {
      return transport.status();
    }
    stage.transport = *std::move(transport);
    auto runner = StageRunner::Create(
        {.program = program,
         .global_batch = training.batch().global(),
         .micro_batch = training.batch().micro(),
         .training = training},
        *stage.engine, *stage.transport,
        [this](const std::string& placeholder, bool training_batch, int64_t batch, int64_t first,
               int64_t count) -> absl::StatusOr<Tensor> {
          return data_->Read(placeholder == "input" ? Placeholder::kInput : Placeholder::kLabel,
                             {training_batch, batch, first, count});
        });
    if (!runner.ok()) {
      return runner.status();
    }
    stage.runner = *std::move(runner);
    return stage;
  }

  /// Runs `work` for all stages at once; the first error cancels the others.
  template <typename Work>
  absl::Status OnEveryStage(Work work) {
    std::vector<absl::Status> statuses(stages_.size());
    std::vector<std::thread> threads;
    threads.reserve(stages_.size());
    for (size_t i = 0; i < stages_.size(); ++i) {
      threads.emplace_back([&, i] {
        statuses[i] = work(stages_[i]);
        if (!statuses[i].ok()) {
          for (Stage& other : stages_) {
            other.runner->Cancel(absl::CancelledError("another stage failed"));
          }
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    absl::Status first;
    for (const absl::Status& status : statuses) {
      if (!status.ok() && (first.ok() || absl::IsCancelled(first))) {
        first = status;
      }
    }
    return first;
  }

  static absl::StatusOr<double> Result(const absl::Status& status, const std::optional<double>& loss) {
    if (!status.ok()) {
      return status;
    }
    if (!loss.has_value()) {
      return absl::InternalError("no stage computed the loss");
    }
    return *loss;
  }

  const int64_t validation_batches_;
  std::unique_ptr<Dataset> data_;
  std::vector<Stage> stages_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingRun>> MakePipelineRun(
    const JobSetup& setup, const std::vector<graph::v1::StageProgram>& programs) {
  auto run = std::make_unique<PipelineRun>(setup);
  if (const absl::Status status = run->Open(setup, programs); !status.ok()) {
    return status;
  }
  return run;
}

}  // namespace fusion::bench
