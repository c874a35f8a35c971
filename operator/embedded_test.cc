#include "operator/embedded.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "operator/job_folder.h"
#include "operator/object.h"
#include "operator/store/object_files.h"
#include "tests/support/process.h"

namespace fusion::op {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class FixedProfile : public ProfileSource {
 public:
  absl::StatusOr<scheduler::MachineProfile> Profile(const graph::v1::Graph&, int64_t) override {
    return scheduler::UnmeasuredProfile(1e10);
  }
};

std::vector<v1alpha1::Compnode> Nodes(int count, double emulated_flops = 0) {
  std::vector<v1alpha1::Compnode> nodes;
  for (int i = 0; i < count; ++i) {
    v1alpha1::Compnode& node = nodes.emplace_back();
    node.set_api_version("fusion.dev/v1alpha1");
    node.set_kind("Compnode");
    node.mutable_metadata()->set_name(absl::StrCat("n", i));
    node.mutable_spec()->set_cluster("home");
    v1alpha1::Device& device = *node.mutable_spec()->add_devices();
    device.set_name("cpu");
    device.set_kind(v1alpha1::Device::CPU);
    device.set_memory("1Gi");
    device.mutable_peak_flops()->set_fp32(1e10);
    if (emulated_flops > 0) node.mutable_spec()->mutable_emulation()->set_flops(emulated_flops);
  }
  return nodes;
}

/// A control plane in a folder of its own whose workers are fake_worker.
class EmbeddedTest : public ::testing::Test {
 protected:
  EmbeddedTest() {
    std::ofstream(folder_.path() + "/table.csv") << "a,b,target\n1,2,3\n4,5,6\n7,8,9\n";
    options_.workdir = folder_.path() + "/work";
    options_.profile = &profile_;
    options_.cores = 4;
  }

  void Start(const std::string& fault = "", const std::vector<v1alpha1::Compnode>& nodes = Nodes(2)) {
    options_.worker_command = [fault](const WorkerSpec& worker, const std::string& broker) {
      std::vector<std::string> command = {absl::StrCat(FUSION_BINARY_DIR, "/bin/fake_worker"),
                                          "stage",
                                          "--broker",
                                          broker,
                                          "--job",
                                          worker.job,
                                          "--stage",
                                          absl::StrCat(worker.stage),
                                          "--compnode",
                                          worker.compnode,
                                          "--incarnation",
                                          absl::StrCat(worker.incarnation)};
      if (!fault.empty()) command.insert(command.end(), {"--fault", fault});
      return command;
    };
    plane_.reset();
    auto plane = EmbeddedControlPlane::Start(options_, nodes);
    ASSERT_TRUE(plane.ok()) << plane.status();
    plane_ = *std::move(plane);
  }

  EmbeddedJob Job(int64_t steps, const std::string& name = "job") {
    EmbeddedJob input;
    input.base_directory = folder_.path();
    v1alpha1::FusionJob& job = input.job;
    job.set_api_version("fusion.dev/v1alpha1");
    job.set_kind("FusionJob");
    job.mutable_metadata()->set_name(name);
    v1alpha1::FusionJobSpec& spec = *job.mutable_spec();
    spec.set_task(v1alpha1::FusionJobSpec::Train);
    spec.mutable_model()->set_family(v1alpha1::Model::mlp);
    spec.mutable_model()->mutable_config()->set_inputs(2);
    spec.mutable_model()->mutable_config()->add_hidden(8);
    spec.mutable_model()->mutable_config()->set_outputs(1);
    spec.mutable_data()->set_kind(v1alpha1::Data::table);
    spec.mutable_data()->set_uri("table.csv");
    spec.mutable_training()->set_steps(steps);
    spec.mutable_training()->mutable_batch()->set_global(4);
    spec.mutable_training()->mutable_batch()->set_micro(2);
    spec.mutable_training()->mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
    spec.mutable_placement()->set_policy(v1alpha1::Placement::EqualNumber);
    return input;
  }

  JobResult Run(const EmbeddedJob& job) {
    auto result = plane_->Run(job, callbacks_);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(JobResult());
  }
  std::string Folder(const std::string& job = "job") const { return options_.workdir + "/" + job; }
  std::vector<json> Metrics() const {
    std::vector<json> lines;
    std::ifstream file(Folder() + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }
  /// Children of this process that are fake workers.
  static int FakeWorkers() {
    int count = 0;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      std::ifstream status(entry.path() / "stat");
      std::string command;
      std::string parent;
      std::getline(file, command, '\0');
      for (int i = 0; i < 4; ++i) status >> parent;
      if (absl::EndsWith(command, "/bin/fake_worker") && parent == absl::StrCat(getpid())) ++count;
    }
    return count;
  }
  /// What is left in the job's folder beside results.
  std::vector<std::string> Leftovers() const {
    std::vector<std::string> left;
    for (const auto& entry : fs::recursive_directory_iterator(Folder())) {
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, ".") || absl::EndsWith(name, ".new") ||
          absl::StrContains(name, "links.state")) {
        left.push_back(entry.path().string());
      }
    }
    return left;
  }

  testing::ScratchFolder folder_;
  FixedProfile profile_;
  EmbeddedOptions options_;
  JobCallbacks callbacks_;
  std::unique_ptr<EmbeddedControlPlane> plane_;
};

TEST_F(EmbeddedTest, TrainsToACheckpoint) {
  Start();
  EmbeddedJob job = Job(12);
  job.job.mutable_spec()->mutable_checkpoint()->set_every_steps(3);
  job.job.mutable_spec()->mutable_checkpoint()->set_keep(2);
  job.job.mutable_spec()->mutable_training()->mutable_validation()->set_every_steps(5);
  std::vector<std::string> phases;
  std::vector<int64_t> steps;
  int planned_stages = 0;
  callbacks_.on_phase = [&](const std::string& phase, const std::string&) { phases.push_back(phase); };
  callbacks_.on_plan = [&](const graph::v1::Plan& plan) { planned_stages = plan.stages_size(); };
  callbacks_.on_step = [&](const StepRecord& record) { steps.push_back(record.step); };
  const JobResult result = Run(job);
  EXPECT_EQ(result.phase, "Succeeded") << result.message;
  EXPECT_EQ(result.step, 12);
  EXPECT_EQ(result.loss, 1.0 / 36);
  EXPECT_EQ(result.validation_loss, 0.25);
  EXPECT_EQ(result.checkpoint, Folder() + "/checkpoints/step-12");
  EXPECT_TRUE(fs::is_directory(result.checkpoint));
  EXPECT_TRUE(fs::is_directory(Folder() + "/checkpoints/step-9"));
  EXPECT_FALSE(fs::exists(Folder() + "/checkpoints/step-6"));
  EXPECT_EQ(phases.front(), "Pending");
  EXPECT_EQ(phases.back(), "Succeeded");
  EXPECT_EQ(planned_stages, 2);
  EXPECT_EQ(steps.size(), 12u);

  const std::vector<json> metrics = Metrics();
  ASSERT_EQ(metrics.size(), 12u);
  for (size_t i = 0; i < metrics.size(); ++i) {
    EXPECT_EQ(metrics[i]["step"], i + 1);
    EXPECT_EQ(metrics[i]["loss"].get<double>(), 1.0 / static_cast<double>(3 * (i + 1)));
    EXPECT_EQ(metrics[i].contains("validationLoss"), i == 4 || i == 9 || i == 11) << i;
  }
  const json plan = json::parse(*ReadFile(result.plan));
  EXPECT_EQ(plan["stages"].size(), 2u);
  EXPECT_EQ(plan["incarnation"], 1);
  EXPECT_TRUE(absl::StrContains(*ReadFile(Folder() + "/logs/stage-1.log"), "stage 1 step 12"));
  EXPECT_TRUE(Leftovers().empty());
  EXPECT_EQ(FakeWorkers(), 0);

  const json object = *plane_->client().Get(kFusionJobs, {"default", "job"});
  EXPECT_EQ(StringAt(object, {"status", "checkpoint"}), result.checkpoint);
}

TEST_F(EmbeddedTest, EvaluatesWithoutACheckpoint) {
  Start();
  EmbeddedJob job = Job(1);
  job.job.mutable_spec()->set_task(v1alpha1::FusionJobSpec::Evaluate);
  const JobResult result = Run(job);
  EXPECT_EQ(result.phase, "Succeeded") << result.message;
  EXPECT_EQ(result.validation_loss, 0.25);
  EXPECT_EQ(result.checkpoint, "");
  const json printed = ResultJson(result);
  EXPECT_EQ(printed["validationLoss"], 0.25);
  EXPECT_FALSE(printed.contains("loss"));
}

TEST_F(EmbeddedTest, ADeadWorkerFailsTheJobWithinFiveSecondsNamingTheStage) {
  const std::map<std::string, std::string> words = {{"kill:1@4", "was ended by signal 9 (Killed)"},
                                                    {"crash:0@4", "exited with status 3"},
                                                    {"hang:1@4", "has not answered for"},
                                                    {"report:1@4", "out of memory"}};
  for (const auto& [fault, word] : words) {
    Start(fault);
    options_.overwrite = true;
    absl::Time last_step = absl::InfiniteFuture();
    callbacks_.on_step = [&](const StepRecord&) { last_step = absl::Now(); };
    EmbeddedJob job = Job(1000);
    job.job.mutable_metadata()->set_name(absl::StrCat("job-", fault.substr(0, 4)));
    absl::Time failed;
    callbacks_.on_phase = [&](const std::string& phase, const std::string&) {
      if (phase == "Failed") failed = absl::Now();
    };
    const JobResult result = Run(job);
    EXPECT_LE(failed - last_step, absl::Seconds(5)) << fault;
    EXPECT_EQ(result.phase, "Failed");
    const std::string stage =
        fault[fault.find(':') + 1] == '0' ? "stage 0 (compnode n0)" : "stage 1 (compnode n1)";
    EXPECT_TRUE(absl::StartsWith(result.message, stage)) << result.message;
    EXPECT_TRUE(absl::StrContains(result.message, word)) << result.message;
    EXPECT_EQ(FakeWorkers(), 0);
  }
}

TEST_F(EmbeddedTest, ALostWorkerIsReplacedWhereTheJobAllowsIt) {
  // The fault comes back in each attempt: two restarts, then the job fails.
  Start("kill:1@4");
  EmbeddedJob job = Job(20);
  job.job.mutable_spec()->mutable_run_policy()->set_backoff_limit(2);
  const JobResult result = Run(job);
  EXPECT_EQ(result.phase, "Failed");
  const json object = *plane_->client().Get(kFusionJobs, {"default", "job"});
  EXPECT_EQ(IntAt(object, {"status", "restarts"}), 2);
  EXPECT_EQ(IntAt(object, {"status", "incarnation"}), 3);
  EXPECT_EQ(Metrics().size(), 3u);  // of the last attempt alone
}

TEST_F(EmbeddedTest, ALostWorkersJobGoesOnFromItsNewestCheckpoint) {
  Start("kill:1@8#1");
  EmbeddedJob job = Job(12);
  job.job.mutable_spec()->mutable_checkpoint()->set_every_steps(3);
  job.job.mutable_spec()->mutable_run_policy()->set_backoff_limit(1);
  std::vector<int64_t> steps;
  std::string running;
  std::vector<std::string> notes;
  callbacks_.on_note = [&](const std::string& note) { notes.push_back(note); };
  callbacks_.on_step = [&](const StepRecord& record) { steps.push_back(record.step); };
  callbacks_.on_phase = [&](const std::string& phase, const std::string& message) {
    if (phase == "Running") running = message;
  };
  const JobResult result = Run(job);
  EXPECT_EQ(result.phase, "Succeeded") << result.message;
  // Whether step 7 was reported before stage 1 died is a matter of chance.
  const std::vector<int64_t> lost = steps.size() == 12 ? std::vector<int64_t>{} : std::vector<int64_t>{7};
  std::vector<int64_t> expected = {1, 2, 3, 4, 5, 6};
  expected.insert(expected.end(), lost.begin(), lost.end());
  for (int64_t step = 7; step <= 12; ++step) expected.push_back(step);
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(notes, std::vector<std::string>{"goes on from " + Folder() + "/checkpoints/step-6"});
  EXPECT_EQ(running, "all 2 stages are running; goes on from " + Folder() + "/checkpoints/step-6");
  const std::vector<json> metrics = Metrics();
  ASSERT_EQ(metrics.size(), 12u);
  for (size_t i = 0; i < metrics.size(); ++i) EXPECT_EQ(metrics[i]["step"], i + 1);
}

TEST_F(EmbeddedTest, CheckpointsGoWhereTheJobSays) {
  Start();
  EmbeddedJob job = Job(9);
  job.job.mutable_spec()->mutable_checkpoint()->set_uri("saved/here");
  job.job.mutable_spec()->mutable_checkpoint()->set_every_steps(2);
  job.job.mutable_spec()->mutable_checkpoint()->set_keep(2);
  const JobResult result = Run(job);
  EXPECT_EQ(result.phase, "Succeeded") << result.message;
  EXPECT_EQ(result.checkpoint, folder_.path() + "/saved/here/step-9");
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_.path() + "/saved/here")) {
    left.insert(entry.path().filename());
  }
  EXPECT_EQ(left, (std::set<std::string>{"step-8", "step-9"}));
  EXPECT_FALSE(fs::exists(CheckpointFolder(Folder())));
}

TEST_F(EmbeddedTest, ResumingGoesOnWhereTheFolderIs) {
  Start();
  EXPECT_EQ(Run(Job(6)).phase, "Succeeded");
  const std::string before = *ReadFile(Folder() + "/metrics.jsonl");
  options_.resume = true;
  Start();
  JobResult result = Run(Job(10));
  EXPECT_EQ(result.phase, "Succeeded") << result.message;
  EXPECT_EQ(result.step, 10);
  EXPECT_TRUE(absl::StartsWith(*ReadFile(Folder() + "/metrics.jsonl"), before));
  EXPECT_EQ(Metrics().size(), 10u);
  EXPECT_TRUE(absl::StrContains(*ReadFile(Folder() + "/logs/stage-0.log"), "stage 0 step 7"));

  // Nothing is left to do: the same result, and no line more.
  Start();
  result = Run(Job(10));
  EXPECT_EQ(result.phase, "Succeeded") << result.message;
  EXPECT_EQ(result.step, 10);
  EXPECT_EQ(result.loss, 1.0 / 30);
  EXPECT_EQ(result.checkpoint, Folder() + "/checkpoints/step-10");
  EXPECT_EQ(Metrics().size(), 10u);

  // A job without a folder begins.
  EXPECT_EQ(Run(Job(2, "new")).step, 2);
}

TEST_F(EmbeddedTest, CancelLeavesNoProcessAndNoPartialFile) {
  Start();
  absl::Mutex mutex;
  int64_t step = 0;
  callbacks_.on_step = [&](const StepRecord& record) {
    absl::MutexLock lock(&mutex);
    step = record.step;
  };
  std::thread user([&] {
    mutex.LockWhen(absl::Condition(
        +[](int64_t* s) { return *s >= 5; }, &step));
    mutex.Unlock();
    plane_->Cancel();
    plane_->Cancel();
  });
  EmbeddedJob job = Job(1'000'000);
  job.job.mutable_spec()->mutable_checkpoint()->set_every_steps(1);
  const JobResult result = Run(job);
  user.join();
  EXPECT_EQ(result.phase, "Failed");
  EXPECT_EQ(result.reason, "Cancelled");
  EXPECT_EQ(FakeWorkers(), 0);
  EXPECT_TRUE(Leftovers().empty());
  const JobResult later = Run(Job(5, "later"));
  EXPECT_EQ(later.reason, "Cancelled");
}

TEST_F(EmbeddedTest, AFolderThatExistsIsKeptUnlessItMayBeOverwritten) {
  Start();
  EXPECT_EQ(Run(Job(3)).phase, "Succeeded");
  std::ofstream(Folder() + "/notes.txt") << "mine";
  EXPECT_TRUE(absl::IsAlreadyExists(plane_->Run(Job(3), {}).status()));
  EXPECT_TRUE(fs::exists(Folder() + "/notes.txt"));
  options_.overwrite = true;
  Start();
  EXPECT_EQ(Run(Job(4)).step, 4);
  EXPECT_FALSE(fs::exists(Folder() + "/notes.txt"));
  EXPECT_EQ(Metrics().size(), 4u);
}

TEST_F(EmbeddedTest, ReplaysAPlan) {
  Start();
  EmbeddedJob job = Job(3);
  graph::v1::Plan plan;
  callbacks_.on_plan = [&](const graph::v1::Plan& made) { plan = made; };
  EXPECT_EQ(Run(job).phase, "Succeeded");
  ASSERT_EQ(plan.stages_size(), 2);
  plan.mutable_stages(0)->set_compnode("n1");
  plan.mutable_stages(1)->set_compnode("n0");
  job = Job(3, "replay");
  job.replay = plan;
  EXPECT_EQ(Run(job).phase, "Succeeded");
  EXPECT_EQ(plan.stages(0).compnode(), "n1");
}

TEST_F(EmbeddedTest, WhatCannotRunIsAResultInWords) {
  Start();
  EmbeddedJob missing = Job(3, "missing");
  missing.job.mutable_spec()->mutable_data()->set_uri("nowhere.csv");
  JobResult result = Run(missing);
  EXPECT_EQ(result.reason, "DataMissing");
  EXPECT_TRUE(absl::StrContains(result.message, folder_.path() + "/nowhere.csv")) << result.message;
  EXPECT_EQ(result.plan, "");

  Start("", Nodes(2, 1.5e10));
  result = Run(Job(3, "fast"));
  EXPECT_EQ(result.reason, "Infeasible");
  EXPECT_TRUE(absl::StrContains(result.message, "3e+10 FLOP/s") &&
              absl::StrContains(result.message, "2.4e+10"))
      << result.message;

  options_.worker_command = [](const WorkerSpec&, const std::string&) {
    return std::vector<std::string>{"/no/such/worker"};
  };
  plane_.reset();
  plane_ = *EmbeddedControlPlane::Start(options_, Nodes(2));
  result = Run(Job(3, "unstartable"));
  EXPECT_EQ(result.reason, "WorkerStartFailed");
  EXPECT_TRUE(absl::StrContains(result.message, "/no/such/worker")) << result.message;
}

TEST_F(EmbeddedTest, ObjectsAreReadableWhileARunGoesOnAndTheWorkdirHasOneRun) {
  Start();
  bool checked = false;
  callbacks_.on_step = [&](const StepRecord& record) {
    if (record.step != 5) return;
    auto jobs = ReadStoredObjects(ObjectsFolder(options_.workdir), kFusionJobs);
    ASSERT_TRUE(jobs.ok()) << jobs.status();
    ASSERT_EQ(jobs->size(), 1u);
    EXPECT_EQ(KeyOf(jobs->front()).name, "job");
    EXPECT_TRUE(absl::IsFailedPrecondition(EmbeddedControlPlane::Start(options_, Nodes(1)).status()));
    checked = true;
  };
  EXPECT_EQ(Run(Job(20)).phase, "Succeeded");
  EXPECT_TRUE(checked);
}

TEST_F(EmbeddedTest, AJobThatAnEarlierRunLeftIsFailedNotStarted) {
  const json left = {
      {"apiVersion", "fusion.dev/v1alpha1"},
      {"kind", "FusionJob"},
      {"metadata",
       {{"name", "left"},
        {"namespace", "default"},
        {"uid", "x"},
        {"resourceVersion", "7"},
        {"generation", 1},
        {"finalizers", {"fusion.dev/workers"}}}},
      {"spec", {{"model", {{"family", "mlp"}}}, {"data", {{"kind", "table"}, {"uri", "table.csv"}}}}},
      {"status", {{"phase", "Starting"}, {"incarnation", 1}}}};
  fs::create_directories(ObjectsFolder(options_.workdir) + "/fusionjobs");
  ASSERT_TRUE(WriteObjectFile(ObjectsFolder(options_.workdir), kFusionJobs, left).ok());
  Start();
  EXPECT_EQ(Run(Job(3)).phase, "Succeeded");
  const json job = *plane_->client().Get(kFusionJobs, {"default", "left"});
  EXPECT_EQ(StringAt(job, {"status", "phase"}), "Failed");
}

TEST(JobFolderTest, TidyJoinsTracesAndRemovesWhatIsHalfDone) {
  testing::ScratchFolder scratch;
  const std::string folder = scratch.path() + "/job";
  const std::string checkpoints = CheckpointFolder(folder);
  ASSERT_TRUE(MakeJobFolder(folder, checkpoints, ExistingFolder::kRefuse).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(MakeJobFolder(folder, checkpoints, ExistingFolder::kRefuse)));
  for (int stage : {0, 1}) {
    std::ofstream(TraceFile(folder, stage)) << "{\"traceEvents\": [{\"pid\": " << stage << "}]}";
  }
  fs::create_directories(CheckpointFolder(folder) + "/.step-3.partial/x");
  fs::create_directories(CheckpointFolder(folder) + "/step-2");
  std::ofstream(LinkStateFile(folder)) << "x";
  std::ofstream(folder + "/plan.json.new") << "half";
  ASSERT_TRUE(TidyJobFolder(folder, checkpoints, 2).ok());
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder)) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"checkpoints", "logs", "trace.json"}));
  EXPECT_FALSE(fs::exists(CheckpointFolder(folder) + "/.step-3.partial"));
  EXPECT_TRUE(fs::exists(CheckpointFolder(folder) + "/step-2"));
  EXPECT_EQ(json::parse(*ReadFile(folder + "/trace.json"))["traceEvents"].size(), 2u);
}

TEST(JobFolderTest, MetricsOfLaterStepsAreRemoved) {
  testing::ScratchFolder scratch;
  const std::string path = scratch.path() + "/metrics.jsonl";
  std::ofstream(path) << "{\"step\":1,\"loss\":0.5}\n\nnot a line\n{\"step\":2,\"loss\":0.25}\n"
                         "{\"step\":3}\n{\"step\":4,\"lo";
  MetricsFile metrics(path);
  ASSERT_TRUE(metrics.StartAfter(2).ok());
  EXPECT_EQ(*ReadFile(path), "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.25}\n");
  EXPECT_EQ(metrics.last_kept()["loss"], 0.25);
  StepRecord record;
  record.step = 3;
  ASSERT_TRUE(metrics.Append(record).ok());
  ASSERT_TRUE(metrics.StartAfter(0).ok());
  EXPECT_EQ(*ReadFile(path), "");
  EXPECT_TRUE(metrics.last_kept().is_null());
}

TEST(JobFolderTest, PruningKeepsTheNewestAndWhatIsNoCheckpoint) {
  testing::ScratchFolder scratch;
  const std::string folder = scratch.path() + "/kept";
  for (const char* name : {"step-9", "step-10", "step-100", "step-20.damaged"}) {
    fs::create_directories(folder + "/" + name + "/x");
  }
  ASSERT_TRUE(PruneCheckpoints(folder, 2).ok());
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder)) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"step-10", "step-100", "step-20.damaged"}));
}

TEST(JobFolderTest, CheckpointsElsewhereAreRefusedOrOverwrittenAlone) {
  testing::ScratchFolder scratch;
  const std::string folder = scratch.path() + "/job";
  const std::string elsewhere = scratch.path() + "/elsewhere";
  fs::create_directories(elsewhere + "/step-4");
  fs::create_directories(elsewhere + "/thesis");
  const absl::Status refused = MakeJobFolder(folder, elsewhere, ExistingFolder::kRefuse);
  EXPECT_TRUE(absl::IsAlreadyExists(refused));
  EXPECT_TRUE(absl::StrContains(refused.message(), elsewhere + "/step-4")) << refused;
  ASSERT_TRUE(MakeJobFolder(folder, elsewhere, ExistingFolder::kKeep).ok());
  EXPECT_TRUE(fs::exists(elsewhere + "/step-4"));
  ASSERT_TRUE(MakeJobFolder(folder, elsewhere, ExistingFolder::kOverwrite).ok());
  EXPECT_FALSE(fs::exists(elsewhere + "/step-4"));
  EXPECT_TRUE(fs::exists(elsewhere + "/thesis"));
  EXPECT_TRUE(*PutBackReplaced(folder, elsewhere));
  EXPECT_TRUE(fs::exists(elsewhere + "/step-4"));
  ASSERT_TRUE(MakeJobFolder(folder, elsewhere, ExistingFolder::kOverwrite).ok());
  ASSERT_TRUE(DropReplaced(folder, elsewhere).ok());
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(elsewhere)) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"thesis"}));
}

TEST(JobFolderTest, WhatIsReplacedComesBackUnlessTheNewRunBegan) {
  testing::ScratchFolder scratch;
  const std::string folder = scratch.path() + "/job";
  const std::string checkpoints = CheckpointFolder(folder);
  ASSERT_TRUE(MakeJobFolder(folder, checkpoints, ExistingFolder::kRefuse).ok());
  EXPECT_FALSE(*PutBackReplaced(folder, checkpoints)) << "nothing is set aside";
  fs::create_directories(checkpoints + "/step-7");
  std::ofstream(folder + "/logs/stage-0.log") << "old";

  ASSERT_TRUE(MakeJobFolder(folder, checkpoints, ExistingFolder::kOverwrite).ok());
  EXPECT_FALSE(fs::exists(checkpoints + "/step-7"));
  std::ofstream(folder + "/logs/stage-0.log") << "new";
  std::ofstream(folder + "/plan.json") << "new";
  // Killed here; any later run finds what was there before.
  EXPECT_TRUE(absl::IsAlreadyExists(MakeJobFolder(folder, checkpoints, ExistingFolder::kRefuse)));
  EXPECT_TRUE(fs::exists(checkpoints + "/step-7"));
  EXPECT_FALSE(fs::exists(folder + "/plan.json"));
  EXPECT_EQ(*ReadFile(folder + "/logs/stage-0.log"), "old");
  EXPECT_EQ(*ReadFile(folder + "/logs.failed/stage-0.log"), "new");

  ASSERT_TRUE(MakeJobFolder(folder, checkpoints, ExistingFolder::kOverwrite).ok());
  ASSERT_TRUE(DropReplaced(folder, checkpoints).ok());
  EXPECT_FALSE(*PutBackReplaced(folder, checkpoints));
  EXPECT_TRUE(fs::is_empty(checkpoints));
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(scratch.path())) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"job"}));
}

}  // namespace
}  // namespace fusion::op
