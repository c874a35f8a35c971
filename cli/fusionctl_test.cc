// The real program: texts, exit statuses, and what it leaves behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/command_line.h"
#include "fusion/graph/v1/graph.pb.h"
#include "graph/skip_graph_for_test.h"
#include "nlohmann/json.hpp"
#include "operator/client.h"
#include "operator/embedded.h"
#include "operator/store/object_files.h"
#include "proto/json_mapper.h"
#include "tests/support/process.h"

namespace fusion::cli {
namespace {

namespace fs = std::filesystem;

using fusion::testing::ProcessResult;
using fusion::testing::ScratchFolder;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kJob[] = R"(apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: small}
spec:
  model:
    family: gpt2
    config: {layers: 2, heads: 2, width: 16, context: 8, vocabulary: 256}
  data: {kind: text, uri: text.txt}
  training:
    steps: 10
    batch: {global: 8, micro: 2}
    optimizer: {type: AdamW, learningRate: 1e-3}
---
apiVersion: fusion.dev/v1alpha1
kind: Compnode
metadata: {name: a1}
spec:
  cluster: site-a
  devices: [{name: cpu, memory: 1Gi, peakFlops: {fp32: 5e10}}]
)";

constexpr char kProfile[] =
    R"({"flops": 41234567890, "lambda": {"matmul": 0.9, "convolution": 0.8, "elementwise": 0.1, "reduction": 0.1,)"
    R"( "memory": 0.1}, "memoryBytesPerSecond": 1.1e10, "operatorSeconds": 9e-6, "updateSecondsPerParameter": 2e-9,)"
    R"( "operators": {}})";

/// A folder with a job, its data, and a program in the place of fusion-worker.
class Fusionctl : public ::testing::Test {
 protected:
  Fusionctl() {
    fusion::testing::WriteFile(folder_ / "job.yaml", kJob);
    fusion::testing::WriteFile(folder_ / "text.txt", std::string(5000, 'a'));
    fs::create_directory(folder_ / "captured");
    FakeWorker(absl::StrCat("echo run >> ", folder_ / "calls", "\necho '", kProfile, "'"));
  }

  void FakeWorker(const std::string& script) {
    fusion::testing::WriteFile(folder_ / "worker", absl::StrCat("#!/bin/sh\n", script, "\n"));
    chmod((folder_ / "worker").c_str(), 0755);
  }
  std::vector<std::string> Words(std::vector<std::string> arguments) const {
    std::vector<std::string> words = {"/usr/bin/env", absl::StrCat("FUSION_WORKER=", folder_ / "worker"),
                                      FUSION_BINARY_DIR "/bin/fusionctl"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  ProcessResult Ctl(const std::vector<std::string>& arguments) const {
    return fusion::testing::Run(Words(arguments), folder_ / "captured");
  }
  std::string Workdir() const { return folder_ / "work"; }
  std::string Job() const { return folder_ / "job.yaml"; }
  /// The job with a change, in a file of its own.
  std::string Changed(const std::string& from, const std::string& to) const {
    const std::string text = absl::StrReplaceAll(kJob, {{from, to}});
    EXPECT_NE(text, kJob) << from;
    fusion::testing::WriteFile(folder_ / "changed.yaml", text);
    return folder_ / "changed.yaml";
  }

  ScratchFolder folder_;
};

TEST_F(Fusionctl, EveryCommandHasHelpWithExamples) {
  for (const CommandDefinition& command : Commands()) {
    const ProcessResult result = Ctl({command.name, "--help"});
    EXPECT_EQ(result.exit_code, 0) << command.name;
    EXPECT_EQ(result.err, "");
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat("Usage: fusionctl ", command.name))) << command.name;
    for (const std::string& example : command.examples) EXPECT_THAT(result.out, HasSubstr(example));
    for (const OptionDefinition& option : command.options)
      EXPECT_THAT(result.out, HasSubstr("--" + option.name));
  }
  const ProcessResult root = Ctl({"--help"});
  EXPECT_EQ(root.exit_code, 0);
  EXPECT_THAT(root.out, HasSubstr("\n  run           train or evaluate jobs on this machine\n"));
}

TEST_F(Fusionctl, WrongUsageIsStatusTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "error: a command is missing; see fusionctl --help\n"},
      {{"trane"}, "error: The following argument was not expected: trane; see fusionctl --help\n"},
      {{"run"}, "error: --filename is required; see fusionctl run --help\n"},
      {{"plan", "-f", "x", "--compared"},
       "error: The following argument was not expected: --compared; see fusionctl plan --help\n"},
      {{"get"}, "error: KIND is required; see fusionctl get --help\n"},
      {{"validate", "-f"}, "see fusionctl validate --help\n"},
      {{"plan", "-f", "x", "-o", "xml"}, "see fusionctl plan --help\n"},
      {{"get", "pods"}, "see fusionctl get --help\n"},
      {{"completion", "tcsh"}, "see fusionctl completion --help\n"},
  };
  for (const auto& [arguments, message] : cases) {
    const ProcessResult result = Ctl(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

TEST_F(Fusionctl, Version) {
  EXPECT_THAT(Ctl({"version"}).out, StartsWith("fusionctl 0."));
  const json version = json::parse(Ctl({"version", "-o", "json"}).out);
  EXPECT_EQ(version["apiVersion"], "fusion.dev/v1alpha1");
}

TEST_F(Fusionctl, CompletionWorksInBash) {
  const std::string script = folder_ / "completion";
  fusion::testing::WriteFile(script, Ctl({"completion", "bash"}).out);
  const auto complete = [&](const std::string& words, int index) {
    const std::string program = absl::StrCat("source ", script, "; COMP_WORDS=(", words,
                                             "); COMP_CWORD=", index, "; _fusionctl; echo ${COMPREPLY[@]}");
    return fusion::testing::Run({"/bin/bash", "-c", program}, folder_ / "captured").out;
  };
  EXPECT_EQ(complete("fusionctl va", 1), "validate\n");
  EXPECT_EQ(complete("fusionctl plan --c", 2), "--compare\n");
  EXPECT_EQ(complete("fusionctl plan -o ''", 3), "json yaml wide\n");
  EXPECT_EQ(complete("fusionctl get comp", 2), "compnodes compnode\n");
  for (const char* shell : {"zsh", "fish"}) {
    const std::string out = Ctl({"completion", shell}).out;
    for (const CommandDefinition& command : Commands()) EXPECT_THAT(out, HasSubstr(command.name)) << shell;
  }
}

TEST_F(Fusionctl, ValidateSaysWhatIsThere) {
  const ProcessResult result = Ctl({"validate", "-f", Job()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "valid: 1 job, 1 compnode\n");
  EXPECT_EQ(json::parse(Ctl({"validate", "-f", Job(), "-o", "json"}).out),
            json({{"valid", true}, {"errors", json::array()}}));
}

TEST_F(Fusionctl, ValidateNamesEveryMistake) {
  const std::string file = Changed("steps: 10", "steps: ten\n    epochs: 3");
  const ProcessResult result = Ctl({"validate", "-f", file});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(
      result.err,
      absl::StrCat(
          file, ":1:10: spec.training.steps: must be an integer, not the string \"ten\"\n", file,
          ":1:11: spec.training.epochs: unknown field; known are steps, batch, seed, precision, recompute, "
          "optimizer, parameterGroups, learningRateSchedule, gradientClipping, pipeline, validation, "
          "resumeFrom\nerror: 2 problems in the input\n"));
  const ProcessResult structured = Ctl({"validate", "-f", file, "-o", "json"});
  EXPECT_EQ(structured.exit_code, 2);
  const json value = json::parse(structured.out);
  EXPECT_EQ(value["valid"], false);
  EXPECT_EQ(value["errors"][0]["field"], "spec.training.steps");
  EXPECT_EQ(value["errors"][0]["line"], 10);
  EXPECT_EQ(value["errors"][0]["document"], 1);
}

TEST_F(Fusionctl, BadInputStartsNothingAndWritesNothing) {
  fusion::testing::WriteFile(folder_ / "empty.yaml", "");
  fusion::testing::WriteFile(folder_ / "binary.yaml", std::string("\x00\xff\xfe\x01", 4));
  const std::vector<std::string> files = {Changed("steps: 10", "steps: -1"), folder_ / "empty.yaml",
                                          folder_ / "binary.yaml", folder_ / "none.yaml", folder_.path()};
  for (const std::string& file : files) {
    for (const char* command : {"run", "plan", "validate", "graph"}) {
      std::vector<std::string> arguments = {command, "-f", file};
      if (std::string(command) == "run" || std::string(command) == "plan") {
        arguments.insert(arguments.end(), {"--workdir", Workdir()});
      }
      const ProcessResult result = Ctl(arguments);
      EXPECT_EQ(result.exit_code, 2) << command << " " << file;
      EXPECT_THAT(result.err, HasSubstr(file));
      EXPECT_FALSE(fs::exists(Workdir())) << command << " " << file;
      EXPECT_FALSE(fs::exists(folder_ / "calls")) << command << " " << file;
    }
  }
}

TEST_F(Fusionctl, MissingDataIsStatusTwo) {
  fs::remove(folder_ / "text.txt");
  for (const char* command : {"run", "validate"}) {
    const ProcessResult result = Ctl({command, "-f", Job()});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.err,
              absl::StrCat(Job(), ":1:8: spec.data.uri: ", folder_ / "text.txt",
                           " cannot be read: No such file or directory\nerror: 1 problem in the input\n"));
  }
}

TEST_F(Fusionctl, RunNeedsCompnodesAndJobs) {
  fusion::testing::WriteFile(folder_ / "job-alone.yaml",
                             std::string(kJob).substr(0, std::string(kJob).find("---")));
  const ProcessResult alone = Ctl({"run", "-f", folder_ / "job-alone.yaml", "--workdir", Workdir()});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("has no Compnode; add one, or a second file with -f"));
  EXPECT_EQ(Ctl({"validate", "-f", folder_ / "job-alone.yaml"}).exit_code, 0);
}

TEST_F(Fusionctl, RunRefusesAFolderThatIsThere) {
  fs::create_directories(Workdir() + "/small");
  const ProcessResult result = Ctl({"run", "-f", Job(), "--workdir", Workdir()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("work/small is there already; go on with --resume, or remove it with "
                                    "--overwrite"));
  const ProcessResult both = Ctl({"run", "-f", Job(), "--workdir", Workdir(), "--resume", "--overwrite"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("give one of them"));
}

TEST_F(Fusionctl, RunChecksThePlanItReplays) {
  fusion::testing::WriteFile(folder_ / "plan.json", R"({"job": "other"})");
  const ProcessResult other =
      Ctl({"run", "-f", Job(), "--workdir", Workdir(), "--plan", folder_ / "plan.json"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("--plan is of job \"other\""));
  fusion::testing::WriteFile(folder_ / "plan.json", R"({"job": "small", "stages": [{"indexx": 1}]})");
  const ProcessResult bad =
      Ctl({"run", "-f", Job(), "--workdir", Workdir(), "--plan", folder_ / "plan.json"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("stages[0].indexx: unknown field; did you mean index?"));
  EXPECT_FALSE(fs::exists(Workdir()));
}

TEST_F(Fusionctl, GraphReadsBack) {
  const ProcessResult result = Ctl({"graph", "-f", Job(), "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  graph::v1::Graph graph;
  const absl::Status status = api::FromJson(json::parse(result.out), api::Mode::kStrict, &graph);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(graph.loss().operator_(), "loss");
  EXPECT_EQ(api::ToJson(graph), json::parse(result.out));
}

constexpr char kGraphJob[] = R"(apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: own}
spec:
  model: {graph: {uri: model.json}}
  data: {kind: table, uri: table.csv}
  training:
    steps: 10
    batch: {global: 8, micro: 2}
    optimizer: {type: SGD, learningRate: 1e-2}
)";

TEST_F(Fusionctl, AGraphOfOnesOwnIsReadAndChecked) {
  fusion::testing::WriteFile(folder_ / "own.yaml", kGraphJob);
  fusion::testing::WriteFile(folder_ / "table.csv", "a,b\n1,2\n3,4\n");
  fusion::testing::WriteFile(folder_ / "model.json", graph::SkipGraphJson());
  const ProcessResult valid = Ctl({"validate", "-f", folder_ / "own.yaml"});
  EXPECT_EQ(valid.exit_code, 0) << valid.err;
  const ProcessResult printed = Ctl({"graph", "-f", folder_ / "own.yaml"});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_EQ(json::parse(printed.out)["name"], "skip");

  const std::string stored = absl::StrReplaceAll(
      graph::SkipGraphJson(),
      {{R"("init": {"kind": "NORMAL", "standardDeviation": 0.4})", R"("init": {"kind": "STORED"})"}});
  fusion::testing::WriteFile(folder_ / "model.json", stored);
  const ProcessResult values = Ctl({"validate", "-f", folder_ / "own.yaml"});
  EXPECT_EQ(values.exit_code, 2);
  EXPECT_THAT(values.err, HasSubstr("own.yaml:1:5: spec.model.graph.uri: "));
  EXPECT_THAT(values.err, HasSubstr("model.safetensors cannot be read"));
}

TEST_F(Fusionctl, MalformedGraphsAreStatusTwoWithTheField) {
  fusion::testing::WriteFile(folder_ / "own.yaml", kGraphJob);
  fusion::testing::WriteFile(folder_ / "table.csv", "a,b\n1,2\n3,4\n");
  const std::string good = graph::SkipGraphJson();
  const auto changed = [&](const std::string& from, const std::string& to) {
    const std::string text = absl::StrReplaceAll(good, {{from, to}});
    EXPECT_NE(text, good) << from;
    return text;
  };
  graph::v1::Graph binary;
  ASSERT_TRUE(api::FromJson(json::parse(good), api::Mode::kStrict, &binary).ok());
  const std::string bytes = binary.SerializeAsString();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "model.json: is empty"},
      {"{", "is not JSON"},
      {"\x7f\x45LF", "is neither JSON nor a binary"},
      {bytes.substr(0, bytes.size() / 2), "is neither JSON nor a binary"},
      {bytes + "\xfa\x3f\x01x", "1023: is a field number"},
      {std::string(100'000, '['), "is neither JSON nor a binary"},
      {"{\"operators\": " + std::string(100'000, '['), "is not JSON"},
      {"{}", "graph has no operators"},
      {"{\"operators\": 7}", "operators: must be a list, not the number 7"},
      {"{\"operators\": [null]}", "operators[0]: must"},
      {changed("\"kind\": \"PLACEHOLDER\"", "\"kind\": \"DATA\""), "operators[0].kind: must be one of"},
      {changed("\"shape\": [-1, 5]", "\"shape\": [-1, 5.5]"),
       "operators[0].outputs[0].shape[1]: must be an integer"},
      {changed("\"shape\": [-1, 5]", "\"shape\": [-1, 9223372036854775807]"),
       "operators[0].outputs[0].shape 'input': "},
      {changed("\"shape\": [8, 5]", "\"shape\": [8, -5]"),
       "operators[1].outputs[0].shape[1] 'in.weight': a variable's"},
      {changed("aten.silu\"", "aten.silu_\""),
       "operators[6].type 'first': aten.silu_ writes into its arguments"},
      {changed("{\"value\": \"in\"}", "{\"value\": \"sum\"}"),
       "operators[6].args[0].value 'first': reads 'sum', which"},
      {changed("{\"value\": \"first\"}, {\"int\": 1}", "{\"value\": \"first\", \"index\": 3}, {\"int\": 1}"),
       "operators[7].args[0].value 'scan': reads output 3 of 'first'"},
      {changed("\"name\": \"gate\"", "\"name\": \"g*te\""), "operators[9].name 'g*te': "},
      {changed("\"name\": \"label\"", "\"name\": \"lable\""),
       "operators[15].name: placeholder 'lable' gets no data"},
      {changed("\"loss\": {\"value\": \"loss\"}", "\"loss\": {\"value\": \"out\"}"),
       "must be a floating scalar"},
      {changed("[-1, 3]", "[-1, 4]"), "operators[14].outputs[0] 'out': output 0 of aten.linear is"},
      {changed("\"shape\": [-1, 5]", "\"shape\": [4, 5]"),
       "operators[0].outputs[0].shape: the first dimension"},
  };
  ASSERT_GE(cases.size(), 20U);
  for (const auto& [text, message] : cases) {
    fusion::testing::WriteFile(folder_ / "model.json", text);
    const ProcessResult result =
        Ctl({"run", "-f", folder_ / "own.yaml", "-f", Job(), "--workdir", Workdir()});
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr("own.yaml:1:5: spec.model.graph.uri: ")) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_FALSE(fs::exists(Workdir())) << message;
  }
}

TEST_F(Fusionctl, GraphIsDrawnInTheColoursOfItsStages) {
  const ProcessResult planned = Ctl({"plan", "-f", Job(), "--workdir", Workdir(), "-o", "json"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const ProcessResult svg = Ctl({"graph", "-f", Job(), "--workdir", Workdir(), "-o", "svg"});
  ASSERT_EQ(svg.exit_code, 0) << svg.err;
  EXPECT_THAT(svg.out, HasSubstr(">stage 0: a1 (site-a)</text>"));
  fusion::testing::WriteFile(folder_ / "plan.json", planned.out);
  EXPECT_EQ(Ctl({"graph", "-f", Job(), "-o", "svg", "--plan", folder_ / "plan.json"}).out, svg.out);
  fusion::testing::WriteFile(folder_ / "plan.json", R"({"job": "other"})");
  EXPECT_EQ(Ctl({"graph", "-f", Job(), "-o", "svg", "--plan", folder_ / "plan.json"}).exit_code, 2);
  fusion::testing::WriteFile(folder_ / "graph.svg", svg.out);
  const ProcessResult parsed = fusion::testing::Run(
      {"/usr/bin/python3", "-c",
       "import sys, xml.dom.minidom as m; d = m.parse(sys.argv[1]); print(len([g for g in "
       "d.getElementsByTagName('g') if g.getAttribute('class') == 'operator']))",
       folder_ / "graph.svg"},
      folder_ / "captured");
  EXPECT_EQ(parsed.exit_code, 0) << parsed.err;
  const json graph = json::parse(Ctl({"graph", "-f", Job()}).out);
  size_t drawn = 0;
  for (const json& op : graph["operators"]) drawn += op["kind"] != "VARIABLE" ? 1 : 0;
  EXPECT_EQ(parsed.out, absl::StrCat(drawn, "\n"));
}

TEST_F(Fusionctl, ProfileIsMeasuredOnceAndRounded) {
  const ProcessResult first = Ctl({"profile", "--workdir", Workdir(), "-o", "json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(json::parse(first.out)["flops"], 4.1e10);
  const ProcessResult second = Ctl({"profile", "--workdir", Workdir(), "-o", "json"});
  EXPECT_EQ(second.out, first.out);
  EXPECT_EQ(second.err, "");
  EXPECT_EQ(fusion::testing::ReadFile(folder_ / "calls"), "run\n");
  EXPECT_EQ(Ctl({"profile", "--workdir", Workdir(), "--refresh"}).exit_code, 0);
  EXPECT_EQ(fusion::testing::ReadFile(folder_ / "calls"), "run\nrun\n");
}

TEST_F(Fusionctl, ProfileOfAFailingWorker) {
  FakeWorker("echo broken >&2; exit 3");
  const ProcessResult failing = Ctl({"profile", "--workdir", Workdir()});
  EXPECT_EQ(failing.exit_code, 1);
  EXPECT_THAT(failing.err, HasSubstr("ended with status 3"));
  FakeWorker("echo '{}'");
  const ProcessResult empty = Ctl({"profile", "--workdir", Workdir()});
  EXPECT_NE(empty.exit_code, 0);
  EXPECT_THAT(empty.err, HasSubstr("profile: flops"));
  fs::remove(folder_ / "worker");
  EXPECT_THAT(Ctl({"profile", "--workdir", Workdir()}).err, HasSubstr("cannot be run: No such file"));
  EXPECT_FALSE(fs::exists(Workdir()));
}

TEST_F(Fusionctl, CtrlCEndsTheChild) {
  FakeWorker(absl::StrCat("touch ", folder_ / "started", "\nexec sleep 300"));
  fusion::testing::Process process(Words({"profile", "--workdir", Workdir()}), folder_ / "captured");
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!fs::exists(folder_ / "started") && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(10));
  ASSERT_TRUE(fs::exists(folder_ / "started"));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(std::chrono::seconds(20)).exit_code, 130);
  EXPECT_TRUE(fusion::testing::ProcessesWith(folder_.path()).empty());
  EXPECT_FALSE(fs::exists(Workdir()));
}

TEST_F(Fusionctl, PlanPrintsTablesAndPlanJson) {
  const ProcessResult table = Ctl({"plan", "-f", Job(), "--workdir", Workdir()});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, StartsWith("small: 1 stage by OpFence"));
  EXPECT_THAT(table.out, Not(HasSubstr("\x1b")));
  const json plan = json::parse(Ctl({"plan", "-f", Job(), "--workdir", Workdir(), "-o", "json"}).out);
  EXPECT_EQ(plan["job"], "small");
  EXPECT_EQ(plan["stages"][0]["compnode"], "a1");
  EXPECT_EQ(plan["links"], json::array());
  const json compared =
      json::parse(Ctl({"plan", "-f", Job(), "--workdir", Workdir(), "--compare", "-o", "json"}).out);
  EXPECT_EQ(compared["plans"].size(), 4U);
}

TEST_F(Fusionctl, EmulatedSpeedsFitTheMachineOnRequest) {
  const std::string job = Changed("  devices:", "  emulation: {flops: 1e14}\n  devices:");
  const ProcessResult refused = Ctl({"run", "-f", job, "--workdir", Workdir()});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.out, HasSubstr("--fit-emulation"));
  const std::string scaled = "the compnodes' emulation.flops are scaled by 0.00";
  EXPECT_THAT(Ctl({"run", "-f", job, "--workdir", Workdir(), "--overwrite", "--fit-emulation"}).err,
              HasSubstr(scaled))
      << "this run fails, its worker is none";
  const ProcessResult plan =
      Ctl({"plan", "-f", job, "--workdir", Workdir(), "--fit-emulation", "-o", "json"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr(scaled));
  EXPECT_GT(json::parse(plan.out)["stepSeconds"],
            json::parse(Ctl({"plan", "-f", job, "--workdir", Workdir(), "-o", "json"}).out)["stepSeconds"]);
}

TEST_F(Fusionctl, PlanSaysWhyNothingFits) {
  const ProcessResult result =
      Ctl({"plan", "-f", Changed("memory: 1Gi", "memory: 1Ki"), "--workdir", Workdir()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("a1"));
  EXPECT_EQ(result.out, "");
}

TEST_F(Fusionctl, GetReadsTheWorkingFolder) {
  const ProcessResult nothing = Ctl({"get", "jobs", "--workdir", Workdir()});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("no run has left objects in"));
  const json object = {{"apiVersion", "fusion.dev/v1alpha1"},
                       {"kind", "FusionJob"},
                       {"metadata", {{"name", "small"}, {"namespace", "default"}}},
                       {"status", {{"phase", "Running"}, {"progress", {{"step", 3}, {"steps", 10}}}}}};
  const std::string objects = op::ObjectsFolder(Workdir());
  fs::create_directories(objects + "/fusionjobs");
  ASSERT_TRUE(op::WriteObjectFile(objects, op::kFusionJobs, object).ok());
  const ProcessResult table = Ctl({"get", "jobs", "--workdir", Workdir()});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("\nsmall  Running  -       3/10     -  -           -                0\n"));
  EXPECT_EQ(json::parse(Ctl({"get", "job", "small", "--workdir", Workdir(), "-o", "json"}).out), object);
  EXPECT_EQ(json::parse(Ctl({"get", "jobs", "--workdir", Workdir(), "-o", "json"}).out)["items"][0], object);
  EXPECT_THAT(Ctl({"get", "jobs", "--workdir", Workdir(), "-o", "yaml"}).out, HasSubstr("phase: Running"));
  const ProcessResult missing = Ctl({"get", "jobs", "large", "--workdir", Workdir()});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("fusionjobs \"large\" not found"));
}

}  // namespace
}  // namespace fusion::cli
