#include "scheduler/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "graph/autocast.h"
#include "graph/registry.h"
#include "graph/slicing.h"
#include "scheduler/quotient.h"
#include "scheduler/simulator.h"
#include "scheduler/test_job.h"

namespace fusion::scheduler {
namespace {

using testing::HasSubstr;

int OperatorNamed(const Problem& problem, const std::string& name) {
  for (size_t i = 0; i < problem.operators.size(); ++i) {
    if (problem.operators[i].name == name) return static_cast<int>(i);
  }
  ADD_FAILURE() << name;
  return -1;
}

double Sum(const Work& work) {
  double sum = 0;
  for (const double part : work) sum += part;
  return sum;
}

TEST(WorkloadTest, CountsParametersAndStateOnce) {
  const TestJob job = TwoSites();
  const Problem problem = *MakeProblem(job.request());
  int64_t parameters = 0;
  int64_t optimizer = 0;
  for (const OperatorWork& work : problem.operators) {
    parameters += work.parameters;
    optimizer += work.optimizer_bytes;
  }
  EXPECT_EQ(parameters, graph::ParameterCount(job.graph));
  EXPECT_EQ(optimizer, parameters * 4 * 3);  // gradient and Adam's two moments
  ASSERT_EQ(problem.shared.size(), 1u);      // the tied embedding
  EXPECT_EQ(problem.shared[0].bytes, 256 * 128 * 4);
  EXPECT_EQ(problem.shared[0].consumers.size(), 2u);
  EXPECT_EQ(problem.operators[LossOperator(problem)].name, "loss");
  EXPECT_EQ(problem.micro_batches, 16);
}

TEST(WorkloadTest, StateFollowsTheOptimizer) {
  TestJob job = TwoSites();
  const auto copies = [&] {
    const Problem problem = *MakeProblem(job.request());
    const OperatorWork& work = problem.operators[OperatorNamed(problem, "transformer.h.0.mlp.c_fc")];
    return static_cast<double>(work.optimizer_bytes) / (static_cast<double>(work.parameters) * 4);
  };
  EXPECT_DOUBLE_EQ(copies(), 3);
  job.spec.mutable_training()->mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
  EXPECT_DOUBLE_EQ(copies(), 1);
  job.spec.mutable_training()->mutable_optimizer()->set_momentum(0.9);
  EXPECT_DOUBLE_EQ(copies(), 2);
  v1alpha1::ParameterGroup& group = *job.spec.mutable_training()->add_parameter_groups();
  group.set_match("*");
  group.mutable_optimizer()->set_momentum(0);
  EXPECT_DOUBLE_EQ(copies(), 1);
}

TEST(WorkloadTest, ValuesKnowWhatTravels) {
  const TestJob job = TwoSites();
  const Problem problem = *MakeProblem(job.request());
  const int input = OperatorNamed(problem, "input");
  const int activation = OperatorNamed(problem, "transformer.h.1.ln_1");
  bool seen_input = false;
  bool seen_activation = false;
  for (const Value& value : problem.values) {
    EXPECT_TRUE(std::is_sorted(value.consumers.begin(), value.consumers.end()));
    EXPECT_GT(value.consumers.front(), value.producer);
    if (value.producer == input) {
      seen_input = true;
      EXPECT_FALSE(value.floating);
      EXPECT_FALSE(value.differentiable);
      EXPECT_EQ(value.bytes, 4 * 64 * 8);
    }
    if (value.producer == activation) {
      seen_activation = true;
      EXPECT_TRUE(value.differentiable);
      EXPECT_EQ(value.bytes, 4 * 64 * 128 * 4);
      EXPECT_EQ(value.layout.rows, 4 * 64);
      EXPECT_EQ(value.layout.columns, 128);
    }
  }
  EXPECT_TRUE(seen_input && seen_activation);
}

TEST(WorkloadTest, ImagesTravelBySample) {
  const TestJob job = TwoSitesResnet();
  const Problem problem = *MakeProblem(job.request());
  const int block = OperatorNamed(problem, "layer2.1.relu.1");
  const int flat = OperatorNamed(problem, "flatten");
  int seen = 0;
  for (const Value& value : problem.values) {
    if (value.producer != block && value.producer != flat) continue;
    ++seen;
    EXPECT_EQ(value.layout.rows, 4);
    EXPECT_EQ(value.layout.columns, value.producer == block ? 32 * 16 * 16 : 128);
  }
  EXPECT_EQ(seen, 2);
  int64_t parameters = 0;
  int64_t bytes = 0;
  for (const auto& op : problem.operators) {
    parameters += op.parameters;
    bytes += op.variable_bytes;
  }
  EXPECT_EQ(parameters, graph::ParameterCount(job.graph)) << "statistics are no parameters";
  EXPECT_GT(bytes, parameters * 4) << "but they take memory";
}

TEST(WorkloadTest, MeasuredSecondsReplaceTheFormula) {
  TestJob job = TwoSites();
  int index = -1;
  for (int i = 0; i < job.graph.operators_size(); ++i) {
    if (job.graph.operators(i).name() == "transformer.h.2.mlp.c_fc") index = i;
  }
  job.machine.operators[graph::OperatorSignature(job.graph, index, 4)] = {0.25, 0.75};
  const Problem problem = *MakeProblem(job.request());
  const OperatorWork& work = problem.operators[OperatorNamed(problem, "transformer.h.2.mlp.c_fc")];
  EXPECT_DOUBLE_EQ(Sum(work.forward), 0.25);
  EXPECT_DOUBLE_EQ(Sum(work.backward), 0.75);
  // a1 imitates 16 of the machine's 50 GFLOP/s.
  EXPECT_DOUBLE_EQ(ForwardSeconds(work, problem.nodes[0]), 0.25 * 50 / 16);
  EXPECT_DOUBLE_EQ(problem.nodes[0].update_seconds_per_parameter, 2e-9 * 50 / 16);
}

TEST(WorkloadTest, Bfloat16TravelsInHalfTheBytes) {
  TestJob job = TwoSites();
  const Problem fp32 = *MakeProblem(job.request());
  job.graph = *graph::Autocast(job.graph);
  const Problem bf16 = *MakeProblem(job.request());
  const auto value_of = [](const Problem& problem, const std::string& name) -> const Value& {
    const int producer = OperatorNamed(problem, name);
    return *std::find_if(problem.values.begin(), problem.values.end(),
                         [&](const Value& value) { return value.producer == producer; });
  };
  const Value& wide = value_of(fp32, "transformer.h.1.mlp.act");
  const Value& narrow = value_of(bf16, "transformer.h.1.mlp.act");
  EXPECT_EQ(2 * narrow.bytes, wide.bytes);
  QuotientEdge edge;
  edge.value = static_cast<int>(&narrow - bf16.values.data());
  edge.differentiable = true;
  edge.cotangents = 1;
  EXPECT_EQ(ForwardBytes(bf16, edge, codec::Codec()), narrow.bytes);
  EXPECT_EQ(BackwardBytes(bf16, edge, codec::Codec()), narrow.bytes);
  EXPECT_EQ(ForwardBytes(bf16, edge, *codec::ParseCodec("int4")),
            codec::ValueBytes(*codec::ParseCodec("int4"), wide.layout));
}

TEST(WorkloadTest, RecomputeAddsAForwardToTheBackward) {
  TestJob job = TwoSites();
  const Problem once = *MakeProblem(job.request());
  job.spec.mutable_training()->set_recompute(true);
  const Problem twice = *MakeProblem(job.request());
  EXPECT_FALSE(once.recompute);
  EXPECT_TRUE(twice.recompute);
  for (size_t op = 0; op < once.operators.size(); ++op) {
    EXPECT_DOUBLE_EQ(Sum(twice.operators[op].forward), Sum(once.operators[op].forward));
    EXPECT_DOUBLE_EQ(Sum(twice.operators[op].backward),
                     Sum(once.operators[op].backward) + Sum(once.operators[op].forward));
    EXPECT_GE(twice.operators[op].flops, once.operators[op].flops);
  }
}

TEST(WorkloadTest, UnmeasuredOperatorsFollowTheFormula) {
  const TestJob job = TwoSites();
  const Problem problem = *MakeProblem(job.request());
  const OperatorWork& work = problem.operators[OperatorNamed(problem, "transformer.h.2.mlp.c_fc")];
  const double flops = 2.0 * 4 * 64 * 128 * 512;  // and the bias
  EXPECT_GT(Sum(work.forward), flops / (0.9 * 50e9) + 10e-6);
  EXPECT_LT(Sum(work.forward), 1.5 * flops / (0.9 * 50e9) + 100e-6);
  EXPECT_DOUBLE_EQ(Sum(problem.operators[OperatorNamed(problem, "input")].forward), 0);
}

TEST(WorkloadTest, SpeedsIncludeTheShareThatOperatorsReach) {
  const TestJob job = TwoSites();
  const Problem problem = *MakeProblem(job.request());
  const double lambda = ReachedShare(problem, job.machine);
  EXPECT_GT(lambda, 0.05);
  EXPECT_LT(lambda, 0.9);
  EXPECT_DOUBLE_EQ(problem.nodes[1].flops, 12e9 * lambda);
}

TEST(WorkloadTest, DevicesGiveSlotsAndMemory) {
  TestJob job = TwoSites();
  v1alpha1::CompnodeSpec& spec = *job.compnodes[0].mutable_spec();
  spec.mutable_devices(0)->set_count(3);
  spec.mutable_devices(0)->clear_memory();
  spec.set_host_memory("3Gi");
  spec.clear_emulation();
  spec.mutable_devices(0)->mutable_peak_flops()->set_fp32(100e9);
  Problem problem = *MakeProblem(job.request());
  EXPECT_EQ(problem.nodes[0].slots, 3);
  EXPECT_EQ(problem.nodes[0].memory_bytes, int64_t{1} << 30);
  EXPECT_DOUBLE_EQ(problem.nodes[0].seconds_per_work[0], 0.5);
  EXPECT_EQ(problem.max_stages, 8);
  spec.mutable_devices(0)->mutable_peak_flops()->set_bf16(400e9);
  job.spec.mutable_training()->set_precision(v1alpha1::Training::bf16);
  problem = *MakeProblem(job.request());
  EXPECT_DOUBLE_EQ(problem.nodes[0].seconds_per_work[static_cast<size_t>(graph::OperatorClass::kMatmul)],
                   0.125);
  EXPECT_DOUBLE_EQ(problem.nodes[0].seconds_per_work[static_cast<size_t>(graph::OperatorClass::kMemory)],
                   0.5);
  job.spec.mutable_training()->clear_precision();
  spec.clear_devices();
  spec.clear_host_memory();
  job.spec.mutable_placement()->mutable_stages()->set_max(2);
  problem = *MakeProblem(job.request());
  EXPECT_EQ(problem.nodes[0].memory_bytes, INT64_MAX);
  EXPECT_DOUBLE_EQ(problem.nodes[0].seconds_per_work[0], 1);
  EXPECT_EQ(problem.max_stages, 2);
}

// ------------------------------------------------------------------------------------------ quotient

/// Stages of whole segments of the graph, some of two segments.
Partition RandomCut(const Problem& problem) {
  const int count = static_cast<int>(problem.operators.size());
  const int segments = *rc::gen::inRange(1, 7);
  std::set<int> cuts = {0, count};
  for (int i = 1; i < segments; ++i) cuts.insert(*rc::gen::inRange(1, count));
  std::vector<std::vector<int>> parts;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    std::vector<int>& part = parts.emplace_back();
    for (int op = *cut; op < *std::next(cut); ++op) part.push_back(op);
  }
  Partition partition;
  std::map<int, int> stage_of_node;
  for (const std::vector<int>& part : parts) {
    const int node = *rc::gen::inRange(0, static_cast<int>(problem.nodes.size()));
    const auto [place, added] = stage_of_node.emplace(node, partition.stages.size());
    if (added) partition.stages.push_back({node, {}});
    partition.stages[place->second].sub_dags.push_back({part, 2});
  }
  return partition;
}

RC_GTEST_PROP(QuotientProperty, HasTheEdgesThatSlicingGives, ()) {
  static const TestJob* const job = new TestJob(TwoSites());
  static const Problem* const problem = new Problem(*MakeProblem(job->request()));
  const Partition partition = RandomCut(*problem);
  const Quotient quotient = MakeQuotient(*problem, partition);
  graph::Placement placement;
  for (const PlacedStage& stage : partition.stages) {
    graph::StagePlacement& placed = placement.emplace_back();
    for (const PlacedSubDag& sub_dag : stage.sub_dags) {
      graph::SubDagPlacement& names = placed.sub_dags.emplace_back();
      for (const int op : sub_dag.operators) names.operators.push_back(problem->operators[op].name);
    }
  }
  const auto programs = graph::Slice(job->graph, placement);
  RC_ASSERT(programs.ok());
  using Key = std::tuple<std::string, int, int, int, std::vector<int>, bool, int>;
  std::multiset<Key> sliced;
  std::multiset<std::tuple<int64_t, int, int, int>> sliced_loans;
  for (const graph::v1::StageProgram& program : *programs) {
    for (const graph::v1::Edge& edge : program.incoming()) {
      sliced.insert({edge.value().operator_(),
                     edge.from_stage(),
                     edge.from_sub_dag(),
                     edge.to_stage(),
                     {edge.to_sub_dags().begin(), edge.to_sub_dags().end()},
                     edge.differentiable(),
                     edge.cotangent_per_consumer() ? edge.consumers_size() : 1});
    }
    for (const graph::v1::SharedVariable& loan : program.borrowed()) {
      sliced_loans.insert({256 * 128 * 4, loan.owner_stage(), loan.user_stage(), loan.consumers_size()});
    }
  }
  std::multiset<Key> ours;
  for (const QuotientEdge& edge : quotient.edges) {
    std::vector<int> readers = edge.to_sub_dags;
    for (int& reader : readers) reader -= quotient.first_sub_dag[edge.to_stage];
    ours.insert({problem->operators[problem->values[edge.value].producer].name, edge.from_stage,
                 edge.from_sub_dag - quotient.first_sub_dag[edge.from_stage], edge.to_stage, readers,
                 edge.differentiable, edge.cotangents});
  }
  std::multiset<std::tuple<int64_t, int, int, int>> our_loans;
  for (const QuotientLoan& loan : quotient.loans) {
    our_loans.insert({problem->shared[loan.shared].bytes, loan.owner_stage, loan.user_stage, loan.gradients});
  }
  RC_ASSERT(ours == sliced);
  RC_ASSERT(our_loans == sliced_loans);
}

// ------------------------------------------------------------------------------------------ profile

TEST(ProfileTest, IsReadAsItIsWritten) {
  MachineProfile profile = UnmeasuredProfile(4.1e10);
  profile.memory_bytes_per_second = 1.1e10;
  profile.operator_seconds = 9e-6;
  profile.operators["aten.linear(…)"] = {1.5e-3, 3e-3};
  const absl::StatusOr<MachineProfile> read = ParseProfile(ProfileJson(profile));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ProfileJson(*read), ProfileJson(profile));
}

TEST(ProfileTest, IsRoundedToTwoDigits) {
  MachineProfile profile = UnmeasuredProfile(4.1234e10);
  profile.operators["x"] = {1.2345e-3, 0};
  const MachineProfile read = *ParseProfile(ProfileJson(profile));
  EXPECT_DOUBLE_EQ(read.flops, 4.1e10);
  EXPECT_DOUBLE_EQ(read.operators.at("x").forward, 1.2e-3);
}

TEST(ProfileTest, ErrorsNameTheField) {
  const auto message = [](const std::string& text) {
    return std::string(ParseProfile(text).status().message());
  };
  EXPECT_THAT(message("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message("{}"), HasSubstr("flops: a number is missing"));
  EXPECT_THAT(message(R"({"flops": 0})"), HasSubstr("flops: 0 is not possible"));
  EXPECT_THAT(message(R"({"flops": 1e10, "memoryBytesPerSecond": 1, "operatorSeconds": 0,
                          "updateSecondsPerParameter": 0, "lambda": {"matmul": -1}})"),
              HasSubstr("lambda.matmul: -1 is not possible"));
}

}  // namespace
}  // namespace fusion::scheduler
