// Malformed graphs: each is refused with the operator and the reason.
#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "graph/builder.h"
#include "graph/families.h"
#include "graph/graph_index.h"
#include "graph/registry.h"
#include "gtest/gtest.h"

namespace fusion::graph {
namespace {

using ::testing::HasSubstr;

v1::Graph Mlp() {
  v1alpha1::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "family: mlp config { inputs: 4 hidden: 8 outputs: 2 }", &model));
  auto graph = BuildModel(model);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

struct Malformed {
  const char* name;
  std::function<void(v1::Graph&)> spoil;
  const char* message;
};

v1::Operator& Op(v1::Graph& graph, const std::string& name) {
  return *graph.mutable_operators(GraphIndex(graph).Find(name));
}

void Retype(v1::Graph& graph, const std::string& type, const std::string& arguments) {
  v1::Operator& op = Op(graph, "layers.1");
  op.set_type(type);
  op.clear_args();
  v1::Operator parsed;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(arguments, &parsed)) << arguments;
  op.MergeFrom(parsed);
}

const Malformed kCases[] = {
    {"empty", [](v1::Graph& g) { g.Clear(); }, "no operators"},
    {"no name", [](v1::Graph& g) { Op(g, "layers.1").clear_name(); }, "name is empty"},
    {"blank in a name", [](v1::Graph& g) { Op(g, "layers.1").set_name("layers 1"); }, "blanks"},
    {"glob in a name", [](v1::Graph& g) { Op(g, "layers.1").set_name("layers*"); }, "blanks"},
    {"long name", [](v1::Graph& g) { Op(g, "layers.1").set_name(std::string(1000, 'a')); }, "longer"},
    {"two of one name", [](v1::Graph& g) { Op(g, "layers.1").set_name("layers.0"); },
     "taken by operators[3]"},
    {"no kind", [](v1::Graph& g) { Op(g, "layers.1").clear_kind(); }, "kind is not set"},
    {"unknown kind", [](v1::Graph& g) { Op(g, "layers.1").set_kind(static_cast<v1::Operator::Kind>(99)); },
     "kind is not set"},
    {"no type", [](v1::Graph& g) { Op(g, "layers.1").clear_type(); }, "NAMESPACE.NAME"},
    {"type without namespace", [](v1::Graph& g) { Op(g, "layers.1").set_type("relu"); }, "NAMESPACE.NAME"},
    {"type with overload", [](v1::Graph& g) { Op(g, "layers.1").set_type("aten.add.Tensor"); },
     "NAMESPACE.NAME"},
    {"argument of an unknown type",
     [](v1::Graph& g) {
       Retype(g, "aten.erf",
              R"(args { value { operator: "layers.0" } } args { dtype: DATA_TYPE_UNSPECIFIED })");
     },
     "args[1].dtype 'layers.1': is no known data type"},
    {"an argument that grows without bound",
     [](v1::Graph& g) {
       Retype(g, "aten.erf", R"(args { value { operator: "layers.0" } }
                                args { ints { items { value: 1 } items { times_batch: 9223372036854775807 } } })");
     },
     "args[1].ints[1].timesBatch 'layers.1': is 9223372036854775807"},
    {"in place", [](v1::Graph& g) { Op(g, "layers.1").set_type("aten.relu_"); }, "writes into its arguments"},
    {"out variant", [](v1::Graph& g) { Op(g, "layers.1").set_overload("out"); }, "writes into its arguments"},
    {"negative flops", [](v1::Graph& g) { Op(g, "layers.1").mutable_flops()->set_forward(-1); }, "flops"},
    {"flops not a number",
     [](v1::Graph& g) {
       Op(g, "layers.1").mutable_flops()->set_backward(std::numeric_limits<double>::quiet_NaN());
     },
     "flops"},
    {"unknown value",
     [](v1::Graph& g) { Op(g, "layers.1").mutable_args(0)->mutable_value()->set_operator_("x"); },
     "unknown operator 'x'"},
    {"reads itself",
     [](v1::Graph& g) { Op(g, "layers.1").mutable_args(0)->mutable_value()->set_operator_("layers.1"); },
     "not before it"},
    {"reads a later one",
     [](v1::Graph& g) { Op(g, "layers.1").mutable_args(0)->mutable_value()->set_operator_("layers.2"); },
     "not before it"},
    {"output that is not there",
     [](v1::Graph& g) { Op(g, "layers.1").mutable_args(0)->mutable_value()->set_index(1); },
     "reads output 1"},
    {"negative output",
     [](v1::Graph& g) { Op(g, "layers.1").mutable_args(0)->mutable_value()->set_index(-1); },
     "reads output -1"},
    {"argument without a kind", [](v1::Graph& g) { Op(g, "layers.1").add_args(); }, "no value"},
    {"missing argument", [](v1::Graph& g) { Op(g, "layers.1").clear_args(); }, "'self' is missing"},
    {"too many arguments", [](v1::Graph& g) { Op(g, "layers.1").add_args()->set_bool_(true); }, "at most 1"},
    {"wrong argument type", [](v1::Graph& g) { Op(g, "layers.1").mutable_args(0)->set_string("x"); },
     "'self' must be Tensor, not a string"},
    {"unknown keyword",
     [](v1::Graph& g) {
       Retype(g, "aten.relu", R"(args { value { operator: "layers.0" } }
                                            kwargs { name: "speed" argument { double: 1 } })");
     },
     "unknown argument 'speed'"},
    {"argument twice",
     [](v1::Graph& g) {
       Retype(g, "aten.relu", R"(args { value { operator: "layers.0" } }
                                           kwargs { name: "self" argument { value { operator: "layers.0" } } })");
     },
     "'self' is given twice"},
    {"PARAMETRIC without a variable",
     [](v1::Graph& g) { Op(g, "layers.1").set_kind(v1::Operator::PARAMETRIC); }, "must be NON_PARAMETRIC"},
    {"NON_PARAMETRIC with one",
     [](v1::Graph& g) { Op(g, "layers.0").set_kind(v1::Operator::NON_PARAMETRIC); }, "must be PARAMETRIC"},
    {"no outputs", [](v1::Graph& g) { Op(g, "layers.1").clear_outputs(); }, "has no outputs"},
    {"too many outputs",
     [](v1::Graph& g) { *Op(g, "layers.1").add_outputs() = Op(g, "layers.1").outputs(0); },
     "has 1 outputs, not 2"},
    {"wrong shape", [](v1::Graph& g) { Op(g, "layers.1").mutable_outputs(0)->set_shape(1, 9); },
     "is float32[batch, 8], not float32[batch, 9]"},
    {"wrong dtype", [](v1::Graph& g) { Op(g, "layers.1").mutable_outputs(0)->set_dtype(v1::FLOAT64); },
     "not float64"},
    {"no dtype", [](v1::Graph& g) { Op(g, "layers.1").mutable_outputs(0)->clear_dtype(); }, "no known dtype"},
    {"unknown dtype",
     [](v1::Graph& g) { Op(g, "layers.1").mutable_outputs(0)->set_dtype(static_cast<v1::DataType>(77)); },
     "no known dtype"},
    {"empty dimension", [](v1::Graph& g) { Op(g, "input").mutable_outputs(0)->set_shape(1, 0); }, "is empty"},
    {"huge dimension",
     [](v1::Graph& g) {
       Op(g, "input").mutable_outputs(0)->set_shape(1, std::numeric_limits<int64_t>::max());
     },
     "elements a sample"},
    {"hugely negative dimension",
     [](v1::Graph& g) {
       Op(g, "input").mutable_outputs(0)->set_shape(1, std::numeric_limits<int64_t>::min());
     },
     "elements a sample"},
    {"product of dimensions overflows",
     [](v1::Graph& g) {
       Op(g, "input").mutable_outputs(0)->set_shape(0, int64_t{1} << 43);
       Op(g, "input").mutable_outputs(0)->set_shape(1, int64_t{1} << 43);
     },
     "elements a sample"},
    {"too many dimensions",
     [](v1::Graph& g) {
       for (int i = 0; i < 100; ++i) Op(g, "input").mutable_outputs(0)->add_shape(1);
     },
     "dimensions"},
    {"shapes do not fit", [](v1::Graph& g) { Op(g, "input").mutable_outputs(0)->set_shape(1, 5); },
     "'input' float32[batch, 5] and 'weight' float32[8, 4] do not fit"},
    {"placeholder with a type", [](v1::Graph& g) { Op(g, "input").set_type("aten.relu"); }, "neither type"},
    {"placeholder with two outputs",
     [](v1::Graph& g) { *Op(g, "input").add_outputs() = Op(g, "input").outputs(0); }, "1 output, not 2"},
    {"variable without `variable`", [](v1::Graph& g) { Op(g, "layers.0.bias").clear_variable(); },
     "exactly for kind VARIABLE"},
    {"`variable` elsewhere", [](v1::Graph& g) { Op(g, "layers.1").mutable_variable(); },
     "exactly for kind VARIABLE"},
    {"variable of batch size",
     [](v1::Graph& g) { Op(g, "layers.0.bias").mutable_outputs(0)->set_shape(0, -8); },
     "cannot depend on the batch"},
    {"trainable integer",
     [](v1::Graph& g) { Op(g, "layers.0.bias").mutable_outputs(0)->set_dtype(v1::INT64); },
     "must be floating"},
    {"no tensor name", [](v1::Graph& g) { Op(g, "layers.0.bias").mutable_variable()->clear_tensor_name(); },
     "tensorName"},
    {"tensor name twice",
     [](v1::Graph& g) { Op(g, "layers.0.bias").mutable_variable()->set_tensor_name("layers.0.weight"); },
     "taken by another variable"},
    {"no init", [](v1::Graph& g) { Op(g, "layers.0.bias").mutable_variable()->clear_init(); },
     "init has no kind"},
    {"uniform upside down",
     [](v1::Graph& g) { Op(g, "layers.0.bias").mutable_variable()->mutable_init()->set_low(5); },
     "low <= high"},
    {"normal without a number",
     [](v1::Graph& g) {
       v1::Init* init = Op(g, "layers.0.bias").mutable_variable()->mutable_init();
       init->set_kind(v1::Init::NORMAL);
       init->set_standard_deviation(std::numeric_limits<double>::infinity());
     },
     "NORMAL needs"},
    {"variable that nobody reads",
     [](v1::Graph& g) {
       v1::Operator variable = Op(g, "layers.0.bias");
       variable.set_name("spare");
       variable.mutable_variable()->set_tensor_name("spare");
       *g.add_operators() = variable;
     },
     "nothing reads this variable"},
    {"no loss", [](v1::Graph& g) { g.clear_loss(); }, "loss: reads unknown operator"},
    {"loss is no scalar", [](v1::Graph& g) { g.mutable_loss()->set_operator_("layers.2"); },
     "floating scalar"},
    {"loss output that is not there", [](v1::Graph& g) { g.mutable_loss()->set_index(3); }, "reads output 3"},
    {"view into another size",
     [](v1::Graph& g) {
       Retype(g, "aten.view", R"(args { value { operator: "layers.0" } }
                                 args { ints { items { times_batch: 1 } items { value: 9 } } })");
     },
     "cannot be viewed"},
    {"view that is affine",
     [](v1::Graph& g) {
       Retype(g, "aten.view", R"(args { value { operator: "layers.0" } }
                                 args { ints { items { value: 1 times_batch: 1 } items { value: 8 } } })");
     },
     "1 + 1 x batch"},
    {"transpose of a dimension that is not there",
     [](v1::Graph& g) {
       Retype(
           g, "aten.transpose",
           R"(overload: "int" args { value { operator: "layers.0" } } args { int { } } args { int { value: 5 } })");
     },
     "dimension 5"},
    {"split of samples",
     [](v1::Graph& g) {
       Retype(g, "aten.split",
              R"(overload: "Tensor" args { value { operator: "layers.0" } } args { int { value: 1 } })");
     },
     "depends on the batch"},
    {"empty slice",
     [](v1::Graph& g) {
       Retype(g, "aten.slice",
              R"(overload: "Tensor" args { value { operator: "layers.0" } } args { int { value: 1 } }
                                  args { int { value: 5 } } args { int { value: 5 } })");
     },
     "empty or runs backwards"},
    {"dropout of everything",
     [](v1::Graph& g) {
       Retype(g, "fusion.dropout_mask", R"(args { ints { items { times_batch: 1 } items { value: 8 } } }
                                           args { double: 1 } args { random_key { } } args { training { } })");
     },
     "'p' must be in [0, 1)"},
    {"codec without a name",
     [](v1::Graph& g) {
       Retype(g, "fusion.codec", R"(args { value { operator: "layers.0" } } args { string: "" })");
     },
     "'codec' must not be empty"},
};

v1::Graph Resnet() {
  v1alpha1::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "family: resnet config { blocks: 1 width: 4 classes: 3 image_size: 16 }", &model));
  auto graph = BuildModel(model);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

/// Item `item` of the list that is argument `index`.
v1::AffineInt& Item(v1::Graph& graph, const std::string& name, int index, int item) {
  return *Op(graph, name).mutable_args(index)->mutable_ints()->mutable_items(item);
}

const Malformed kImageCases[] = {
    {"stride of nothing", [](v1::Graph& g) { Item(g, "conv1", 3, 0).set_value(0); }, "'stride'"},
    {"stride with the batch", [](v1::Graph& g) { Item(g, "conv1", 3, 1).set_times_batch(1); }, "'stride'"},
    {"three paddings", [](v1::Graph& g) { Op(g, "conv1").mutable_args(4)->mutable_ints()->add_items(); },
     "1 or 2 numbers, not 3"},
    {"negative padding", [](v1::Graph& g) { Item(g, "conv1", 4, 0).set_value(-1); }, "'padding'"},
    {"dilation beyond the image", [](v1::Graph& g) { Item(g, "conv1", 5, 0).set_value(int64_t{1} << 44); },
     "does not fit into 16"},
    {"groups that do not divide", [](v1::Graph& g) { *Op(g, "conv1").add_args() = Int(2); }, "2 groups"},
    {"no groups", [](v1::Graph& g) { *Op(g, "conv1").add_args() = Int(0); }, "0 groups"},
    {"images without height",
     [](v1::Graph& g) { Op(g, "input").mutable_outputs(0)->mutable_shape()->RemoveLast(); },
     "[samples, channels, height, width]"},
    {"height that follows the batch",
     [](v1::Graph& g) { Op(g, "input").mutable_outputs(0)->set_shape(2, -1); }, "constant channels"},
    {"pool with too much padding", [](v1::Graph& g) { Item(g, "maxpool", 3, 0).set_value(2); },
     "more than half"},
    {"pool that is larger than the image", [](v1::Graph& g) { Item(g, "maxpool", 1, 0).set_value(99); },
     "does not fit"},
    {"average of nothing", [](v1::Graph& g) { Item(g, "avgpool", 1, 0).set_value(0); }, "'output_size'"},
    {"flattened backwards", [](v1::Graph& g) { *Op(g, "flatten").add_args() = Int(0); },
     "comes after 'end_dim'"},
    {"trainable statistics",
     [](v1::Graph& g) { Op(g, "bn1.running_mean").mutable_variable()->set_trainable(true); },
     "writes to 'bn1.running_mean', which must be a variable with trainable false"},
    {"computed statistics",
     [](v1::Graph& g) { Op(g, "layer1.0.bn1").mutable_args(3)->mutable_value()->set_operator_("bn1.mean"); },
     "unknown operator 'bn1.mean'"},
    {"statistics of two operators",
     [](v1::Graph& g) {
       Op(g, "layer1.0.bn1").mutable_args(3)->mutable_value()->set_operator_("bn1.running_mean");
     },
     "is read 2 times, but"},
    {"one tensor for both statistics",
     [](v1::Graph& g) { Op(g, "bn1").mutable_args(4)->mutable_value()->set_operator_("bn1.running_mean"); },
     "is read 2 times, but"},
    {"statistics of another width",
     [](v1::Graph& g) { Op(g, "bn1.running_var").mutable_outputs(0)->set_shape(0, 5); },
     "'running_var' float32[5] do not fit"},
    {"variance without mean", [](v1::Graph& g) { *Op(g, "bn1").mutable_args(3) = None(); },
     "without the other"},
    {"evaluation without statistics",
     [](v1::Graph& g) {
       *Op(g, "bn1").mutable_args(3) = None();
       *Op(g, "bn1").mutable_args(4) = None();
       *Op(g, "bn1").mutable_args(5) = Bool(false);
     },
     "must be given"},
    {"counter that is no integer",
     [](v1::Graph& g) { Op(g, "bn1.num_batches_tracked").mutable_outputs(0)->set_dtype(v1::FLOAT32); },
     "counter 'bn1.num_batches_tracked' must be int64[]"},
    {"counter of two operators",
     [](v1::Graph& g) {
       Op(g, "layer1.0.bn1").mutable_counters(0)->set_operator_("bn1.num_batches_tracked");
     },
     "is read 2 times, but"},
    {"counter that is not there", [](v1::Graph& g) { Op(g, "bn1").mutable_counters(0)->set_operator_("c"); },
     "unknown operator 'c'"},
};

TEST(ValidateGraph, AcceptsTheFamily) { EXPECT_TRUE(ValidateGraph(Mlp()).ok()) << ValidateGraph(Mlp()); }

TEST(ValidateGraph, RefusesMalformedGraphsAndSaysWhy) {
  static_assert(std::size(kCases) >= 40);
  for (const Malformed& test : kCases) {
    v1::Graph graph = Mlp();
    test.spoil(graph);
    const absl::Status status = ValidateGraph(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.message)) << test.name;
  }
}

TEST(ValidateGraph, RefusesMalformedImagesAndStatistics) {
  ASSERT_TRUE(ValidateGraph(Resnet()).ok());
  for (const Malformed& test : kImageCases) {
    v1::Graph graph = Resnet();
    test.spoil(graph);
    const absl::Status status = ValidateGraph(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.message)) << test.name;
  }
}

TEST(ValidateGraph, AcceptsOperatorsOutsideTheRegistry) {
  v1::Graph graph = Mlp();
  Op(graph, "layers.1").set_type("aten.erf");
  EXPECT_TRUE(ValidateGraph(graph).ok()) << ValidateGraph(graph);
  Op(graph, "layers.1").set_type("aten.relu");
  Op(graph, "layers.1").set_overload("Scalar");
  EXPECT_TRUE(ValidateGraph(graph).ok()) << "whether LibTorch has it, the engine says";
}

TEST(ValidateGraph, NamesTheOperator) {
  v1::Graph graph = Mlp();
  Op(graph, "layers.1").mutable_outputs(0)->set_shape(1, 9);
  EXPECT_THAT(std::string(ValidateGraph(graph).message()), HasSubstr("operators[4].outputs[0] 'layers.1': "));
}

}  // namespace
}  // namespace fusion::graph
