#include "graph/operator_examples.h"

#include <functional>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "graph/builder.h"

namespace fusion::graph {
namespace {

/// Builds the operator under test from x, float32 [batch, 4, 6], and returns a floating value of the shape
/// that it says.
struct Ending {
  v1::ValueRef value;
  Shape shape;
};
using Body = std::function<Ending(GraphBuilder&, const v1::ValueRef& x)>;

OperatorExample Example(const std::string& type, const Body& body) {
  GraphBuilder graph(type);
  const v1::ValueRef input = graph.Placeholder("input", v1::FLOAT32, {Batch(), 4, 6});
  const v1::ValueRef variable = graph.Variable("x", {4, 6}, Normal(1));
  const v1::ValueRef x = graph.Add("sum", "aten.add.Tensor", {Read(input), Read(variable)});
  const Ending ending = body(graph, x);
  v1::ValueRef loss = ending.value;
  if (!ending.shape.empty()) {
    const v1::ValueRef label = graph.Placeholder("label", v1::FLOAT32, ending.shape);
    loss = graph.Add("loss", "aten.mse_loss", {Read(ending.value), Read(label)});
  }
  auto finished = graph.Finish(loss);
  if (!finished.ok())
    ABSL_RAW_LOG(FATAL, "example of %s: %s", type.c_str(), finished.status().ToString().c_str());
  return {type, *std::move(finished)};
}

/// type(x, more…), whose output has `shape`.
OperatorExample Unary(const std::string& type, const Shape& shape, std::vector<v1::Argument> more = {},
                      const GraphBuilder::KeywordArguments& kwargs = {}) {
  return Example(type, [&](GraphBuilder& graph, const v1::ValueRef& x) {
    std::vector<v1::Argument> args = {Read(x)};
    args.insert(args.end(), more.begin(), more.end());
    return Ending{graph.Add("example", type, std::move(args), kwargs), shape};
  });
}

void AddProducts(std::vector<OperatorExample>& examples) {
  examples.push_back(Example("aten.linear", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef weight = graph.Variable("weight", {3, 6}, Normal(1));
    const v1::ValueRef bias = graph.Variable("bias", {3}, Zeros());
    return Ending{graph.Add("example", "aten.linear", {Read(x), Read(weight), Read(bias)}), {Batch(), 4, 3}};
  }));
  examples.push_back(Example("aten.addmm", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef rows = graph.Add("rows", "aten.view", {Read(x), Sizes({Batch(4), 6})});
    const v1::ValueRef weight = graph.Variable("weight", {6, 3}, Normal(1));
    const v1::ValueRef bias = graph.Variable("bias", {3}, Zeros());
    return Ending{graph.Add("example", "aten.addmm", {Read(bias), Read(rows), Read(weight)}), {Batch(4), 3}};
  }));
  examples.push_back(Example("aten.matmul", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef turned = graph.Add("turned", "aten.transpose.int", {Read(x), Int(1), Int(2)});
    return Ending{graph.Add("example", "aten.matmul", {Read(x), Read(turned)}), {Batch(), 4, 4}};
  }));
  for (const bool causal : {false, true}) {
    examples.push_back(Example("aten.scaled_dot_product_attention", [causal](GraphBuilder& graph,
                                                                             const v1::ValueRef& x) {
      const v1::ValueRef split = graph.Add("heads.view", "aten.view", {Read(x), Sizes({Batch(), 4, 2, 3})});
      const v1::ValueRef heads = graph.Add("heads", "aten.transpose.int", {Read(split), Int(1), Int(2)});
      return Ending{graph.Add("example", "aten.scaled_dot_product_attention",
                              {Read(heads), Read(heads), Read(heads), None(), Double(0), Bool(causal)}),
                    {Batch(), 2, 4, 3}};
    }));
  }
}

void AddReductions(std::vector<OperatorExample>& examples) {
  examples.push_back(Example("aten.layer_norm", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef weight = graph.Variable("weight", {6}, Ones());
    const v1::ValueRef bias = graph.Variable("bias", {6}, Zeros());
    return Ending{graph.Add("example", "aten.layer_norm",
                            {Read(x), Sizes({6}), Read(weight), Read(bias), Double(1e-5)}),
                  {Batch(), 4, 6}};
  }));
  examples.push_back(Unary("aten.softmax.int", {Batch(), 4, 6}, {Int(-1)}));
  examples.push_back(Example("aten.cross_entropy_loss", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef rows = graph.Add("rows", "aten.view", {Read(x), Sizes({Batch(4), 6})});
    const v1::ValueRef target = graph.Placeholder("target", v1::INT64, {Batch(4)});
    return Ending{graph.Add("example", "aten.cross_entropy_loss", {Read(rows), Read(target)}), {}};
  }));
  examples.push_back(Unary("aten.sum.dim_IntList", {Batch(), 6}, {Sizes({1}), Bool(false)}));
  examples.push_back(Unary("aten.linalg_vector_norm", {Batch(), 4, 1}, {Int(2), Sizes({2}), Bool(true)}));
  // Some targets are ignored.
  examples.push_back(Example("aten.cross_entropy_loss", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef rows = graph.Add("rows", "aten.view", {Read(x), Sizes({Batch(4), 6})});
    const v1::ValueRef target = graph.Placeholder("target", v1::INT64, {Batch(4)});
    return Ending{
        graph.Add("example", "aten.cross_entropy_loss", {Read(rows), Read(target), None(), Int(1), Int(2)}),
        {}};
  }));
  examples.push_back(Example("aten.mse_loss", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef target = graph.Placeholder("target", v1::FLOAT32, {Batch(), 4, 6});
    return Ending{graph.Add("example", "aten.mse_loss", {Read(x), Read(target)}), {}};
  }));
}

/// x as images [batch, 2, 3, 4].
v1::ValueRef Images(GraphBuilder& graph, const v1::ValueRef& x) {
  return graph.Add("images", "aten.view", {Read(x), Sizes({Batch(), 2, 3, 4})});
}

/// type(images, more…), whose output has `shape`.
OperatorExample OverImages(const std::string& type, const Shape& shape, std::vector<v1::Argument> more) {
  return Example(type, [&](GraphBuilder& graph, const v1::ValueRef& x) {
    std::vector<v1::Argument> args = {Read(Images(graph, x))};
    args.insert(args.end(), more.begin(), more.end());
    return Ending{graph.Add("example", type, std::move(args)), shape};
  });
}

void AddImages(std::vector<OperatorExample>& examples) {
  examples.push_back(Example("aten.conv2d", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef images = Images(graph, x);
    const v1::ValueRef weight = graph.Variable("weight", {4, 2, 2, 3}, Normal(1));
    const v1::ValueRef bias = graph.Variable("bias", {4}, Zeros());
    return Ending{graph.Add("example", "aten.conv2d",
                            {Read(images), Read(weight), Read(bias), Sizes({2, 1}), Sizes({1, 1})}),
                  {Batch(), 4, 2, 4}};
  }));
  examples.push_back(Example("aten.conv2d", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef images = Images(graph, x);
    const v1::ValueRef weight = graph.Variable("weight", {4, 1, 2, 2}, Normal(1));
    return Ending{
        graph.Add("example", "aten.conv2d",
                  {Read(images), Read(weight), None(), Sizes({1, 1}), Sizes({0, 0}), Sizes({2, 2}), Int(2)}),
        {Batch(), 4, 1, 2}};
  }));
  examples.push_back(
      OverImages("aten.max_pool2d", {Batch(), 2, 2, 2}, {Sizes({3, 3}), Sizes({2, 2}), Sizes({1, 1})}));
  examples.push_back(OverImages("aten.max_pool2d", {Batch(), 2, 2, 2},
                                {Sizes({2, 2}), Sizes({}), Sizes({0, 0}), Sizes({1, 1}), Bool(true)}));
  examples.push_back(OverImages("aten.adaptive_avg_pool2d", {Batch(), 2, 1, 1}, {Sizes({1, 1})}));
  examples.push_back(OverImages("aten.adaptive_avg_pool2d", {Batch(), 2, 2, 3}, {Sizes({2, 3})}));
  examples.push_back(OverImages("aten.mean.dim", {Batch(), 2}, {Sizes({2, 3})}));
  examples.push_back(OverImages("aten.flatten.using_ints", {Batch(), 24}, {Int(1)}));
  examples.push_back(Example("aten.batch_norm", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef images = Images(graph, x);
    const v1::ValueRef weight = graph.Variable("weight", {2}, Ones());
    const v1::ValueRef bias = graph.Variable("bias", {2}, Zeros());
    const v1::ValueRef mean = graph.Buffer("running_mean", v1::FLOAT32, {2}, Zeros());
    const v1::ValueRef variance = graph.Buffer("running_var", v1::FLOAT32, {2}, Ones());
    const v1::ValueRef counter = graph.Buffer("num_batches_tracked", v1::INT64, {}, Zeros());
    const v1::ValueRef normal = graph.Add("example", "aten.batch_norm",
                                          {Read(images), Read(weight), Read(bias), Read(mean), Read(variance),
                                           Training(), Double(0.1), Double(1e-5), Bool(true)});
    graph.CountPasses(counter);
    return Ending{normal, {Batch(), 2, 3, 4}};
  }));
}

void AddElementwise(std::vector<OperatorExample>& examples) {
  const Shape same = {Batch(), 4, 6};
  for (const char* approximate : {"none", "tanh"}) {
    examples.push_back(Unary("aten.gelu", same, {}, {{"approximate", Text(approximate)}}));
  }
  examples.push_back(Unary("aten.relu", same));
  examples.push_back(Unary("aten.tanh", same));
  examples.push_back(Unary("aten.mul.Scalar", same, {Double(0.5)}));
  examples.push_back(Unary("aten.clamp_min", same, {Double(0.1)}));
  examples.push_back(Unary("fusion.codec", same, {Text("int8")}));
  for (const char* type : {"aten.add.Tensor", "aten.mul.Tensor", "aten.div.Tensor"}) {
    examples.push_back(Example(type, [&](GraphBuilder& graph, const v1::ValueRef& x) {
      const v1::ValueRef row = graph.Variable("row", {6}, Normal(1));
      return Ending{graph.Add("example", type, {Read(x), Read(row)}), same};
    }));
  }
  examples.push_back(Example("aten.masked_fill.Scalar", [&](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef ones = graph.Add("ones", "aten.ones", {Sizes({4, 6})}, {{"dtype", Type(v1::BOOL)}});
    const v1::ValueRef mask = graph.Add("mask", "aten.triu", {Read(ones), Int(1)});
    return Ending{graph.Add("example", "aten.masked_fill.Scalar", {Read(x), Read(mask), Double(-2)}), same};
  }));
}

void AddMasks(std::vector<OperatorExample>& examples) {
  examples.push_back(Example("aten.eq.Scalar", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef ids = graph.Placeholder("ids", v1::INT64, {Batch(), 4});
    const v1::ValueRef padding = graph.Add("example", "aten.eq.Scalar", {Read(ids), Int(0)});
    const v1::ValueRef mask = graph.Add("mask", "aten.view", {Read(padding), Sizes({Batch(), 4, 1})});
    return Ending{graph.Add("filled", "aten.masked_fill.Scalar", {Read(x), Read(mask), Double(0)}),
                  {Batch(), 4, 6}};
  }));
  examples.push_back(Example("aten.zeros", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef zeros = graph.Add("example", "aten.zeros", {Sizes({Batch(), 1, 6})});
    return Ending{graph.Add("added", "aten.add.Tensor", {Read(x), Read(zeros)}), {Batch(), 4, 6}};
  }));
  // Attention of which some keys are padding, as bert's.
  examples.push_back(
      Example("aten.scaled_dot_product_attention", [](GraphBuilder& graph, const v1::ValueRef& x) {
        const v1::ValueRef zeros = graph.Add("zeros", "aten.zeros", {Sizes({Batch(), 1, 1, 4})});
        const v1::ValueRef ids = graph.Placeholder("ids", v1::INT64, {Batch(), 1, 1, 4});
        const v1::ValueRef padding = graph.Add("padding", "aten.eq.Scalar", {Read(ids), Int(1)});
        const v1::ValueRef mask =
            graph.Add("mask", "aten.masked_fill.Scalar", {Read(zeros), Read(padding), Double(-1e30)});
        const v1::ValueRef split = graph.Add("heads.view", "aten.view", {Read(x), Sizes({Batch(), 4, 2, 3})});
        const v1::ValueRef heads = graph.Add("heads", "aten.transpose.int", {Read(split), Int(1), Int(2)});
        return Ending{graph.Add("example", "aten.scaled_dot_product_attention",
                                {Read(heads), Read(heads), Read(heads), Read(mask)}),
                      {Batch(), 2, 4, 3}};
      }));
  // Sample i belongs to class i, as InfoNCE has it.
  examples.push_back(Example("aten.arange", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef rows = graph.Add("rows", "aten.reshape", {Read(x), Sizes({Batch(), 24})});
    const v1::ValueRef own =
        graph.Add("example", "aten.arange", {Size(Batch())}, {{"dtype", Type(v1::INT64)}});
    return Ending{graph.Add("contrast", "aten.cross_entropy_loss", {Read(rows), Read(own)}), {}};
  }));
}

void AddMemory(std::vector<OperatorExample>& examples) {
  const Shape same = {Batch(), 4, 6};
  examples.push_back(Unary("aten.view", {Batch(4), 6}, {Sizes({Batch(4), 6})}));
  examples.push_back(Unary("aten.reshape", {Batch(), 24}, {Sizes({Batch(), 24})}));
  examples.push_back(Unary("aten.contiguous", same));
  examples.push_back(Unary("aten.clone", same));
  examples.push_back(Example("aten.to.dtype", [&](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef half = graph.Add("example", "aten.to.dtype", {Read(x), Type(v1::BFLOAT16)});
    return Ending{graph.Add("back", "aten.to.dtype", {Read(half), Type(v1::FLOAT32)}), same};
  }));
  examples.push_back(Unary("aten.transpose.int", {Batch(), 6, 4}, {Int(1), Int(-1)}));
  examples.push_back(Unary("aten.slice.Tensor", {Batch(), 4, 2}, {Int(2), Int(1), Int(5), Int(2)}));
  examples.push_back(Unary("aten.triu", same, {Int(1)}));
  examples.push_back(Example("aten.split.Tensor", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const auto parts = graph.AddMany("example", "aten.split.Tensor", {Read(x), Int(2), Int(-1)});
    return Ending{graph.Add("product", "aten.mul.Tensor", {Read(parts.at(0)), Read(parts.at(2))}),
                  {Batch(), 4, 2}};
  }));
  examples.push_back(Example("aten.arange", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef ids = graph.Add("example", "aten.arange", {Int(4)}, {{"dtype", Type(v1::INT64)}});
    const v1::ValueRef table = graph.Variable("table", {5, 6}, Normal(1));
    const v1::ValueRef rows = graph.Add("rows", "aten.embedding", {Read(table), Read(ids)});
    return Ending{graph.Add("added", "aten.add.Tensor", {Read(x), Read(rows)}), {Batch(), 4, 6}};
  }));
  examples.push_back(Example("aten.embedding", [](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef ids = graph.Placeholder("ids", v1::INT64, {Batch(), 4});
    const v1::ValueRef table = graph.Variable("table", {5, 6}, Normal(1));
    const v1::ValueRef rows = graph.Add("example", "aten.embedding", {Read(table), Read(ids)});
    return Ending{graph.Add("added", "aten.add.Tensor", {Read(x), Read(rows)}), {Batch(), 4, 6}};
  }));
  examples.push_back(Example("aten.ones", [&](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef ones = graph.Add("example", "aten.ones", {Sizes({Batch(), 1, 6})});
    return Ending{graph.Add("product", "aten.mul.Tensor", {Read(x), Read(ones)}), same};
  }));
  examples.push_back(Example("fusion.dropout_mask", [&](GraphBuilder& graph, const v1::ValueRef& x) {
    const v1::ValueRef mask =
        graph.Add("example", "fusion.dropout_mask", {Sizes(same), Double(0.5), RandomKey(), Training()});
    return Ending{graph.Add("product", "aten.mul.Tensor", {Read(x), Read(mask)}), same};
  }));
}

}  // namespace

std::vector<OperatorExample> OperatorExamples() {
  std::vector<OperatorExample> examples;
  AddProducts(examples);
  AddReductions(examples);
  AddImages(examples);
  AddElementwise(examples);
  AddMasks(examples);
  AddMemory(examples);
  return examples;
}

}  // namespace fusion::graph
