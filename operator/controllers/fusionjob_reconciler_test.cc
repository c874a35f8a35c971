#include "operator/controllers/fusionjob_reconciler.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "absl/strings/match.h"
#include "operator/controllers/compnode_reconciler.h"
#include "operator/controllers/fakes_for_test.h"
#include "operator/controllers/faulty_client.h"
#include "operator/controllers/progress_reconciler.h"
#include "operator/object.h"
#include "operator/store/object_store.h"

namespace fusion::op {
namespace {

using nlohmann::json;

const ObjectKey kKey{"default", "job"};
constexpr char kJob[] = "default/job";

/// A reconciler over a store and fakes, called by hand at a time that the test sets.
class FusionJobReconcilerTest : public ::testing::Test {
 protected:
  FusionJobReconcilerTest()
      : store_(*ObjectStore::Open({}, {kFusionJobs, kCompnodes})),
        client_(*store_),
        reconciler_({client_, planning_, archive_, broker_, launcher_, [this] { return now_; }}) {
    for (const char* name : {"a1", "b1"}) {
      const json node = {{"apiVersion", "fusion.dev/v1alpha1"},
                         {"kind", "Compnode"},
                         {"metadata", {{"name", name}}},
                         {"spec", {{"cluster", std::string("site-") + name[0]}}}};
      EXPECT_TRUE(store_->Create(kCompnodes, node).ok());
    }
  }

  void CreateJob(const json& run_policy = json::object()) {
    const json job = {{"apiVersion", "fusion.dev/v1alpha1"},
                      {"kind", "FusionJob"},
                      {"metadata", {{"name", "job"}, {"namespace", "default"}}},
                      {"spec",
                       {{"model", {{"family", "mlp"}}},
                        {"data", {{"kind", "table"}, {"uri", "t.csv"}}},
                        {"training", {{"steps", 10}}},
                        {"runPolicy", run_policy}}}};
    ASSERT_TRUE(store_->Create(kFusionJobs, job).ok());
  }
  absl::StatusOr<ReconcileResult> Reconcile() { return reconciler_.Reconcile(kKey); }
  json Job() { return store_->Get(kFusionJobs, kKey).value_or(json::object()); }
  std::string Phase() { return PhaseOf(Job()); }
  std::string ConditionStatus(const std::string& type) {
    const json job = Job();
    const json* conditions = Find(job, {"status", "conditions"});
    const json* condition = conditions == nullptr ? nullptr : FindCondition(*conditions, type);
    return condition == nullptr ? "" : StringAt(*condition, {"status"});
  }
  std::string FailureReason() {
    const json job = Job();
    const json* conditions = Find(job, {"status", "conditions"});
    const json* condition = conditions == nullptr ? nullptr : FindCondition(*conditions, "Failed");
    return condition == nullptr ? ""
                                : StringAt(*condition, {"reason"}) + ": " + StringAt(*condition, {"message"});
  }
  /// Reconciles until the job is in the phase; a hundred times at most.
  void Reach(const std::string& phase) {
    for (int i = 0; i < 100 && Phase() != phase; ++i) (void)Reconcile();
    ASSERT_EQ(Phase(), phase);
  }
  void ReachRunning() {
    Reach("Starting");
    ASSERT_TRUE(Reconcile().ok());
    broker_.Set(kJob, [](RunStatus& run) { run.phase = RunPhase::kRunning; });
    Reach("Running");
  }
  void FailRun(const std::string& reason) {
    broker_.Set(kJob, [&](RunStatus& run) {
      run.phase = RunPhase::kFailed;
      run.reason = reason;
      run.message = "stage 1 (compnode b1) was lost";
    });
  }

  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  std::unique_ptr<ObjectStore> store_;
  FaultyClient client_;
  FakePlanning planning_;
  FakeArchive archive_;
  FakeBroker broker_;
  FakeLauncher launcher_;
  FusionJobReconciler reconciler_;
};

TEST_F(FusionJobReconcilerTest, StartsTheWorkerOfTheCompnodesEngine) {
  json node = store_->Get(kCompnodes, {"", "b1"}).value();
  node["metadata"]["annotations"][api::kEngineAnnotation] = api::kJaxEngine;
  ASSERT_TRUE(store_->Update(kCompnodes, node).ok());
  CreateJob();
  Reach("Starting");
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(launcher_.engines(),
            (std::map<std::string, std::string>{{"a1", api::kTorchEngine}, {"b1", api::kJaxEngine}}));
}

TEST_F(FusionJobReconcilerTest, GoesThroughItsPhases) {
  CreateJob();
  std::vector<std::string> phases;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(Reconcile().ok());
    phases.push_back(Phase());
  }
  EXPECT_EQ(phases, (std::vector<std::string>{"Pending", "Planning", "Starting", "Starting"}));
  EXPECT_EQ(launcher_.started(), (std::set<std::string>{"default-job-s0-a1", "default-job-s1-a1"}));
  EXPECT_EQ(ConditionStatus("Planned"), "True");
  EXPECT_EQ(ConditionStatus("Ready"), "False");
  EXPECT_EQ(ConditionStatus("Reconciling"), "True");
  const json planned = Job();
  EXPECT_EQ(IntAt(planned, {"status", "incarnation"}), 1);
  EXPECT_EQ(StringAt((*Find(planned, {"status", "plan", "stages"}))[1], {"compnode"}), "b1");

  broker_.Set(kJob, [](RunStatus& run) { run.phase = RunPhase::kRunning; });
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(Phase(), "Running");
  EXPECT_EQ(ConditionStatus("Ready"), "True");
  EXPECT_EQ(ConditionStatus("Running"), "True");
  EXPECT_EQ(ConditionStatus("Reconciling"), "False");

  broker_.Set(kJob, [](RunStatus& run) {
    run.phase = RunPhase::kSucceeded;
    run.checkpoint = "step-10";
    run.steps = 10;
  });
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(Phase(), "Succeeded");
  EXPECT_EQ(ConditionStatus("Complete"), "True");
  EXPECT_EQ(ConditionStatus("Ready"), "True");
  EXPECT_EQ(ConditionStatus("Running"), "False");
  EXPECT_EQ(StringAt(Job(), {"status", "checkpoint"}), "step-10");
  EXPECT_EQ(IntAt(Job(), {"status", "observedGeneration"}), 1);
  EXPECT_EQ(launcher_.Running(kJob), 0);
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(Find(Job(), {"metadata", "finalizers"}), nullptr);
}

TEST_F(FusionJobReconcilerTest, DoesNothingTwice) {
  CreateJob();
  ReachRunning();
  const json running = Job();
  const int admissions = broker_.admissions();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(Job(), running);
  EXPECT_EQ(broker_.admissions(), admissions);
  EXPECT_EQ(planning_.plans, 1);
}

TEST_F(FusionJobReconcilerTest, NoWorkerIsStartedByWhoLosesTheWrite) {
  CreateJob();
  Reach("Planning");
  planning_.before_plan = [this] {  // somebody writes while the plan is made
    json job = Job();
    job["metadata"]["labels"]["team"] = "x";
    ASSERT_TRUE(store_->Update(kFusionJobs, job).ok());
  };
  EXPECT_TRUE(absl::IsAborted(Reconcile().status()));
  EXPECT_TRUE(launcher_.started().empty());
  EXPECT_EQ(Phase(), "Planning");
  planning_.before_plan = nullptr;
  Reach("Starting");
  EXPECT_EQ(IntAt(Job(), {"status", "incarnation"}), 1);
}

TEST_F(FusionJobReconcilerTest, WhatCannotBePlannedFailsInWords) {
  const std::map<absl::StatusCode, std::string> reasons = {
      {absl::StatusCode::kFailedPrecondition, "Infeasible"},
      {absl::StatusCode::kResourceExhausted, "Infeasible"},
      {absl::StatusCode::kNotFound, "DataMissing"},
      {absl::StatusCode::kInvalidArgument, "InvalidJob"},
      {absl::StatusCode::kInternal, "PlanningFailed"}};
  for (const auto& [code, reason] : reasons) {
    CreateJob();
    planning_.fault = absl::Status(code, "needs 5.2 GiB, the largest free device has 4 GiB");
    Reach("Failed");
    EXPECT_EQ(FailureReason(), reason + ": needs 5.2 GiB, the largest free device has 4 GiB");
    EXPECT_EQ(ConditionStatus("Stalled"), "True");
    EXPECT_EQ(ConditionStatus("Ready"), "False");
    EXPECT_TRUE(launcher_.started().empty());
    ASSERT_TRUE(Reconcile().ok());
    ASSERT_TRUE(store_->Delete(kFusionJobs, kKey, "").ok());
  }
}

TEST_F(FusionJobReconcilerTest, WhatMayPassIsTriedAgain) {
  CreateJob();
  Reach("Planning");
  planning_.fault = absl::UnavailableError("the profile is being measured");
  EXPECT_TRUE(absl::IsUnavailable(Reconcile().status()));
  EXPECT_EQ(Phase(), "Planning");
  planning_.fault = absl::OkStatus();
  Reach("Starting");
}

TEST_F(FusionJobReconcilerTest, ALostWorkerFailsTheJobAndStopsTheOthers) {
  CreateJob();
  ReachRunning();
  FailRun("WorkerLost");
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(Phase(), "Failed");
  EXPECT_EQ(FailureReason(), "WorkerLost: stage 1 (compnode b1) was lost");
  EXPECT_EQ(launcher_.Running(kJob), 0);
}

TEST_F(FusionJobReconcilerTest, RestartsWithAHigherIncarnationAsOftenAsAllowed) {
  CreateJob({{"backoffLimit", 1}});
  ReachRunning();
  launcher_.SetLinger(true);
  FailRun("WorkerLost");
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(Phase(), "Pending");
  EXPECT_EQ(IntAt(Job(), {"status", "restarts"}), 1);
  for (int i = 0; i < 3; ++i) {  // old workers first leave
    auto waiting = Reconcile();
    ASSERT_TRUE(waiting.ok());
    EXPECT_GT(waiting->requeue_after, absl::ZeroDuration());
    EXPECT_EQ(Phase(), "Pending");
  }
  launcher_.SetLinger(false);
  ReachRunning();
  EXPECT_EQ(IntAt(Job(), {"status", "incarnation"}), 2);
  EXPECT_EQ(launcher_.started().count("default-job-s1-a2"), 1u);
  FailRun("WorkerLost");
  Reach("Failed");
  EXPECT_EQ(IntAt(Job(), {"status", "restarts"}), 1);
}

TEST_F(FusionJobReconcilerTest, AFaultOfTheJobIsNotRestarted) {
  CreateJob({{"backoffLimit", 3}});
  ReachRunning();
  FailRun("StageFailed");
  Reach("Failed");
}

TEST_F(FusionJobReconcilerTest, WorkersThatAreNotReadyInTimeFailTheJob) {
  CreateJob({{"preRunningDeadlineSeconds", 60}});
  Reach("Starting");
  auto waiting = Reconcile();
  ASSERT_TRUE(waiting.ok());
  EXPECT_EQ(waiting->requeue_after, absl::Seconds(60));
  now_ += absl::Seconds(59);
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(Phase(), "Starting");
  now_ += absl::Seconds(1);
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(Phase(), "Failed");
  EXPECT_TRUE(absl::StartsWith(FailureReason(), "DeadlineExceeded: not all workers were ready"))
      << FailureReason();
  EXPECT_EQ(launcher_.Running(kJob), 0);
}

TEST_F(FusionJobReconcilerTest, ARestartHasItsOwnTimeToStart) {
  CreateJob({{"preRunningDeadlineSeconds", 60}, {"backoffLimit", 1}});
  ReachRunning();
  now_ += absl::Hours(1);
  FailRun("WorkerLost");
  Reach("Pending");
  Reach("Starting");
  EXPECT_EQ(Reconcile()->requeue_after, absl::Seconds(60));
  EXPECT_EQ(Phase(), "Starting");
}

TEST_F(FusionJobReconcilerTest, AJobHasItsTime) {
  CreateJob({{"activeDeadlineSeconds", 100}});
  ReachRunning();
  EXPECT_EQ(Reconcile()->requeue_after, absl::Seconds(100));
  now_ += absl::Seconds(101);
  Reach("Failed");
  EXPECT_TRUE(absl::StartsWith(FailureReason(), "DeadlineExceeded")) << FailureReason();
}

TEST_F(FusionJobReconcilerTest, AWorkerThatCannotBeStartedFailsTheJob) {
  CreateJob();
  Reach("Starting");
  launcher_.SetFault(absl::NotFoundError("cannot start /bin/fusion-worker"));
  client_.SetFault([this](const std::string&) {  // the first write of that comes too late
    client_.SetFault(nullptr);
    return absl::AbortedError("written meanwhile");
  });
  EXPECT_TRUE(absl::IsAborted(Reconcile().status()));
  Reach("Failed");
  EXPECT_EQ(FailureReason(), "WorkerStartFailed: stage 0 (compnode a1): cannot start /bin/fusion-worker");
}

TEST_F(FusionJobReconcilerTest, ARunThatNobodyKnowsIsLost) {
  CreateJob();
  ReachRunning();
  broker_.Forget(kJob);  // as after a restart of the operator
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(Phase(), "Failed");
  EXPECT_TRUE(absl::StartsWith(FailureReason(), "RunLost")) << FailureReason();
}

TEST_F(FusionJobReconcilerTest, CancelEndsAJobInAnyPhase) {
  for (const char* phase : {"", "Pending", "Planning", "Starting", "Running"}) {
    FusionJobReconciler reconciler(
        {client_, planning_, archive_, broker_, launcher_, [this] { return now_; }});
    CreateJob();
    if (std::string(phase) == "Running") {
      ReachRunning();
    } else {
      Reach(phase);
    }
    reconciler.Cancel(kKey, "the run was cancelled");
    ASSERT_TRUE(reconciler.Reconcile(kKey).ok());
    EXPECT_EQ(FailureReason(), "Cancelled: the run was cancelled") << phase;
    EXPECT_EQ(launcher_.Running(kJob), 0);
    ASSERT_TRUE(reconciler.Reconcile(kKey).ok());
    ASSERT_TRUE(store_->Delete(kFusionJobs, kKey, "").ok());
    ASSERT_TRUE(reconciler.Reconcile(kKey).ok());
  }
}

TEST_F(FusionJobReconcilerTest, ADeletedJobGoesWhenItsWorkersHave) {
  CreateJob();
  ReachRunning();
  launcher_.SetLinger(true);
  ASSERT_TRUE(store_->Delete(kFusionJobs, kKey, "").ok());
  auto waiting = Reconcile();
  ASSERT_TRUE(waiting.ok());
  EXPECT_GT(waiting->requeue_after, absl::ZeroDuration());
  EXPECT_TRUE(store_->Get(kFusionJobs, kKey).ok());
  launcher_.SetLinger(false);
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Get(kFusionJobs, kKey).status()));
  EXPECT_EQ(broker_.Find(kJob), std::nullopt);
  ASSERT_TRUE(Reconcile().ok());
}

TEST_F(FusionJobReconcilerTest, AFinishedJobIsDeletedAfterItsTime) {
  CreateJob({{"ttlSecondsAfterFinished", 30}});
  planning_.fault = absl::FailedPreconditionError("no");
  Reach("Failed");
  EXPECT_EQ(Reconcile()->requeue_after, absl::Seconds(30));
  now_ += absl::Seconds(31);
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Get(kFusionJobs, kKey).status()));
}

TEST_F(FusionJobReconcilerTest, ANonFiniteLossShows) {
  CreateJob();
  ReachRunning();
  broker_.Set(kJob, [](RunStatus& run) { run.nonfinite_step = 4; });
  ASSERT_TRUE(Reconcile().ok());
  EXPECT_EQ(ConditionStatus("NonFiniteLoss"), "True");
}

// Whatever writes fail, and whenever, the job arrives, and no attempt is started but under its stored
// incarnation.
TEST_F(FusionJobReconcilerTest, ArrivesUnderAnyFaultsOfTheServer) {
  std::mt19937 random(5);
  client_.SetFault([&](const std::string&) {
    return random() % 2 == 0 ? absl::UnavailableError("injected") : absl::OkStatus();
  });
  for (int round = 0; round < 20; ++round) {
    CreateJob();
    for (int i = 0; i < 200 && Phase() != "Succeeded"; ++i) {
      (void)Reconcile();
      if (const auto run = broker_.Find(kJob)) {
        EXPECT_EQ(run->incarnation, IntAt(Job(), {"status", "incarnation"}));
        broker_.Set(kJob, [&](RunStatus& status) {
          if (status.phase == RunPhase::kRegistering) status.phase = RunPhase::kRunning;
          if (Phase() == "Running") status.phase = RunPhase::kSucceeded;
        });
      }
    }
    ASSERT_EQ(Phase(), "Succeeded");
    EXPECT_EQ(IntAt(Job(), {"status", "incarnation"}), 1);
    ASSERT_TRUE(store_->Delete(kFusionJobs, kKey, "").ok());
    for (int i = 0; i < 50 && store_->Get(kFusionJobs, kKey).ok(); ++i) (void)Reconcile();
    ASSERT_FALSE(store_->Get(kFusionJobs, kKey).ok());
    for (int i = 0; i < 50 && broker_.Find(kJob); ++i) (void)Reconcile();
  }
}

// ------------------------------------------------------------------------------------------ progress

TEST_F(FusionJobReconcilerTest, ProgressIsWrittenOncePerIntervalAndAtOnceOnAChangeOfPhase) {
  CreateJob();
  ReachRunning();
  ProgressReconciler progress(*store_, broker_, [this] { return now_; });
  const auto step = [&](int64_t number) {
    broker_.Set(kJob, [&](RunStatus& run) {
      run.steps = 100;
      run.stages_ready = 2;
      run.last_step.step = number;
      run.last_step.loss = 0.123456;
      run.last_step.step_seconds = 0.5;
      run.last_step.samples_per_second = 16;
    });
  };
  step(1);
  ASSERT_TRUE(progress.Reconcile(kKey).ok());
  EXPECT_EQ(IntAt(Job(), {"status", "progress", "step"}), 1);
  EXPECT_EQ(Find(Job(), {"status", "progress", "etaSeconds"})->get<double>(), 49.5);
  EXPECT_EQ(StringAt(Job(), {"status", "display", "loss"}), "0.1235");
  EXPECT_EQ(StringAt(Job(), {"status", "display", "stagesReady"}), "2/2");
  EXPECT_EQ(StringAt(Job(), {"status", "display", "throughput"}), "16 samples/s");

  now_ += absl::Seconds(4);
  step(9);
  auto waiting = progress.Reconcile(kKey);
  ASSERT_TRUE(waiting.ok());
  EXPECT_EQ(waiting->requeue_after, absl::Seconds(6));
  EXPECT_EQ(IntAt(Job(), {"status", "progress", "step"}), 1);
  now_ += absl::Seconds(6);
  ASSERT_TRUE(progress.Reconcile(kKey).ok());
  EXPECT_EQ(IntAt(Job(), {"status", "progress", "step"}), 9);
  EXPECT_EQ(Phase(), "Running");

  step(10);
  broker_.Set(kJob, [](RunStatus& run) { run.phase = RunPhase::kSucceeded; });
  ASSERT_TRUE(progress.Reconcile(kKey).ok());
  EXPECT_EQ(IntAt(Job(), {"status", "progress", "step"}), 10);
}

TEST(ProgressFieldsTest, WhatIsNotFiniteIsLeftOut) {
  RunStatus run;
  run.last_step.step = 3;
  run.last_step.loss = std::numeric_limits<double>::quiet_NaN();
  const json fields = ProgressFields(run);
  EXPECT_FALSE(fields["progress"].contains("loss"));
  EXPECT_EQ(fields["display"]["loss"], "nan");
}

// ------------------------------------------------------------------------------------------ compnodes

TEST_F(FusionJobReconcilerTest, CompnodesShowTheirStages) {
  CreateJob();
  ReachRunning();
  EXPECT_EQ(CompnodesOf(Job()), (std::set<std::string>{"a1", "b1"}));
  CompnodeReconciler compnodes(*store_, [this] { return now_; });
  ASSERT_TRUE(compnodes.Reconcile({"", "b1"}).ok());
  json node = *store_->Get(kCompnodes, {"", "b1"});
  EXPECT_EQ(*Find(node, {"status", "assignments"}), json::array({"job/1"}));
  EXPECT_EQ(StringAt((*Find(node, {"status", "conditions"}))[0], {"status"}), "True");
  FailRun("StageFailed");
  Reach("Failed");
  ASSERT_TRUE(compnodes.Reconcile({"", "b1"}).ok());
  node = *store_->Get(kCompnodes, {"", "b1"});
  EXPECT_TRUE(Find(node, {"status", "assignments"})->empty());
  const std::string version = ResourceVersionOf(node);
  ASSERT_TRUE(compnodes.Reconcile({"", "b1"}).ok());
  EXPECT_EQ(ResourceVersionOf(*store_->Get(kCompnodes, {"", "b1"})), version);
  EXPECT_TRUE(compnodes.Reconcile({"", "none"}).ok());
}

}  // namespace
}  // namespace fusion::op
