#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/drawn_graph.h"
#include "cli/graph_view.h"
#include "cli/object_view.h"
#include "cli/plan_view.h"
#include "cli/progress.h"
#include "cli/run_monitor.h"
#include "cli/run_view.h"
#include "cli/table.h"
#include "nlohmann/json.hpp"
#include "proto/yaml.h"

namespace fusion::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Table, AlignsColumns) {
  Table table({{"NAME"}, {"BYTES", Align::kRight}, {"NOTE"}});
  table.Add({"a", "1", ""});
  table.Add({"0 → 1", "1234567", "x"});
  EXPECT_EQ(table.Render(),
            "NAME     BYTES  NOTE\n"
            "a            1\n"
            "0 → 1  1234567  x\n");
}

graph::v1::Graph Branches() {
  graph::v1::Graph graph;
  graph.set_name("a \"b\" <c>");
  const auto add = [&](const std::string& name, const std::vector<std::string>& reads) {
    graph::v1::Operator* op = graph.add_operators();
    op->set_name(name);
    op->set_type("aten.sum");
    for (const std::string& read : reads) op->add_args()->mutable_value()->set_operator_(read);
  };
  add("x", {});
  add("left", {"x"});
  add("right", {"x"});
  add("deep", {"left"});
  add("late", {});
  add("end", {"deep", "right", "x", "late", "deep"});
  return graph;
}

TEST(DrawnGraph, LayersFollowTheLongestWay) {
  const graph::v1::Graph graph = Branches();
  const DrawnGraph drawn = MakeDrawn(graph, nullptr);
  EXPECT_EQ(drawn.edges.size(), 7U) << "one for each pair";
  const Layout layout = MakeLayout(drawn);
  const auto y = [&](int node) { return layout.boxes[static_cast<size_t>(node)].y; };
  EXPECT_LT(y(0), y(1));
  EXPECT_EQ(y(1), y(2));
  EXPECT_LT(y(2), y(3));
  EXPECT_EQ(y(4), y(3)) << "right above its reader";
  EXPECT_LT(y(3), y(5));
  for (size_t a = 0; a < layout.boxes.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const auto& one = layout.boxes[a];
      const auto& other = layout.boxes[b];
      if (one.y == other.y) {
        EXPECT_GE(std::abs(one.x - other.x), (one.width + other.width) / 2) << a << " over " << b;
      }
    }
    EXPECT_GE(layout.boxes[a].x - layout.boxes[a].width / 2, 0);
    EXPECT_LE(layout.boxes[a].x + layout.boxes[a].width / 2, layout.width);
    EXPECT_LE(layout.boxes[a].y, layout.height);
  }
  for (size_t i = 0; i < drawn.edges.size(); ++i) {
    EXPECT_EQ(layout.paths[i].front().x, layout.boxes[static_cast<size_t>(drawn.edges[i].from)].x);
    EXPECT_EQ(layout.paths[i].back().x, layout.boxes[static_cast<size_t>(drawn.edges[i].to)].x);
  }
}

TEST(DrawnGraph, NamesAreQuotedAndStagesColoured) {
  const graph::v1::Graph graph = Branches();
  graph::v1::Plan plan;
  for (int i = 0; i < 2; ++i) {
    graph::v1::PlannedStage* stage = plan.add_stages();
    stage->set_index(i);
    stage->set_compnode(i == 0 ? "n<1>" : "n2");
  }
  for (const char* name : {"x", "left", "late"}) plan.mutable_stages(0)->add_operators(name);
  for (const char* name : {"right", "deep", "end"}) plan.mutable_stages(1)->add_operators(name);
  const DrawnGraph drawn = MakeDrawn(graph, &plan);
  EXPECT_NE(drawn.stages[0].color, drawn.stages[1].color);
  EXPECT_EQ(
      std::count_if(drawn.edges.begin(), drawn.edges.end(), [](const DrawnEdge& e) { return e.crosses; }), 4);
  const std::string dot = GraphDot(graph, &plan);
  EXPECT_THAT(dot, testing::StartsWith("digraph \"a \\\"b\\\" <c>\" {\n"));
  EXPECT_THAT(dot, HasSubstr("n0 -> n2 [style=dashed, penwidth=2];"));
  EXPECT_THAT(dot, HasSubstr("n0 -> n1;"));
  EXPECT_THAT(dot, HasSubstr("fillcolor=\"" + drawn.stages[1].color + "\", comment=\"stage 1\""));
  const std::string svg = GraphSvg(graph, &plan);
  EXPECT_THAT(svg, HasSubstr("<title>a &quot;b&quot; &lt;c&gt;</title>"));
  EXPECT_THAT(svg, HasSubstr("stage 0: n&lt;1&gt;</text>"));
  EXPECT_THAT(svg, HasSubstr("fill=\"" + drawn.stages[0].color + "\" stroke=\"#333333\""));
  EXPECT_THAT(GraphSvg(graph, nullptr), Not(HasSubstr("legend")));
}

Progress Running() {
  Progress progress;
  progress.job = "gpt2";
  progress.phase = "Running";
  progress.step = 120;
  progress.steps = 200;
  progress.loss = 2.3149;
  progress.samples_per_second = 41.23;
  progress.eta_seconds = 97;
  progress.links = {{0, 1, 12595}, {1, 0, 524288}};
  return progress;
}

TEST(ProgressLine, ShowsWhatIsKnown) {
  EXPECT_EQ(
      ProgressLine(Running(), 120),
      "gpt2 ━━━━━━━━━━━━━━────────── · 120/200 · loss 2.315 · 41.2 samples/s · ETA 1m37s · 0→1 12.3 KiB "
      "· 1→0 512.0 KiB");
  Progress planning;
  planning.job = "gpt2";
  planning.phase = "Planning";
  EXPECT_EQ(ProgressLine(planning, 80), "gpt2 Planning");
}

TEST(ProgressLine, LeavesOutFromTheEnd) {
  EXPECT_EQ(ProgressLine(Running(), 60), "gpt2 ━━━━──── · 120/200 · loss 2.315 · 41.2 samples/s …");
  EXPECT_EQ(ProgressLine(Running(), 10), "gpt2 ━━━━─");
}

RC_GTEST_PROP(ProgressLine, IsNeverWider, (uint8_t width)) {
  RC_ASSERT(DisplayWidth(ProgressLine(Running(), width)) <= width);
}

TEST(ProgressView, PlainLinesWithoutATerminal) {
  std::ostringstream out;
  std::ostringstream err;
  Console console{out, err};
  ProgressView view(console);
  Progress progress = Running();
  const absl::Time start = absl::FromUnixSeconds(1000);
  view.Show(progress, start);
  progress.step = 121;
  view.Show(progress, start + absl::Seconds(1));
  progress.validation_loss = 2.5;
  view.Show(progress, start + absl::Seconds(2));
  progress.step = 122;
  view.Show(progress, start + absl::Seconds(20));
  EXPECT_EQ(err.str(),
            "gpt2: Running, 120/200, loss 2.315, 41.2 samples/s, ETA 1m37s, 0→1 12.3 KiB, 1→0 512.0 KiB\n"
            "gpt2: Running, 121/200, loss 2.315, 41.2 samples/s, ETA 1m37s, validation 2.5, 0→1 12.3 KiB, "
            "1→0 512.0 KiB\n"
            "gpt2: Running, 122/200, loss 2.315, 41.2 samples/s, ETA 1m37s, validation 2.5, 0→1 12.3 KiB, "
            "1→0 512.0 KiB\n");
  EXPECT_EQ(out.str(), "");
}

TEST(ProgressView, OneLineOnATerminal) {
  std::ostringstream out;
  std::ostringstream err;
  Console console{out, err, false, false, true, [] { return 20; }};
  {
    ProgressView view(console);
    view.Show(Running(), absl::FromUnixSeconds(1000));
    view.Show(Running(), absl::FromUnixSeconds(1000) + absl::Milliseconds(10));  // too soon
  }
  EXPECT_EQ(err.str(), "\rgpt2 ━━━━──── …\x1b[K\r\x1b[K");
}

graph::v1::Plan TwoStages() {
  graph::v1::Plan plan;
  plan.set_job("gpt2");
  plan.set_policy("OpFence");
  plan.set_schedule("OneForwardOneBackward");
  plan.set_step_seconds(1.25);
  plan.set_samples_per_second(51.2);
  plan.set_bubble_fraction(0.183);
  plan.set_free_links_step_seconds(1.1);
  for (int i = 0; i < 2; ++i) {
    auto* stage = plan.add_stages();
    stage->set_index(i);
    stage->set_compnode(i == 0 ? "a1" : "b1");
    stage->set_cluster(i == 0 ? "site-a" : "site-b");
    for (const char* name : {"input", "h.0", "h.1"}) stage->add_operators(name);
    stage->set_parameters(i == 0 ? 123456 : 999);
    stage->set_memory_bytes(300 << 20);
    stage->set_memory_limit_bytes(i == 0 ? int64_t{2} << 30 : INT64_MAX);
    stage->set_depth(2);
  }
  auto* link = plan.add_links();
  link->set_to(1);
  link->set_direction(graph::v1::PlannedLink::Forward);
  link->set_codec("int4");
  link->set_bytes(17000);
  link->set_dense_bytes(131072);
  link->set_ratio(7.71);
  link->set_seconds(0.057);
  return plan;
}

TEST(PlanText, StagesLinksPrediction) {
  EXPECT_EQ(PlanText(TwoStages(), false),
            "gpt2: 2 stages by OpFence, OneForwardOneBackward\n"
            "\n"
            "STAGE  COMPNODE  CLUSTER  OPERATORS        PARAMETERS                MEMORY\n"
            "    0  a1        site-a   input … h.1 (3)     123,456  300.0 MiB of 2.0 GiB\n"
            "    1  b1        site-b   input … h.1 (3)         999             300.0 MiB\n"
            "\n"
            "LINK   CODEC     BYTES  RATIO   TIME\n"
            "0 → 1  int4   16.6 KiB   7.71  57 ms\n"
            "(bytes and time of one micro-batch)\n"
            "\n"
            "predicted: 1.25 s a step, 51.2 samples/s, bubble 18 %; over free links 1.1 s\n");
  EXPECT_THAT(PlanText(TwoStages(), true), HasSubstr("SUB-DAGS"));
}

TEST(ComparisonText, NamesWhyAPolicyHasNoPlan) {
  const std::string text =
      ComparisonText({{"OpFence", TwoStages(), ""}, {"EqualNumber", {}, "needs 5.2 GiB"}});
  EXPECT_EQ(text,
            "POLICY       STAGES    STEP  SAMPLES/S  BUBBLE  SLOWEST LINK  COMPNODES\n"
            "OpFence           2  1.25 s       51.2    18 %         57 ms  a1 b1\n"
            "EqualNumber       -       -          -       -             -  infeasible\n"
            "\n"
            "EqualNumber: needs 5.2 GiB\n");
}

op::JobResult Result(const std::string& phase) {
  op::JobResult result;
  result.job = "gpt2";
  result.phase = phase;
  result.reason = phase == "Failed" ? "WorkerLost" : "AllStepsDone";
  result.message = phase == "Failed" ? "stage 1 on b1 was ended by signal 9" : "";
  result.step = 4;
  result.loss = 2.123456789;
  result.validation_loss = 2.5;
  result.checkpoint = "work/gpt2/checkpoints/step-4";
  result.tasks = 1000;
  result.overrun_tasks = 5;
  return result;
}

op::StepRecord Step(int64_t step, double seconds) {
  op::StepRecord record;
  record.step = step;
  record.loss = 3.0 / static_cast<double>(step);
  record.step_seconds = seconds;
  record.samples_per_second = 64 / seconds;
  record.links = {{.from = 0, .to = 1, .bytes = 1024}};
  if (step == 2) record.validation_loss = 2.5;
  return record;
}

TEST(RunMonitor, GathersStepsAndWakes) {
  RunMonitor monitor;
  const op::JobCallbacks callbacks = monitor.Callbacks();
  const auto readable = [&] {
    pollfd wait = {monitor.descriptor(), POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  };
  EXPECT_FALSE(readable());
  callbacks.on_phase("Running", "");
  for (int step = 1; step <= 3; ++step) callbacks.on_step(Step(step, step));
  EXPECT_TRUE(readable());
  const JobState state = monitor.State();
  EXPECT_FALSE(readable());
  EXPECT_EQ(state.phase, "Running");
  EXPECT_EQ(state.link_bytes.at({0, 1}), 3072);
  EXPECT_EQ(MedianStepSeconds(state), 3);
  EXPECT_EQ(MedianStepSeconds(state, 0), 2);
  EXPECT_EQ(ProgressLine(ProgressOf("gpt2", 10, state), 200),
            "gpt2 ━━━━━━━───────────────── · 3/10 · loss 1 · 21.3 samples/s · ETA 14 s · validation 2.5 · "
            "0→1 1.0 KiB");
  EXPECT_FALSE(monitor.Result().has_value());
  monitor.SetResult(Result("Succeeded"));
  EXPECT_TRUE(readable());
  EXPECT_EQ((*monitor.Result())->step, 4);
}

TEST(RunSummary, PredictedAgainstMeasured) {
  JobState state;
  state.step_seconds = {9, 8, 1.0, 1.2};
  state.link_bytes[{0, 1}] = 4 * 1024;
  state.plan = TwoStages();
  EXPECT_EQ(RunSummary(Result("Succeeded"), state),
            "gpt2: Succeeded after 4 steps\n"
            "  loss             2.12346\n"
            "  validation loss  2.5\n"
            "  step time        1.2 s measured (median), 1.25 s predicted (+4.2 %)\n"
            "  emulated tasks   1000, 5 longer than emulated (0.5 %)\n"
            "  link 0 → 1       4.0 KiB, 1.0 KiB a step\n"
            "  checkpoint       work/gpt2/checkpoints/step-4\n");
  EXPECT_THAT(RunSummary(Result("Failed"), {}),
              HasSubstr("gpt2: Failed after 4 steps: WorkerLost: stage 1 on b1 was ended by signal 9\n"));
  EXPECT_THAT(RunSummary(Result("Failed"), {}), Not(HasSubstr("step time")));
}

TEST(RunSummary, AClassificationHasAnAccuracy) {
  op::JobResult result = Result("Succeeded");
  EXPECT_THAT(RunSummary(result, {}), Not(HasSubstr("accuracy")));
  result.validation_accuracy = 0.96875;
  EXPECT_THAT(RunSummary(result, {}), HasSubstr("  accuracy         96.88 % of the validation samples\n"));
  EXPECT_EQ(op::ResultJson(result)["validationAccuracy"], 0.96875);
}

TEST(RunSummary, ValidationLossAgainstItsBound) {
  EXPECT_THAT(RunSummary(Result("Succeeded"), {}, 2.75), HasSubstr("loss  2.5, under the bound of 2.75\n"));
  EXPECT_THAT(RunSummary(Result("Succeeded"), {}, 2.25), HasSubstr("loss  2.5, ABOVE the bound of 2.25\n"));
  v1alpha1::FusionJob job;
  EXPECT_EQ(ValidationLossBound(job), std::nullopt);
  auto& annotations = *job.mutable_metadata()->mutable_annotations();
  annotations["fusion.dev/validation-loss-bound"] = "3.1";
  EXPECT_EQ(ValidationLossBound(job), 3.1);
  annotations["fusion.dev/validation-loss-bound"] = "low";
  EXPECT_EQ(ValidationLossBound(job), std::nullopt);
}

TEST(ObjectTables, TakeObjectsOfNewerVersions) {
  const auto objects = api::ParseYaml(R"(
apiVersion: fusion.dev/v1alpha1
kind: FusionJob
metadata: {name: gpt2, aFieldOfTheFuture: 1}
status:
  phase: Running
  progress: {step: 12, steps: 200}
  display: {stagesReady: 3/4, clusters: "c0,c1", loss: "2.310", throughput: 41 samples/s}
)");
  EXPECT_EQ(JobTable({objects.documents[0].value}, false).Render(),
            "NAME  PHASE    STAGES    STEP   LOSS  THROUGHPUT    CLUSTERS  RESTARTS\n"
            "gpt2  Running  3/4     12/200  2.310  41 samples/s  c0,c1            0\n");
  EXPECT_EQ(
      CompnodeTable({{{"metadata", {{"name", "a1"}}}, {"spec", {{"cluster", "site-a"}}}}}, false).Render(),
      "NAME  CLUSTER  CLASS  READY  ASSIGNMENTS\n"
      "a1    site-a   -      -      -\n");
}

}  // namespace
}  // namespace fusion::cli
