#include "worker/testing/fake_model.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/slicing.h"

namespace fusion::worker {
namespace {

using graph::v1::Graph;
using graph::v1::Operator;

void SetOutput(Operator& op, graph::v1::DataType dtype, std::vector<int64_t> shape) {
  graph::v1::TensorSpec* spec = op.add_outputs();
  spec->set_dtype(dtype);
  spec->mutable_shape()->Add(shape.begin(), shape.end());
}

Operator& AddOperator(Graph& graph, const std::string& name, Operator::Kind kind) {
  Operator& op = *graph.add_operators();
  op.set_name(name);
  op.set_kind(kind);
  return op;
}

Operator& AddCompute(Graph& graph, const std::string& name, const std::string& type,
                     const std::vector<std::string>& reads) {
  Operator& op = AddOperator(graph, name, Operator::NON_PARAMETRIC);
  op.set_type(type);
  op.mutable_flops()->set_forward(1);
  for (const std::string& read : reads) {
    op.add_args()->mutable_value()->set_operator_(read);
  }
  return op;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int Below(int bound) { return static_cast<int>(engine_() % static_cast<uint64_t>(bound)); }
  bool OneIn(int n) { return Below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

Graph MakeGraph(int layers, Random& random) {
  Graph graph;
  const int variables = 1 + layers / 2;  // fewer than layers: some are shared
  for (const std::string name : {"input", "label"}) {
    SetOutput(AddOperator(graph, name, Operator::PLACEHOLDER), graph::v1::INT64, {-1, kFakeColumns});
  }
  for (int i = 0; i < variables; ++i) {
    Operator& variable = AddOperator(graph, absl::StrCat("variable", i), Operator::VARIABLE);
    variable.mutable_variable()->set_tensor_name(absl::StrCat("tensor.", std::string(i, 'x')));
    variable.mutable_variable()->set_trainable(true);
    SetOutput(variable, graph::v1::FLOAT32, {kFakeColumns});
  }
  const auto some_variable = [&] { return absl::StrCat("variable", random.Below(variables)); };
  SetOutput(AddCompute(graph, "shifted", "fake.shift", {"input"}), graph::v1::INT64, {-1, kFakeColumns});
  std::vector<std::string> values;
  for (const std::string ids : {"input", "shifted"}) {
    values.push_back(absl::StrCat("embedding of ", ids));
    SetOutput(AddCompute(graph, values.back(), "fake.embed", {ids, some_variable()}), graph::v1::FLOAT32,
              {-1, kFakeColumns});
  }
  for (int i = 0; i < layers; ++i) {
    std::vector<std::string> reads = {values.back()};
    const std::string other = values[random.Below(static_cast<int>(values.size()))];
    if (other != reads[0]) {
      reads.push_back(other);
    }
    if (!random.OneIn(4)) {
      reads.push_back(some_variable());
    }
    values.push_back(absl::StrCat("layer", i));
    SetOutput(AddCompute(graph, values.back(), "fake.mix", reads), graph::v1::FLOAT32, {-1, kFakeColumns});
  }
  SetOutput(AddCompute(graph, "loss", "fake.loss", {values.back(), "label"}), graph::v1::FLOAT32, {});
  graph.mutable_loss()->set_operator_("loss");
  return graph;
}

// The graph's operators without variables, in a random topological order.
std::vector<std::string> RandomOrder(const Graph& graph, Random& random) {
  std::vector<const Operator*> waiting;
  std::set<std::string> done;
  for (const Operator& op : graph.operators()) {
    if (op.kind() == Operator::VARIABLE) {
      done.insert(op.name());
    } else {
      waiting.push_back(&op);
    }
  }
  std::vector<std::string> order;
  while (!waiting.empty()) {
    const int pick = random.Below(static_cast<int>(waiting.size()));
    const Operator& op = *waiting[pick];
    if (std::all_of(op.args().begin(), op.args().end(),
                    [&](const auto& argument) { return done.count(argument.value().operator_()) > 0; })) {
      done.insert(op.name());
      order.push_back(op.name());
      waiting.erase(waiting.begin() + pick);
    }
  }
  return order;
}

graph::Placement RandomPlacement(const Graph& graph, const FakeModelOptions& options, Random& random) {
  const std::vector<std::string> order = RandomOrder(graph, random);
  std::set<int> cuts = {0};
  for (int i = 1; i < options.sub_dags; ++i) {
    cuts.insert(random.Below(static_cast<int>(order.size())));
  }
  std::map<int, graph::StagePlacement> stages;
  for (auto cut = cuts.begin(); cut != cuts.end(); ++cut) {
    const auto end = std::next(cut) == cuts.end() ? order.end() : order.begin() + *std::next(cut);
    stages[random.Below(options.stages)].sub_dags.push_back(
        {.operators = {order.begin() + *cut, end}, .depth = 1 + random.Below(options.max_depth)});
  }
  graph::Placement placement;
  for (auto& [stage, stage_placement] : stages) {
    placement.push_back(std::move(stage_placement));
  }
  return placement;
}

}  // namespace

FakeModel MakeFakeModel(const FakeModelOptions& options) {
  Random random(options.seed);
  FakeModel model;
  model.graph = MakeGraph(options.layers, random);
  model.programs = graph::Slice(model.graph, RandomPlacement(model.graph, options, random)).value();
  graph::Placement whole(1);
  whole[0].sub_dags.resize(1);
  for (const Operator& op : model.graph.operators()) {
    if (op.kind() != Operator::VARIABLE) {
      whole[0].sub_dags[0].operators.push_back(op.name());
    }
  }
  model.whole = graph::Slice(model.graph, whole).value()[0];
  return model;
}

Tensor FakeData(bool label, bool training, int64_t batch, int64_t first, int64_t count) {
  Tensor tensor = AllocateTensor(graph::v1::INT64, {count, kFakeColumns});
  auto* out = reinterpret_cast<int64_t*>(tensor.data.get());
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const int64_t sample = first + i / kFakeColumns;
    out[i] = (17 * batch + 5 * sample + 3 * (i % kFakeColumns) + (label ? 1 : 0) + (training ? 0 : 2)) % 4;
  }
  return tensor;
}

}  // namespace fusion::worker
