#include "cli/command_line.h"
#include "cli/commands.h"

namespace fusion::cli {
namespace {

OptionDefinition Files() {
  return {
      "filename", 'f', "FusionJobs and Compnodes: a YAML or JSON file, - for standard input; may be repeated",
      "FILE",     {},  true,
      true};
}

OptionDefinition Workdir() {
  return {"workdir", 0,  "folder of jobs, their objects and the machine's profile (fusion-work)",
          "FOLDER",  {}, false,
          false};
}

OptionDefinition Output(std::vector<std::string> formats) {
  return {"output", 'o', "format of the result", "FORMAT", std::move(formats), false, false};
}

OptionDefinition Flag(std::string name, std::string description) {
  return {std::move(name), 0, std::move(description), "", {}, false, false};
}

OptionDefinition FitEmulation() {
  return Flag(
      "fit-emulation",
      "where the compnodes' emulation.flops are more than this machine can imitate, scale them all down");
}

}  // namespace

const std::vector<CommandDefinition>& Commands() {
  static const auto& commands = *new std::vector<CommandDefinition>{
      {"run",
       "train or evaluate jobs on this machine",
       "Starts a control plane and worker processes, trains the jobs of the files in their order, and ends "
       "with the last one. "
       "Each job leaves WORKDIR/JOB with plan.json, metrics.jsonl, logs and checkpoints. Ctrl-C stops the "
       "workers and exits "
       "with 130.",
       {"fusionctl run -f examples/gpt2-two-sites.yaml",
        "fusionctl run -f job.yaml -f compnodes.yaml --workdir /tmp/work",
        "fusionctl run -f job.yaml --plan fusion-work/gpt2/plan.json --overwrite",
        "fusionctl run -f job.yaml --resume", "fusionctl run -f job.yaml -o json"},
       "",
       {},
       "",
       {Files(),
        Workdir(),
        Flag("overwrite", "remove what an earlier run of the same job left"),
        Flag("resume", "go on from the newest intact checkpoint of an earlier run"),
        FitEmulation(),
        {"plan", 0, "run this plan instead of making one", "FILE", {}, false, false},
        {"trace", 0, "write a Chrome trace of this step to WORKDIR/JOB/trace.json", "STEP", {}, false, false},
        Output({"json"})},
       &RunCommand},
      {"plan",
       "show how jobs would be placed",
       "Makes the plan of each job without running it: stages, links, codecs, memory, and the predicted time "
       "of a step. Exits "
       "with 1 when nothing fits, with the reason for each compnode.",
       {"fusionctl plan -f examples/gpt2-two-sites.yaml", "fusionctl plan -f job.yaml --compare",
        "fusionctl plan -f job.yaml -o json > plan.json"},
       "",
       {},
       "",
       {Files(), Workdir(), Flag("compare", "the plans of all placement policies side by side"),
        FitEmulation(), Output({"json", "yaml", "wide"})},
       &PlanCommand},
      {"validate",
       "check files",
       "Checks the files as `run` and an apiserver would, that the data is there too, and prints every error "
       "with file, document, "
       "line and field.",
       {"fusionctl validate -f job.yaml", "cat job.yaml | fusionctl validate -f - -o json"},
       "",
       {},
       "",
       {Files(), Output({"json"})},
       &ValidateCommand},
      {"get",
       "show jobs or compnodes",
       "Prints the objects of the working folder, also while a run goes on.",
       {"fusionctl get jobs", "fusionctl get job gpt2 -o yaml",
        "fusionctl get compnodes -o wide --workdir /tmp/work"},
       "KIND",
       {"jobs", "compnodes", "job", "compnode", "fusionjobs", "fusionjob"},
       "NAME",
       {Workdir(), Output({"json", "yaml", "wide"})},
       &GetCommand},
      {"graph",
       "print or draw the operator graph of jobs",
       "Prints the graph of each job's model in the JSON form of graph.proto: operators in topological "
       "order, with arguments, "
       "shapes and variables. As dot or svg it is drawn, with the operators in the colours of their stages "
       "where "
       "--plan is given "
       "or the files declare compnodes.",
       {"fusionctl graph -f job.yaml -o json", "fusionctl graph -f job.yaml -o svg > graph.svg",
        "fusionctl graph -f job.yaml --plan fusion-work/gpt2/plan.json -o dot"},
       "",
       {},
       "",
       {Files(),
        Workdir(),
        {"plan", 0, "take the stages of this plan", "FILE", {}, false, false},
        Output({"json", "yaml", "dot", "svg"})},
       &GraphCommand},
      {"profile",
       "measure this machine",
       "Measures one thread of this machine, which emulated compnodes and predictions rest on. The result is "
       "rounded to two "
       "digits and kept in the working folder, so that the same job gives the same plan. With files, the "
       "operators of their jobs "
       "are measured too.",
       {"fusionctl profile", "fusionctl profile -f job.yaml -o json", "fusionctl profile --refresh"},
       "",
       {},
       "",
       {{"filename", 'f', "jobs whose operators are measured", "FILE", {}, false, true},
        Workdir(),
        Flag("refresh", "measure again"),
        Output({"json"})},
       &ProfileCommand},
      {"version",
       "print the version",
       "Prints the version of fusionctl and of the API that it speaks.",
       {"fusionctl version", "fusionctl version -o json"},
       "",
       {},
       "",
       {Output({"json"})},
       &VersionCommand},
      {"completion",
       "print a shell's completion script",
       "Prints a script that completes fusionctl's commands and options.",
       {"source <(fusionctl completion bash)", "fusionctl completion zsh > ~/.zfunc/_fusionctl",
        "fusionctl completion fish > ~/.config/fish/completions/fusionctl.fish"},
       "SHELL",
       {"bash", "zsh", "fish"},
       "",
       {},
       &CompletionCommand},
  };
  return commands;
}

}  // namespace fusion::cli
