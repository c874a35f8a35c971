// Every operator of the registry through the engine: its gradient against central differences in fp64, or its
// values where it has no gradient.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codec/codec.h"
#include "graph/builder.h"
#include "graph/operator_row.h"
#include "worker/engine/engine_test_support.h"
#include "worker/engine/random.h"

namespace fusion::worker {
namespace {

using graph::v1::Argument;
using graph::v1::Graph;
using graph::v1::Operator;
using graph::v1::TensorSpec;
using graph::v1::ValueRef;

constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-7;

TensorSpec Spec(DataType dtype, const std::vector<int64_t>& shape) {
  TensorSpec spec;
  spec.set_dtype(dtype);
  spec.mutable_shape()->Add(shape.begin(), shape.end());
  return spec;
}

Argument Value(const std::string& name, int index = 0) {
  Argument argument;
  argument.mutable_value()->set_operator_(name);
  argument.mutable_value()->set_index(index);
  return argument;
}

Operator* AddOperator(Graph& graph, const std::string& name, const std::string& type,
                      std::vector<Argument> args, const std::vector<TensorSpec>& outputs) {
  Operator* op = graph.add_operators();
  op->set_name(name);
  op->set_kind(Operator::NON_PARAMETRIC);
  const size_t dot = type.find('.', type.find('.') + 1);
  op->set_type(type.substr(0, dot));
  op->set_overload(dot == std::string::npos ? "" : type.substr(dot + 1));
  for (Argument& argument : args) {
    *op->add_args() = std::move(argument);
  }
  op->mutable_outputs()->Add(outputs.begin(), outputs.end());
  return op;
}

void AddVariable(Graph& graph, const std::string& name, const TensorSpec& spec, bool trainable) {
  Operator* op = graph.add_operators();
  op->set_name(name);
  op->set_kind(Operator::VARIABLE);
  op->mutable_variable()->set_tensor_name(name);
  op->mutable_variable()->set_trainable(trainable);
  const bool real = spec.dtype() == graph::v1::FLOAT64 || spec.dtype() == graph::v1::FLOAT32;
  op->mutable_variable()->mutable_init()->set_kind(real ? graph::v1::Init::NORMAL : graph::v1::Init::ZEROS);
  op->mutable_variable()->mutable_init()->set_standard_deviation(1);
  *op->add_outputs() = spec;
}

// Operands are variables named a, b, c: floating ones get a gradient.
struct Case {
  std::string type;
  std::vector<TensorSpec> operands;
  std::vector<Argument> args;
  std::vector<TensorSpec> outputs;
  std::map<std::string, Argument> kwargs;
  std::map<std::string, Tensor> data;  ///< of integer and bool operands
};

TensorSpec Real(const std::vector<int64_t>& shape) { return Spec(graph::v1::FLOAT64, shape); }

Tensor BoolTensor(const std::vector<int64_t>& shape, const std::vector<uint8_t>& values) {
  Tensor tensor = AllocateTensor(graph::v1::BOOL, shape);
  std::copy(values.begin(), values.end(), reinterpret_cast<uint8_t*>(tensor.data.get()));
  return tensor;
}

std::vector<Case> DifferentiableCases() {
  using graph::Double;
  using graph::Int;
  using graph::None;
  using graph::Sizes;
  using graph::Text;
  const TensorSpec ids = Spec(graph::v1::INT64, {2, 3});
  const TensorSpec classes = Spec(graph::v1::INT64, {4});
  const TensorSpec mask = Spec(graph::v1::BOOL, {3, 3});
  return {
      {"aten.gelu", {Real({3, 4})}, {Value("a")}, {Real({3, 4})}, {{"approximate", Text("tanh")}}, {}},
      {"aten.to.dtype",
       {Real({3, 4})},
       {Value("a"), graph::Type(graph::v1::FLOAT64)},
       {Real({3, 4})},
       {{"copy", graph::Bool(true)}},
       {}},
      {"aten.gelu", {Real({3, 4})}, {Value("a")}, {Real({3, 4})}, {}, {}},
      {"aten.relu", {Real({3, 4})}, {Value("a")}, {Real({3, 4})}, {}, {}},
      {"aten.tanh", {Real({3, 4})}, {Value("a")}, {Real({3, 4})}, {}, {}},
      {"aten.add.Tensor",
       {Real({3, 4}), Real({4})},
       {Value("a"), Value("b")},
       {Real({3, 4})},
       {{"alpha", Double(0.5)}},
       {}},
      {"aten.mul.Tensor", {Real({3, 4}), Real({3, 1})}, {Value("a"), Value("b")}, {Real({3, 4})}, {}, {}},
      {"aten.mul.Tensor", {Real({3, 4})}, {Value("a"), Value("a")}, {Real({3, 4})}, {}, {}},
      {"aten.mul.Scalar", {Real({3, 4})}, {Value("a"), Double(-0.3)}, {Real({3, 4})}, {}, {}},
      {"aten.div.Tensor", {Real({3, 4}), Real({3, 1})}, {Value("a"), Value("b")}, {Real({3, 4})}, {}, {}},
      {"aten.clamp_min", {Real({3, 4})}, {Value("a"), Double(-0.3)}, {Real({3, 4})}, {}, {}},
      {"aten.sum.dim_IntList",
       {Real({2, 3, 4})},
       {Value("a"), Sizes({1}), graph::Bool(false)},
       {Real({2, 4})},
       {},
       {}},
      {"aten.linalg_vector_norm",
       {Real({3, 4})},
       {Value("a"), Int(2), Sizes({1}), graph::Bool(true)},
       {Real({3, 1})},
       {},
       {}},
      {"aten.masked_fill.Scalar",
       {Real({2, 3, 3}), mask},
       {Value("a"), Value("b"), Double(-9)},
       {Real({2, 3, 3})},
       {},
       {{"b", BoolTensor({3, 3}, {0, 1, 1, 0, 0, 1, 0, 0, 0})}}},
      {"aten.linear",
       {Real({2, 3}), Real({4, 3}), Real({4})},
       {Value("a"), Value("b"), Value("c")},
       {Real({2, 4})},
       {},
       {}},
      {"aten.addmm",
       {Real({4}), Real({2, 3}), Real({3, 4})},
       {Value("a"), Value("b"), Value("c")},
       {Real({2, 4})},
       {},
       {}},
      {"aten.matmul",
       {Real({2, 3, 4}), Real({2, 4, 2})},
       {Value("a"), Value("b")},
       {Real({2, 3, 2})},
       {},
       {}},
      {"aten.scaled_dot_product_attention",
       {Real({1, 2, 3, 4}), Real({1, 2, 3, 4}), Real({1, 2, 3, 4})},
       {Value("a"), Value("b"), Value("c"), None(), Double(0), graph::Bool(true)},
       {Real({1, 2, 3, 4})},
       {},
       {}},
      {"aten.scaled_dot_product_attention",
       {Real({1, 2, 3, 4}), Real({1, 2, 3, 4}), Real({1, 2, 3, 4}), Spec(graph::v1::BOOL, {1, 1, 1, 3})},
       {Value("a"), Value("b"), Value("c"), Value("d")},
       {Real({1, 2, 3, 4})},
       {},
       {{"d", BoolTensor({1, 1, 1, 3}, {1, 1, 0})}}},
      {"aten.view", {Real({3, 4})}, {Value("a"), Sizes({2, 6})}, {Real({2, 6})}, {}, {}},
      {"aten.reshape", {Real({3, 4})}, {Value("a"), Sizes({2, 6})}, {Real({2, 6})}, {}, {}},
      {"aten.contiguous", {Real({3, 4})}, {Value("a")}, {Real({3, 4})}, {}, {}},
      {"aten.clone", {Real({3, 4})}, {Value("a")}, {Real({3, 4})}, {}, {}},
      {"aten.transpose.int", {Real({3, 4})}, {Value("a"), Int(0), Int(1)}, {Real({4, 3})}, {}, {}},
      {"aten.split.Tensor",
       {Real({2, 5})},
       {Value("a"), Int(2), Int(1)},
       {Real({2, 2}), Real({2, 2}), Real({2, 1})},
       {},
       {}},
      {"aten.slice.Tensor", {Real({2, 5})}, {Value("a"), Int(1), Int(1), Int(4)}, {Real({2, 3})}, {}, {}},
      {"aten.embedding",
       {Real({5, 2}), ids},
       {Value("a"), Value("b")},
       {Real({2, 3, 2})},
       {},
       {{"b", LongTensor({2, 3}, {0, 4, 4, 1, 0, 2})}}},
      {"aten.embedding",
       {Real({5, 2}), ids},
       {Value("a"), Value("b"), Int(3)},
       {Real({2, 3, 2})},
       {},
       {{"b", LongTensor({2, 3}, {0, 4, 4, 1, 0, 2})}}},
      {"aten.triu", {Real({3, 3})}, {Value("a"), Int(1)}, {Real({3, 3})}, {}, {}},
      {"aten.layer_norm",
       {Real({3, 4}), Real({4}), Real({4})},
       {Value("a"), Sizes({4}), Value("b"), Value("c"), Double(1e-5)},
       {Real({3, 4})},
       {},
       {}},
      {"aten.softmax.int", {Real({3, 4})}, {Value("a"), Int(-1)}, {Real({3, 4})}, {}, {}},
      {"aten.cross_entropy_loss",
       {Real({4, 3}), classes},
       {Value("a"), Value("b")},
       {Real({})},
       {},
       {{"b", LongTensor({4}, {0, 2, 1, 2})}}},
      {"aten.cross_entropy_loss",
       {Real({4, 3}), classes},
       {Value("a"), Value("b"), None(), Int(1), Int(-100)},
       {Real({})},
       {},
       {{"b", LongTensor({4}, {0, -100, 1, -100})}}},
      {"aten.conv2d",
       {Real({2, 2, 4, 3}), Real({3, 2, 3, 2}), Real({3})},
       {Value("a"), Value("b"), Value("c"), Sizes({2, 1}), Sizes({1, 1})},
       {Real({2, 3, 2, 4})},
       {},
       {}},
      {"aten.conv2d",
       {Real({2, 4, 3, 4}), Real({2, 2, 2, 2})},
       {Value("a"), Value("b"), None(), Sizes({1, 1}), Sizes({0, 0}), Sizes({2, 2}), Int(2)},
       {Real({2, 2, 1, 2})},
       {},
       {}},
      {"aten.max_pool2d",
       {Real({2, 2, 4, 5})},
       {Value("a"), Sizes({3, 3}), Sizes({2, 2}), Sizes({1, 1})},
       {Real({2, 2, 2, 3})},
       {},
       {}},
      {"aten.max_pool2d",
       {Real({2, 2, 3, 5})},
       {Value("a"), Sizes({2, 2}), Sizes({}), Sizes({0, 0}), Sizes({1, 1}), graph::Bool(true)},
       {Real({2, 2, 2, 3})},
       {},
       {}},
      {"aten.adaptive_avg_pool2d",
       {Real({2, 2, 4, 3})},
       {Value("a"), Sizes({1, 1})},
       {Real({2, 2, 1, 1})},
       {},
       {}},
      {"aten.adaptive_avg_pool2d",
       {Real({2, 2, 5, 3})},
       {Value("a"), Sizes({2, 3})},
       {Real({2, 2, 2, 3})},
       {},
       {}},
      {"aten.mean.dim", {Real({2, 3, 4})}, {Value("a"), Sizes({0, 2})}, {Real({3})}, {}, {}},
      {"aten.flatten.using_ints", {Real({2, 3, 2})}, {Value("a"), Int(1)}, {Real({2, 6})}, {}, {}},
      {"aten.batch_norm",
       {Real({3, 2, 2, 2}), Real({2}), Real({2})},
       {Value("a"), Value("b"), Value("c"), None(), None(), graph::Bool(true), Double(0.1), Double(1e-5),
        graph::Bool(true)},
       {Real({3, 2, 2, 2})},
       {},
       {}},
      {"aten.mse_loss", {Real({3, 4}), Real({3, 4})}, {Value("a"), Value("b")}, {Real({})}, {}, {}},
  };
}

// loss = sum over outputs of sum(output x weights): every element of the gradient is exercised.
Graph ScalarGraph(const Case& c) {
  Graph graph;
  for (size_t i = 0; i < c.operands.size(); ++i) {
    AddVariable(graph, std::string(1, static_cast<char>('a' + i)), c.operands[i],
                graph::IsFloating(c.operands[i].dtype()));
  }
  Operator* op = AddOperator(graph, "tested", c.type, c.args, c.outputs);
  for (const auto& [name, argument] : c.kwargs) {
    graph::v1::NamedArgument* named = op->add_kwargs();
    named->set_name(name);
    *named->mutable_argument() = argument;
  }
  std::string sum;
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    const std::string suffix = absl::StrCat(".", i);
    AddVariable(graph, "weights" + suffix, c.outputs[i], false);
    AddOperator(graph, "weighted" + suffix, "aten.mul.Tensor",
                {Value("tested", static_cast<int>(i)), Value("weights" + suffix)}, {c.outputs[i]});
    AddOperator(graph, "sum" + suffix, "aten.sum", {Value("weighted" + suffix)}, {Real({})});
    if (!sum.empty()) {
      AddOperator(graph, "total" + suffix, "aten.add.Tensor", {Value(sum), Value("sum" + suffix)},
                  {Real({})});
    }
    sum = (sum.empty() ? "sum" : "total") + suffix;
  }
  graph.mutable_loss()->set_operator_(sum);
  return graph;
}

void CheckGradient(const Case& c) {
  SCOPED_TRACE(c.type);
  const auto run = InProcessRun::Create({WholeProgram(ScalarGraph(c))}, WithSeed(5));
  ASSERT_TRUE(run.ok()) << run.status();
  Engine& engine = (*run)->engine(0);
  for (const auto& [name, value] : c.data) {
    ASSERT_TRUE(engine.WriteVariable(name, value).ok());
  }
  const MicroBatch batch{.feeds = {}, .samples = 1, .weight = 1};
  ASSERT_TRUE((*run)->ForwardBackward(1, {batch}).ok());
  for (size_t i = 0; i < c.operands.size(); ++i) {
    if (!graph::IsFloating(c.operands[i].dtype())) {
      continue;
    }
    const std::string name(1, static_cast<char>('a' + i));
    const auto gradient = engine.ReadGradient(name);
    ASSERT_TRUE(gradient.ok() && gradient->has_value()) << name;
    const auto* derived = reinterpret_cast<const double*>((*gradient)->data.get());
    const Tensor value = *engine.ReadVariable(name);
    auto* x = reinterpret_cast<double*>(value.data.get());
    for (int64_t k = 0; k < value.elements(); ++k) {
      const double before = x[k];
      std::vector<double> losses;
      for (const double moved : {before + kStep, before - kStep}) {
        x[k] = moved;
        ASSERT_TRUE(engine.WriteVariable(name, value).ok());
        const absl::StatusOr<double> loss = (*run)->Evaluate(1, 1, batch);
        ASSERT_TRUE(loss.ok()) << loss.status();
        losses.push_back(*loss);
      }
      x[k] = before;
      ASSERT_TRUE(engine.WriteVariable(name, value).ok());
      const double difference = (losses[0] - losses[1]) / (2 * kStep);
      EXPECT_NEAR(derived[k], difference, kTolerance * std::max(1.0, std::abs(difference)))
          << "operand " << name << ", element " << k;
    }
  }
}

TEST(EngineOperatorTest, GradientsAgreeWithCentralDifferences) {
  for (const Case& c : DifferentiableCases()) {
    CheckGradient(c);
  }
}

TEST(EngineOperatorTest, EveryRegisteredOperatorIsTested) {
  std::set<std::string> tested = {"aten.arange", "aten.eq.Scalar",      "aten.ones",
                                  "aten.zeros",  "fusion.dropout_mask", "fusion.codec"};  // below
  for (const Case& c : DifferentiableCases()) {
    tested.insert(c.type);
  }
  for (const graph::RegisteredOperator& entry : graph::Registry()) {
    const std::string name =
        absl::StrCat(entry.schema.type, entry.schema.overload.empty() ? "" : ".", entry.schema.overload);
    EXPECT_TRUE(tested.contains(name)) << name << " has no case in this test";
  }
}

// Forward of one operator without operands; the value leaves by an edge.
absl::StatusOr<Tensor> Evaluate(const std::string& type, std::vector<Argument> args,
                                const std::map<std::string, Argument>& kwargs, const TensorSpec& output,
                                const Pass& pass, int64_t seed) {
  Graph graph;
  Operator* op = AddOperator(graph, "tested", type, std::move(args), {output});
  for (const auto& [name, argument] : kwargs) {
    graph::v1::NamedArgument* named = op->add_kwargs();
    named->set_name(name);
    *named->mutable_argument() = argument;
  }
  graph::v1::StageProgram program = WholeProgram(graph);
  program.set_computes_loss(false);
  (*program.mutable_positions())["reader"] = 1;
  graph::v1::Edge* edge = program.add_outgoing();
  edge->mutable_value()->set_operator_("tested");
  *edge->mutable_spec() = output;
  edge->add_consumers("reader");
  absl::StatusOr<std::unique_ptr<Engine>> engine = LoadEngine("torch");
  if (!engine.ok()) {
    return engine.status();
  }
  if (absl::Status status = (*engine)->Load(program, WithSeed(seed)); !status.ok()) {
    return status;
  }
  absl::StatusOr<ForwardResult> result = (*engine)->Forward(pass, 0);
  if (!result.ok()) {
    return result.status();
  }
  return *result->outputs.front().tensor;
}

TEST(EngineOperatorTest, CreatorsFollowTheMicroBatch) {
  const Pass pass{.step = 1, .micro_batch = 0, .training = true, .samples = 3, .weight = 1};
  const auto range = Evaluate("aten.arange", {graph::Int(4)}, {{"dtype", graph::Type(graph::v1::INT64)}},
                              Spec(graph::v1::INT64, {4}), pass, 0);
  ASSERT_TRUE(range.ok()) << range.status();
  EXPECT_TRUE(BitEqual(*range, LongTensor({4}, {0, 1, 2, 3})));
  const auto ones =
      Evaluate("aten.ones", {graph::Sizes({graph::Batch(2), 2})},
               {{"dtype", graph::Type(graph::v1::FLOAT32)}}, Spec(graph::v1::FLOAT32, {-2, 2}), pass, 0);
  ASSERT_TRUE(ones.ok()) << ones.status();
  EXPECT_TRUE(BitEqual(*ones, FloatTensor({6, 2}, std::vector<float>(12, 1))));
  const auto zeros =
      Evaluate("aten.zeros", {graph::Sizes({2, graph::Batch()})}, {{"dtype", graph::Type(graph::v1::INT64)}},
               Spec(graph::v1::INT64, {2, -1}), pass, 0);
  ASSERT_TRUE(zeros.ok()) << zeros.status();
  EXPECT_TRUE(BitEqual(*zeros, LongTensor({2, 3}, std::vector<int64_t>(6, 0))));
  const auto classes =
      Evaluate("aten.arange", {graph::Size(graph::Batch())}, {{"dtype", graph::Type(graph::v1::INT64)}},
               Spec(graph::v1::INT64, {-1}), pass, 0);
  ASSERT_TRUE(classes.ok()) << classes.status();
  EXPECT_TRUE(BitEqual(*classes, LongTensor({3}, {0, 1, 2})));
}

TEST(EngineOperatorTest, EqualityIsAMask) {
  Graph graph;
  AddVariable(graph, "x", Real({2, 2}), true);
  AddVariable(graph, "ids", Spec(graph::v1::INT64, {2, 2}), false);
  AddOperator(graph, "tested", "aten.eq.Scalar", {Value("ids"), graph::Int(7)},
              {Spec(graph::v1::BOOL, {2, 2})});
  AddOperator(graph, "filled", "aten.masked_fill.Scalar", {Value("x"), Value("tested"), graph::Double(100)},
              {Real({2, 2})});
  AddOperator(graph, "loss", "aten.sum", {Value("filled")}, {Real({})});
  graph.mutable_loss()->set_operator_("loss");
  const auto run = InProcessRun::Create({WholeProgram(graph)}, WithSeed(5));
  ASSERT_TRUE(run.ok()) << run.status();
  Engine& engine = (*run)->engine(0);
  ASSERT_TRUE(engine.WriteVariable("x", DoubleTensor({2, 2}, {1, 2, 3, 4})).ok());
  ASSERT_TRUE(engine.WriteVariable("ids", LongTensor({2, 2}, {7, 0, -7, 7})).ok());
  const auto loss = (*run)->ForwardBackward(1, {MicroBatch{.feeds = {}, .samples = 1, .weight = 1}});
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(*loss, 100 + 2 + 3 + 100);
  EXPECT_TRUE(BitEqual(**engine.ReadGradient("x"), DoubleTensor({2, 2}, {0, 1, 1, 0})));
}

/// Not what central differences say: a padding token's row stays as it is.
TEST(EngineOperatorTest, ThePaddingRowOfAnEmbeddingGetsNoGradient) {
  Graph graph;
  AddVariable(graph, "table", Real({3, 1}), true);
  AddVariable(graph, "ids", Spec(graph::v1::INT64, {4}), false);
  AddOperator(graph, "rows", "aten.embedding", {Value("table"), Value("ids"), graph::Int(0)}, {Real({4, 1})});
  AddOperator(graph, "loss", "aten.sum", {Value("rows")}, {Real({})});
  graph.mutable_loss()->set_operator_("loss");
  const auto run = InProcessRun::Create({WholeProgram(graph)}, WithSeed(5));
  ASSERT_TRUE(run.ok()) << run.status();
  Engine& engine = (*run)->engine(0);
  ASSERT_TRUE(engine.WriteVariable("ids", LongTensor({4}, {0, 1, 0, 1})).ok());
  ASSERT_TRUE((*run)->ForwardBackward(1, {MicroBatch{.feeds = {}, .samples = 1, .weight = 1}}).ok());
  EXPECT_TRUE(BitEqual(**engine.ReadGradient("table"), DoubleTensor({3, 1}, {0, 2, 0})));
}

TEST(EngineOperatorTest, DropoutMaskIsItsDocumentedFormula) {
  constexpr double kDropped = 0.25;
  const auto mask = [&](const Pass& pass, int64_t seed) {
    return Evaluate("fusion.dropout_mask",
                    {graph::Sizes({graph::Batch(1), 4000}), graph::Double(kDropped), graph::RandomKey(),
                     graph::Training()},
                    {}, Spec(graph::v1::FLOAT32, {-1, 4000}), pass, seed);
  };
  const Pass pass{.step = 3, .micro_batch = 2, .training = true, .samples = 2, .weight = 1};
  const absl::StatusOr<Tensor> value = mask(pass, 11);
  ASSERT_TRUE(value.ok()) << value.status();
  const auto key = static_cast<uint64_t>(engine::OperatorKey(11, 3, 2, "tested"));
  int dropped = 0;
  for (size_t i = 0; i < value->floats().size(); ++i) {
    const bool drop = engine::Uniform(engine::Bits(key, i)) < kDropped;
    dropped += drop ? 1 : 0;
    ASSERT_EQ(value->floats()[i], drop ? 0.0F : static_cast<float>(1 / (1 - kDropped))) << i;
  }
  EXPECT_NEAR(dropped, 2000, 160);  // four standard deviations
  Pass other = pass;
  other.micro_batch = 3;
  EXPECT_FALSE(BitEqual(*mask(other, 11), *value));
  EXPECT_FALSE(BitEqual(*mask(pass, 12), *value));
  other = pass;
  other.training = false;
  EXPECT_TRUE(BitEqual(*mask(other, 11), FloatTensor({2, 4000}, std::vector<float>(8000, 1))));
}

// Gradient of sum(codec(a) x w) in a, of 120 elements.
void CheckCodec(const std::string& name, const std::vector<int64_t>& shape) {
  SCOPED_TRACE(absl::StrCat(name, " in ", shape.size(), " dimensions"));
  TensorSpec spec;
  spec.set_dtype(graph::v1::FLOAT32);
  spec.mutable_shape()->Assign(shape.begin(), shape.end());
  Graph graph;
  AddVariable(graph, "a", spec, true);
  AddVariable(graph, "w", spec, false);
  AddOperator(graph, "sent", "fusion.codec", {Value("a"), graph::Text(name)}, {spec});
  AddOperator(graph, "weighted", "aten.mul.Tensor", {Value("sent"), Value("w")}, {spec});
  AddOperator(graph, "loss", "aten.sum", {Value("weighted")}, {Spec(graph::v1::FLOAT32, {})});
  graph.mutable_loss()->set_operator_("loss");
  const auto run = InProcessRun::Create({WholeProgram(graph)}, WithSeed(1));
  ASSERT_TRUE(run.ok()) << run.status();
  const auto loss = (*run)->ForwardBackward(1, {MicroBatch{.feeds = {}, .samples = 1, .weight = 1}});
  ASSERT_TRUE(loss.ok()) << loss.status();

  const codec::Codec codec = *codec::ParseCodec(name);
  const codec::Layout layout = codec::LayoutOf(shape);  // as the edges of a pipeline see it
  const Tensor a = *(*run)->engine(0).ReadVariable("a");
  const Tensor w = *(*run)->engine(0).ReadVariable("w");
  std::vector<std::byte> message(static_cast<size_t>(codec::ValueBytes(codec, layout)));
  codec::Mask mask;
  ASSERT_TRUE(codec::EncodeValue(codec, layout, a.floats(), absl::MakeSpan(message), &mask).ok());
  message.resize(static_cast<size_t>(codec::GradientBytes(codec, layout)));
  ASSERT_TRUE(codec::EncodeGradient(codec, layout, w.floats(), mask, absl::MakeSpan(message)).ok());
  Tensor expected = AllocateTensor(graph::v1::FLOAT32, shape);
  ASSERT_TRUE(codec::DecodeGradient(codec, layout, message, mask, expected.mutable_floats()).ok());
  const auto gradient = (*run)->engine(0).ReadGradient("a");
  ASSERT_TRUE(gradient.ok() && gradient->has_value());
  EXPECT_TRUE(BitEqual(**gradient, expected));
  if (name == "topk-0.25-fp32" && shape.size() == 2) {  // by hand: mask x g
    std::set<std::pair<int64_t, uint32_t>> kept;
    for (size_t i = 0; i < mask.columns.size(); ++i) {
      kept.insert({static_cast<int64_t>(i) / mask.kept_per_row, mask.columns[i]});
    }
    ASSERT_EQ(kept.size(), 30U);
    for (int64_t i = 0; i < 120; ++i) {
      const bool passes = kept.contains({i / 40, static_cast<uint32_t>(i % 40)});
      EXPECT_EQ((*gradient)->floats()[static_cast<size_t>(i)],
                passes ? w.floats()[static_cast<size_t>(i)] : 0.0F);
    }
  }
}

TEST(EngineOperatorTest, CodecIsWhatArrivesAndItsGradientIsMaskedLikeTheValue) {
  for (const char* name :
       {"fp32", "bf16", "int8", "int4", "topk-0.25-fp32", "topk-0.1-int4", "topk-0.25-fp32-independent"}) {
    CheckCodec(name, {3, 40});
    CheckCodec(name, {120});
  }
}

}  // namespace
}  // namespace fusion::worker
