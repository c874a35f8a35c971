// convergence: what codecs on the cuts of a model cost in loss, measured at full speed on this machine.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "bench/convergence/record.h"
#include "bench/convergence/training_run.h"
#include "bench/convergence/variant.h"
#include "graph/autocast.h"
#include "graph/families.h"
#include "graph/slicing.h"
#include "proto/json_mapper.h"
#include "proto/manifest.h"

namespace fusion::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kExitUsage = 2;

constexpr char kExamples[] =
    R"(Each codec is an operator of the graph, in one process (graph/slicing.h, InsertCodecs); codecs with
error feedback have state and run as a worker pipeline over in-memory links. Results are kept, one file a
run, written anew at each validation: the same command runs what is missing and prints the table of all.

Examples:
  convergence                                            the default table, many hours on one core
  convergence --steps 400 --seeds 1,2,3 --codecs dense,int4,topk-0.1-int4 --jobs 2
  convergence --cuts transformer.h.0,transformer.h.1,transformer.h.2 --codecs dense,int8
  fusionctl plan -f examples/gpt2-two-sites.yaml -o json >need.json
  convergence --codecs dense --plans need=need.json      the cuts and codecs of a plan
  convergence --table-only --results results/convergence)";

struct Options {
  std::string job = "examples/gpt2-two-sites.yaml";
  std::string results = "results/convergence";
  std::vector<std::string> codecs = {kDense,
                                     "int8",
                                     "int4",
                                     "topk-0.2-int4",
                                     "topk-0.1-int4",
                                     "topk-0.03-int4",
                                     "topk-0.01-int4",
                                     "topk-0.2-fp32",
                                     "topk-0.1-fp32",
                                     "topk-0.03-fp32",
                                     "topk-0.01-fp32",
                                     "topk-0.1-int4-independent",
                                     "topk-0.03-int4-independent",
                                     "topk-0.1-int4+feedback",
                                     "topk-0.1-int4-independent+feedback"};
  std::vector<std::string> cuts = {"transformer.h.1"};
  std::vector<std::string> plans;
  std::vector<int64_t> seeds = {1, 2, 3, 4, 5};
  int64_t steps = 0;
  int64_t batch = 0;
  int64_t micro = 0;
  int64_t validate_every = 0;
  int64_t validation_batches = 0;
  double learning_rate = 0;
  int jobs = 1;
  bool table_only = false;
};

/// One run to do.
struct Work {
  const Variant* variant = nullptr;
  JobSetup setup;
  RunRecord record;
};

/// The line on a terminal, or a line a run elsewhere. Thread-safe.
class Progress {
 public:
  Progress(size_t runs, int64_t steps) : runs_(runs), steps_(steps), terminal_(isatty(STDERR_FILENO) == 1) {}

  void Step(const RunRecord& record, double loss) {
    absl::MutexLock lock(&mutex_);
    ++steps_done_;
    if (terminal_) {
      const double seconds = Seconds() / static_cast<double>(steps_done_);
      const auto left =
          static_cast<double>(record.steps) * static_cast<double>(runs_) - static_cast<double>(steps_done_);
      absl::FPrintF(stderr, "\r\033[Kruns %d/%d | %s seed %d: step %d/%d, loss %.3f | about %.0f min left",
                    done_, runs_, record.variant, record.seed, record.losses.size(), steps_, loss,
                    left * seconds / 60);
    }
  }
  void Done(const RunRecord& record, const std::string& outcome) {
    absl::MutexLock lock(&mutex_);
    ++done_;
    absl::FPrintF(stderr, "%s[%d/%d, %.0f s] %s seed %d: %s\n", terminal_ ? "\r\033[K" : "", done_, runs_,
                  Seconds(), record.variant, record.seed, outcome);
  }

 private:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  const size_t runs_;
  const int64_t steps_;  ///< of each run
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  absl::Mutex mutex_;
  int64_t steps_done_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::StatusOr<JobSetup> ReadJob(const Options& options) {
  const api::Manifest manifest = api::LoadManifest({options.job});
  if (!manifest.errors.empty()) {
    return absl::InvalidArgumentError(manifest.errors.front().ToString());
  }
  if (manifest.jobs.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.job, " has ", manifest.jobs.size(), " jobs; one is wanted"));
  }
  JobSetup setup{.spec = manifest.jobs.front().object.spec(),
                 .base_directory = fs::absolute(options.job).parent_path().string()};
  v1alpha1::Training& training = *setup.spec.mutable_training();
  if (options.steps > 0) {
    training.set_steps(options.steps);
  }
  if (options.batch > 0) {
    training.mutable_batch()->set_global(options.batch);
  }
  if (options.validate_every > 0) {
    training.mutable_validation()->set_every_steps(options.validate_every);
  }
  if (options.validation_batches > 0) {
    training.mutable_validation()->set_batches(options.validation_batches);
  }
  if (options.learning_rate > 0) {
    training.mutable_optimizer()->set_learning_rate(options.learning_rate);
  }
  return setup;
}

absl::StatusOr<Variant> ReadPlan(const graph::v1::Graph& graph, const std::string& argument) {
  const size_t equals = argument.find('=');
  if (equals == 0 || equals == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("--plans ", argument, ": NAME=FILE is wanted"));
  }
  const std::string path = argument.substr(equals + 1);
  std::ifstream file(path);
  const json document = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat("--plans ", argument, ": ", path, " is no JSON document"));
  }
  graph::v1::Plan plan;
  if (const absl::Status status = api::FromJson(document, api::Mode::kLenient, &plan); !status.ok()) {
    return status;
  }
  return PlanVariant(graph, argument.substr(0, equals), plan);
}

absl::StatusOr<std::vector<Variant>> MakeVariants(const Options& options, const graph::v1::Graph& graph) {
  std::vector<Variant> variants;
  for (const std::string& codec : options.codecs) {
    auto variant = CutVariant(graph, options.cuts, codec);
    if (!variant.ok()) {
      return variant.status();
    }
    variants.push_back(*std::move(variant));
  }
  for (const std::string& plan : options.plans) {
    auto variant = ReadPlan(graph, plan);
    if (!variant.ok()) {
      return variant.status();
    }
    variants.push_back(*std::move(variant));
  }
  return variants;
}

absl::StatusOr<std::unique_ptr<TrainingRun>> OpenRun(const JobSetup& setup, const Variant& variant,
                                                     const graph::v1::Graph& graph) {
  if (HasErrorFeedback(variant)) {
    return MakePipelineRun(setup, variant.programs);
  }
  const auto with_codecs = graph::InsertCodecs(graph, variant.programs);
  if (!with_codecs.ok()) {
    return with_codecs.status();
  }
  return MakeOneProcessRun(setup, *with_codecs);
}

/// Leaves what is measured on disk at every validation.
absl::Status Train(const Options& options, const graph::v1::Graph& graph, Progress& progress, Work& work) {
  const auto start = std::chrono::steady_clock::now();
  const auto run = OpenRun(work.setup, *work.variant, graph);
  if (!run.ok()) {
    return run.status();
  }
  const auto exported = MakeOneProcessRun(work.setup, graph);
  if (!exported.ok()) {
    return exported.status();
  }
  const int64_t steps = work.setup.spec.training().steps();
  const int64_t every = work.setup.spec.training().validation().every_steps();
  for (int64_t step = 1; step <= steps; ++step) {
    const auto loss = (*run)->Step(step);
    if (!loss.ok()) {
      return loss.status();
    }
    work.record.losses.push_back(*loss);
    progress.Step(work.record, *loss);
    if (step != steps && (every == 0 || step % every != 0)) {
      continue;
    }
    const auto with_codec = (*run)->Validate(step);
    if (!with_codec.ok()) {
      return with_codec.status();
    }
    const auto parameters = (*run)->Parameters();
    if (!parameters.ok()) {
      return parameters.status();
    }
    if (absl::Status status = (*exported)->SetParameters(*parameters); !status.ok()) {
      return status;
    }
    const auto without = (*exported)->Validate(step);
    if (!without.ok()) {
      return without.status();
    }
    work.record.validations.push_back({.step = step, .with_codec = *with_codec, .exported = *without});
    work.record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (absl::Status status = WriteRecord(options.results, work.record); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

/// A thread for each of `jobs`; each run has its engines to itself. The number of runs that failed.
int DoAll(const Options& options, const graph::v1::Graph& graph, std::deque<Work> works,
          std::vector<RunRecord>& records) {
  Progress progress(works.size(), works.empty() ? 0 : works.front().setup.spec.training().steps());
  absl::Mutex mutex;
  int failed = 0;
  const auto work_off = [&] {
    while (true) {
      Work work;
      {
        absl::MutexLock lock(&mutex);
        if (works.empty()) {
          return;
        }
        work = std::move(works.front());
        works.pop_front();
      }
      const absl::Status status = Train(options, graph, progress, work);
      progress.Done(work.record, status.ok() ? absl::StrFormat("%.4f with the codec, %.4f exported, %.0f s",
                                                               work.record.validations.back().with_codec,
                                                               work.record.validations.back().exported,
                                                               work.record.seconds)
                                             : std::string(status.message()));
      absl::MutexLock lock(&mutex);
      if (status.ok()) {
        records.push_back(std::move(work.record));
      } else {
        ++failed;
      }
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(options.jobs));
  for (int i = 0; i < options.jobs; ++i) {
    threads.emplace_back(work_off);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return failed;
}

/// What a run depends on: a longer one has the same losses up to its middle, unless learning rates fall
/// towards its end.
json JobJson(v1alpha1::FusionJobSpec spec) {
  const auto schedule = spec.training().learning_rate_schedule().type();
  if (schedule != v1alpha1::LearningRateSchedule::Linear &&
      schedule != v1alpha1::LearningRateSchedule::Cosine) {
    spec.mutable_training()->clear_steps();
  }
  spec.mutable_training()->mutable_validation()->clear_every_steps();
  return api::ToJson(spec);
}

/// All runs, seed by seed, so that an interrupted bench has whole seeds. Those that are on disk go to
/// `records`.
absl::StatusOr<std::deque<Work>> Pending(const Options& options, const JobSetup& setup,
                                         const std::vector<Variant>& variants,
                                         std::vector<RunRecord>& records) {
  std::deque<Work> works;
  for (const int64_t seed : options.seeds) {
    for (const Variant& variant : variants) {
      Work work{.variant = &variant, .setup = setup, .record = {}};
      v1alpha1::Training& training = *work.setup.spec.mutable_training();
      training.set_seed(seed);
      const auto bytes = SizesOf(variant, training.batch().micro());
      if (!bytes.ok()) {
        return bytes.status();
      }
      if (options.micro > 0) {
        training.mutable_batch()->set_micro(options.micro);
      }
      work.record = {.variant = variant.name,
                     .seed = seed,
                     .job = JobJson(work.setup.spec),
                     .edges = EdgesOf(variant),
                     .bytes = *bytes,
                     .losses = {},
                     .validations = {}};
      auto record = ReadRecord(options.results, work.record, training.steps());
      if (!record.ok()) {
        return record.status();
      }
      if (record->has_value()) {
        records.push_back(**std::move(record));
      } else if (!options.table_only) {
        works.push_back(std::move(work));
      }
    }
  }
  return works;
}

absl::StatusOr<int> Measure(const Options& options) {
  const auto setup = ReadJob(options);
  if (!setup.ok()) {
    return setup.status();
  }
  const v1alpha1::Batch& batch = setup->spec.training().batch();
  if (const int64_t micro = options.micro > 0 ? options.micro : batch.micro(); batch.global() % micro != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a micro-batch of ", micro, " does not divide the global batch of ", batch.global()));
  }
  auto graph = graph::BuildModel(setup->spec.model(), setup->base_directory);
  if (graph.ok()) {
    graph = graph::ApplyPrecision(*std::move(graph), setup->spec.training());
  }
  if (!graph.ok()) {
    return graph.status();
  }
  const auto variants = MakeVariants(options, *graph);
  if (!variants.ok()) {
    return variants.status();
  }
  std::error_code error;
  fs::create_directories(options.results, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot make ", options.results, ": ", error.message()));
  }
  std::vector<RunRecord> records;
  auto works = Pending(options, *setup, *variants, records);
  if (!works.ok()) {
    return works.status();
  }
  const int failed = DoAll(options, *graph, *std::move(works), records);
  std::vector<std::string> names;
  for (const Variant& variant : *variants) {
    names.push_back(variant.name);
  }
  std::cout << Table(records, names, setup->spec.training().steps());
  return failed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  // Before an engine brings OpenMP: waiting threads sleep instead of taking a core from another run.
  setenv("OMP_WAIT_POLICY", "passive", /*replace=*/0);
  CLI::App app("Trains a job's model with codecs on its cuts, and compares bytes and validation losses.",
               "convergence");
  app.footer(kExamples);
  Options options;
  app.add_option("-f,--job", options.job, "the job's file")->capture_default_str();
  app.add_option("--results", options.results, "folder of the runs' records")->capture_default_str();
  app.add_option("--codecs", options.codecs, "dense, and names of codec/codec.h")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--cuts", options.cuts, "operators or modules after which the model is cut")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--plans", options.plans, "NAME=FILE: cuts and codecs of a plan")->delimiter(',');
  app.add_option("--seeds", options.seeds, "of parameters and batches")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--steps", options.steps, "instead of the job's")->check(CLI::PositiveNumber);
  app.add_option("--batch", options.batch, "samples a step, instead of the job's")
      ->check(CLI::PositiveNumber);
  app.add_option("--micro", options.micro, "samples computed at once, instead of the job's micro-batch")
      ->check(CLI::PositiveNumber);
  app.add_option("--validate-every", options.validate_every, "steps, instead of the job's")
      ->check(CLI::PositiveNumber);
  app.add_option("--validation-batches", options.validation_batches, "instead of the job's")
      ->check(CLI::PositiveNumber);
  app.add_option("--learning-rate", options.learning_rate, "instead of the job's")
      ->check(CLI::PositiveNumber);
  app.add_option("--jobs", options.jobs, "runs at once, one thread each")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_flag("--table-only", options.table_only, "run nothing; print what is in the results folder");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  const auto code = Measure(options);
  if (!code.ok()) {
    std::cerr << "convergence: " << code.status().message() << "\n";
    return absl::IsInvalidArgument(code.status()) ? kExitUsage : 1;
  }
  return *code;
}

}  // namespace
}  // namespace fusion::bench

int main(int argc, char** argv) { return fusion::bench::Main(argc, argv); }
