// fusion-worker: runs one stage of a job, or measures this machine.
#include <cstdlib>
#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "worker/profile_command.h"
#include "worker/session/process_signals.h"
#include "worker/session/stage_worker.h"

namespace fusion::worker {
namespace {

constexpr int kExitUsage = 2;

constexpr char kExamples[] = R"(Examples:
  fusion-worker stage --broker 127.0.0.1:7070 --job default/gpt2 --stage 0 --compnode a1 --incarnation 1
  fusion-worker profile -o json
  fusion-worker profile --graph gpt2.pb --samples 4 -o json
  fusion-worker version

Workers are started by the operator or by fusionctl; `stage` is seldom typed.)";

int Main(int argc, char** argv) {
  // Before any thread, and before an engine brings OpenMP: waiting threads sleep, so that CPU seconds are
  // work.
  setenv("OMP_WAIT_POLICY", "passive", /*replace=*/0);
  ProcessSignals signals;

  CLI::App app("Runs one stage of a Fusion job.", "fusion-worker");
  app.require_subcommand(1);
  app.footer(kExamples);

  StageWorkerOptions stage;
  CLI::App* stage_command = app.add_subcommand("stage", "run one stage of a job until the broker stops it");
  stage_command->alias("run");
  stage_command->add_option("--broker", stage.broker, "HOST:PORT of the operator's broker")->required();
  stage_command->add_option("--job", stage.job, "NAMESPACE/NAME of the job")->required();
  stage_command->add_option("--stage", stage.stage, "index of the stage in the plan")
      ->required()
      ->check(CLI::NonNegativeNumber);
  stage_command->add_option("--compnode", stage.compnode, "the compnode that this machine is")->required();
  stage_command->add_option("--incarnation", stage.incarnation, "of the job; fences earlier attempts")
      ->required();
  stage_command->add_option("--engine", stage.engine, "torch, or none: all protocols, no arithmetic")
      ->capture_default_str();
  stage_command
      ->add_option("--listen", stage.listen, "HOST:PORT where tensors come in; port 0 takes a free one")
      ->capture_default_str();

  ProfileOptions profile;
  std::string output = "json";
  CLI::App* profile_command = app.add_subcommand("profile", "measure one thread of this machine");
  profile_command->add_option("--engine", profile.engine, "engine that measures")->capture_default_str();
  profile_command->add_option("--graph", profile.graph,
                              "also measure the operators of this graph (protobuf, binary)");
  profile_command->add_option("--samples", profile.samples, "samples of a micro-batch")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  profile_command->add_option("-o,--output", output, "format")
      ->check(CLI::IsMember({"json"}))
      ->capture_default_str();

  CLI::App* version_command = app.add_subcommand("version", "print the version");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }

  if (version_command->parsed()) {
    std::cout << "fusion-worker " << FUSION_VERSION << "\n";
    return 0;
  }
  if (profile_command->parsed()) {
    const auto document = RunProfile(profile);
    if (!document.ok()) {
      std::cerr << "fusion-worker: profile: " << document.status().message() << "\n";
      return 1;
    }
    std::cout << *document << "\n";
    return 0;
  }
  return RunStageWorker(stage, signals);
}

}  // namespace
}  // namespace fusion::worker

int main(int argc, char** argv) { return fusion::worker::Main(argc, argv); }
