// What this machine does in a second, with one thread. Operators are timed inside Forward and Backward of an
// engine like any other, so that their seconds contain what a real step pays: dispatch, layout, the autograd
// call, sums.

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "graph/registry.h"
#include "worker/engine/torch/border.h"
#include "worker/engine/torch/cpu_clock.h"
#include "worker/engine/torch/measured_program.h"
#include "worker/engine/torch/torch_engine.h"

namespace fusion::worker::engine {
namespace {

constexpr int kWarmUps = 2;
constexpr int kRepeats = 9;
constexpr int kMinRepeats = 3;
constexpr double kPassBudgetSeconds = 20;   // of all repeats together, CPU
constexpr size_t kEvictionBytes = 8 << 20;  // more than a core's own caches
constexpr double kBurstSeconds = 2e-3;      // CPU between two naps: what a task on a compnode is made of
constexpr auto kNap = std::chrono::milliseconds(4);

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double SecondsOf(const std::function<void()>& work) {
  work();
  std::vector<double> seconds;
  for (int i = 0; i < kRepeats; ++i) {
    const double start = ThreadCpuSeconds();
    work();
    seconds.push_back(ThreadCpuSeconds() - start);
  }
  return Median(std::move(seconds));
}

// Values of moderate size; ids and classes are 0 or 1, which every vocabulary has.
Tensor SampleData(const graph::v1::TensorSpec& spec, int64_t samples) {
  Tensor tensor = AllocateTensor(spec.dtype(), graph::ShapeOf(spec, samples));
  const int64_t count = tensor.elements();
  const auto fill = [&]<class T>(T* data, auto value) {
    for (int64_t i = 0; i < count; ++i) {
      data[i] = static_cast<T>(value(i));
    }
  };
  const auto real = [](int64_t i) { return static_cast<double>(i * 37 % 101 - 50) / 50; };
  const auto whole = [](int64_t i) { return i * 37 % 101 % 2; };
  switch (spec.dtype()) {
    case graph::v1::FLOAT32:
      fill(reinterpret_cast<float*>(tensor.data.get()), real);
      break;
    case graph::v1::FLOAT64:
      fill(reinterpret_cast<double*>(tensor.data.get()), real);
      break;
    case graph::v1::INT64:
      fill(reinterpret_cast<int64_t*>(tensor.data.get()), whole);
      break;
    case graph::v1::INT32:
      fill(reinterpret_cast<int32_t*>(tensor.data.get()), whole);
      break;
    case graph::v1::BOOL:
    case graph::v1::UINT8:
      fill(reinterpret_cast<uint8_t*>(tensor.data.get()), whole);
      break;
    default:  // half precision: zeros are as good
      fill(reinterpret_cast<uint16_t*>(tensor.data.get()), [](int64_t) { return 0; });
  }
  return tensor;
}

// In a job, other micro-batches and layers run between two uses of a weight or a saved tensor, so that these
// come from memory or the shared cache; the few distinct operators measured here would keep theirs close.
class CacheEviction {
 public:
  void Evict() {
    for (size_t i = 0; i < bytes_.size(); i += kLineBytes) {
      bytes_[i] = static_cast<unsigned char>(bytes_[i] + 1);
    }
  }

 private:
  static constexpr size_t kLineBytes = 64;
  std::vector<unsigned char> bytes_ = std::vector<unsigned char>(kEvictionBytes);
};

// A worker sleeps between its tasks, and after a sleep a core is slower for some milliseconds than in a loop
// that never rests (here by a fifth). So the operators measured are run in bursts with naps between them.
class Naps {
 public:
  void NapWhenDue() {
    if (ThreadCpuSeconds() - woke_ < kBurstSeconds) return;
    std::this_thread::sleep_for(kNap);
    woke_ = ThreadCpuSeconds();
  }

 private:
  double woke_ = 0;
};

struct OperatorTimes {
  std::vector<double> forward;   // by operator
  std::vector<double> backward;  // 0 where there is none
  double update_seconds_per_parameter = 0;
};

absl::StatusOr<OperatorTimes> Time(const graph::v1::StageProgram& program, int64_t samples) {
  TorchEngine engine;
  EngineOptions options;
  options.training.mutable_optimizer()->set_type(v1alpha1::Optimizer::AdamW);
  if (absl::Status status = engine.Load(program, options); !status.ok()) {
    return status;
  }
  std::vector<Tensor> values;
  for (const graph::v1::Edge& edge : program.incoming()) {
    values.push_back(SampleData(edge.spec(), samples));
  }
  std::vector<Tensor> gradients;
  for (const graph::v1::Edge& edge : program.outgoing()) {
    gradients.push_back(SampleData(edge.spec(), samples));
  }
  const auto operators = static_cast<size_t>(std::count_if(
      program.sub_dags(0).operators().begin(), program.sub_dags(0).operators().end(),
      [](const graph::v1::Operator& op) { return op.kind() != graph::v1::Operator::VARIABLE; }));
  std::vector<std::vector<double>> forward(operators);
  std::vector<std::vector<double>> backward(operators);
  CacheEviction caches;
  Naps naps;
  const double start = ThreadCpuSeconds();
  for (int repeat = 0; repeat < kWarmUps + kRepeats; ++repeat) {
    if (repeat >= kWarmUps + kMinRepeats && ThreadCpuSeconds() - start > kPassBudgetSeconds) {
      break;
    }
    const Pass pass{.step = 1, .micro_batch = repeat, .training = true, .samples = samples, .weight = 1};
    for (size_t i = 0; i < values.size(); ++i) {
      absl::Status status = engine.Receive(pass, program.incoming(static_cast<int>(i)).id(), values[i]);
      if (!status.ok()) {
        return status;
      }
    }
    const auto record = [&](std::vector<std::vector<double>>& into) {
      engine.set_observer([&into, &naps, repeat](int index, double seconds) {
        if (repeat >= kWarmUps) {
          into[static_cast<size_t>(index)].push_back(seconds);
        }
        naps.NapWhenDue();
      });
    };
    record(forward);
    caches.Evict();
    if (auto result = engine.Forward(pass, 0); !result.ok()) {
      return result.status();
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      const graph::v1::Edge& edge = program.outgoing(static_cast<int>(i));
      if (edge.differentiable()) {
        absl::Status status =
            engine.ReceiveGradient(pass, {.edge = edge.id(), .consumer = -1, .tensor = gradients[i]});
        if (!status.ok()) {
          return status;
        }
      }
    }
    record(backward);
    caches.Evict();
    if (auto result = engine.Backward(pass, 0); !result.ok()) {
      return result.status();
    }
    if (repeat + 1 == kWarmUps) {  // makes the optimizer's state, so that the update measured below finds it
      if (auto result = engine.Update(1, {.learning_rate_factor = 1e-6}); !result.ok()) {
        return result.status();
      }
    }
  }

  OperatorTimes times;
  for (size_t i = 0; i < operators; ++i) {
    times.forward.push_back(Median(forward[i]));
    times.backward.push_back(backward[i].empty() ? 0 : Median(backward[i]));
  }
  double parameters = 0;
  for (const VariableInfo& variable : engine.Variables()) {
    if (variable.trainable) {
      parameters += static_cast<double>(graph::BytesOf(variable.spec, 1)) /
                    static_cast<double>(ElementBytes(variable.spec.dtype()));
    }
  }
  if (parameters > 0) {
    const double before = ThreadCpuSeconds();
    if (auto result = engine.Update(2, {.learning_rate_factor = 1e-6}); !result.ok()) {
      return result.status();
    }
    times.update_seconds_per_parameter = (ThreadCpuSeconds() - before) / parameters;
  }
  return times;
}

// A chain of operators on one number: what an operator costs before it computes.
absl::StatusOr<double> OperatorSeconds() {
  constexpr int kLength = 64;
  graph::v1::StageProgram program;
  graph::v1::SubDag* sub_dag = program.add_sub_dags();
  graph::v1::Operator* variable = sub_dag->add_operators();
  variable->set_name("x");
  variable->set_kind(graph::v1::Operator::VARIABLE);
  variable->mutable_variable()->set_tensor_name("x");
  variable->mutable_variable()->set_trainable(true);
  variable->mutable_variable()->mutable_init()->set_kind(graph::v1::Init::ONES);
  graph::v1::TensorSpec spec;
  spec.set_dtype(graph::v1::FLOAT32);
  spec.add_shape(1);
  *variable->add_outputs() = spec;
  for (int i = 0; i < kLength; ++i) {
    graph::v1::Operator* op = sub_dag->add_operators();
    op->set_name(absl::StrCat("tanh.", i));
    op->set_type("aten.tanh");
    op->add_args()->mutable_value()->set_operator_(i == 0 ? "x" : absl::StrCat("tanh.", i - 1));
    *op->add_outputs() = spec;
    (*program.mutable_positions())[op->name()] = i;
  }
  (*program.mutable_positions())["sink"] = kLength;
  graph::v1::Edge* edge = program.add_outgoing();
  edge->mutable_value()->set_operator_(absl::StrCat("tanh.", kLength - 1));
  *edge->mutable_spec() = spec;
  edge->set_differentiable(true);
  edge->add_consumers("sink");
  absl::StatusOr<OperatorTimes> times = Time(program, 1);
  if (!times.ok()) {
    return times.status();
  }
  return (Median(times->forward) + Median(times->backward)) / 2;
}

void MeasureRates(MachineMeasurement& result) {
  const at::NoGradGuard no_gradients;
  const auto rate = [](double work, const std::function<void()>& run) { return work / SecondsOf(run); };
  constexpr int64_t kLarge = 1024;
  constexpr int64_t kMiddle = 192;
  constexpr int64_t kElements = 1 << 20;
  constexpr int64_t kCopied = 1 << 24;
  const at::Tensor large = at::full({kLarge, kLarge}, 0.5);
  const at::Tensor middle = at::full({kMiddle, kMiddle}, 0.5);
  const at::Tensor image = at::full({4, 32, 28, 28}, 0.5);
  const at::Tensor kernel = at::full({32, 32, 3, 3}, 0.5);
  const at::Tensor elements = at::full({kElements}, 0.5);
  const at::Tensor source = at::full({kCopied}, 0.5);
  at::Tensor target = at::empty_like(source);

  result.flops = rate(2.0 * kLarge * kLarge * kLarge, [&] { at::mm(large, large); });
  const double matmul = rate(2.0 * kMiddle * kMiddle * kMiddle, [&] { at::mm(middle, middle); });
  const double convolution = rate(2.0 * 4 * 28 * 28 * 32 * 32 * 9, [&] {
    at::conv2d(image, kernel, at::Tensor(), /*stride=*/1, /*padding=*/1);
  });
  const double elementwise = rate(kElements, [&] { at::mul(elements, elements); });
  const double reduction = rate(kElements, [&] { at::sum(elements); });
  result.memory_bytes_per_second = rate(2.0 * sizeof(float) * kCopied, [&] { target.copy_(source); });
  // Operators that only move data have no FLOPs; their time is bytes.
  const double moving = result.flops;
  result.lambda.clear();
  for (const double speed : {matmul, convolution, elementwise, reduction, moving}) {
    result.lambda.push_back(std::min(1.0, speed / result.flops));
  }
}

// Says an operator by its name in the graph, not by the one that it is measured under.
absl::Status InGraphsWords(const absl::Status& status, const graph::v1::Graph& graph) {
  const std::string measured = "'measured.";
  std::string message(status.message());
  const size_t start = message.find(measured);
  const size_t end = start == std::string::npos ? start : message.find('\'', start + 1);
  int index = 0;
  if (end == std::string::npos ||
      !absl::SimpleAtoi(message.substr(start + measured.size(), end - start - measured.size()), &index) ||
      index < 0 || index >= graph.operators_size()) {
    return status;
  }
  message.replace(start + 1, end - start - 1, graph.operators(index).name());
  return absl::Status(status.code(), message);
}

bool CanLoad(const graph::v1::StageProgram& program) {
  TorchEngine engine;
  EngineOptions options;
  options.training.mutable_optimizer()->set_type(v1alpha1::Optimizer::SGD);
  return engine.Load(program, options).ok();
}

// Numbers made up for a measurement do not suit every operator (a matrix that has no Cholesky factor). Those
// that fail on them, each tried alone, are left out; the planner prices them by its formula.
absl::StatusOr<MeasuredProgram> ProgramOfMeasurable(const graph::v1::Graph& graph, int64_t samples,
                                                    const std::vector<std::string>& signatures) {
  std::set<std::string> failing;
  for (const std::string& signature : signatures) {
    const absl::StatusOr<MeasuredProgram> alone = ProgramOfDistinctOperators(
        graph, samples, [&](const std::string& candidate) { return candidate == signature; });
    if (!alone.ok()) {
      return alone.status();
    }
    if (!Time(alone->program, samples).ok()) {
      failing.insert(signature);
    }
  }
  return ProgramOfDistinctOperators(
      graph, samples, [&](const std::string& candidate) { return !failing.contains(candidate); });
}

}  // namespace

absl::StatusOr<MachineMeasurement> TorchEngine::Measure(const graph::v1::Graph& graph, int64_t samples) {
  if (stage_ != nullptr) {
    return absl::FailedPreconditionError("an engine that is loaded does not measure");
  }
  return Guarded("measuring the machine", [&]() -> absl::StatusOr<MachineMeasurement> {
    PrepareProcess(/*threads=*/1);
    MachineMeasurement result;
    MeasureRates(result);
    const absl::StatusOr<double> operator_seconds = OperatorSeconds();
    if (!operator_seconds.ok()) {
      return operator_seconds.status();
    }
    result.operator_seconds = *operator_seconds;
    absl::StatusOr<MeasuredProgram> measured =
        ProgramOfDistinctOperators(graph, samples, [](const std::string&) { return true; });
    if (!measured.ok()) {
      return measured.status();
    }
    absl::StatusOr<OperatorTimes> times = Time(measured->program, samples);
    if (!times.ok() && CanLoad(measured->program)) {
      measured = ProgramOfMeasurable(graph, samples, measured->signatures);
      if (!measured.ok()) {
        return measured.status();
      }
      times = Time(measured->program, samples);
    }
    if (!times.ok()) {
      return InGraphsWords(times.status(), graph);
    }
    for (size_t i = 0; i < measured->signatures.size(); ++i) {
      result.operators.push_back({measured->signatures[i], times->forward[i], times->backward[i]});
    }
    std::sort(
        result.operators.begin(), result.operators.end(),
        [](const OperatorMeasurement& a, const OperatorMeasurement& b) { return a.signature < b.signature; });
    result.update_seconds_per_parameter = times->update_seconds_per_parameter;
    return result;
  });
}

}  // namespace fusion::worker::engine
