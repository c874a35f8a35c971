#include "worker/engine/engine_test_support.h"

#include <google/protobuf/text_format.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fusion::worker {
namespace {

template <class T>
Tensor TensorOf(DataType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  Tensor tensor = AllocateTensor(dtype, std::move(shape));
  if (static_cast<size_t>(tensor.bytes()) != values.size() * sizeof(T)) {
    std::cerr << "a test's tensor has " << tensor.elements() << " elements and " << values.size()
              << " values\n";
    std::abort();
  }
  std::memcpy(tensor.data.get(), values.data(), values.size() * sizeof(T));
  return tensor;
}

}  // namespace

graph::v1::Graph GraphOfText(const std::string& text) {
  graph::v1::Graph graph;
  if (!google::protobuf::TextFormat::ParseFromString(text, &graph)) {
    std::cerr << "a test's graph is not protobuf text:\n" << text << "\n";
    std::abort();
  }
  return graph;
}

graph::v1::StageProgram WholeProgram(const graph::v1::Graph& graph) {
  graph::v1::StageProgram program;
  graph::v1::SubDag* sub_dag = program.add_sub_dags();
  sub_dag->set_depth(1);
  for (int i = 0; i < graph.operators_size(); ++i) {
    *sub_dag->add_operators() = graph.operators(i);
    (*program.mutable_positions())[graph.operators(i).name()] = i;
  }
  *program.mutable_loss() = graph.loss();
  program.set_computes_loss(true);
  return program;
}

Tensor FloatTensor(std::vector<int64_t> shape, const std::vector<float>& values) {
  return TensorOf(graph::v1::FLOAT32, std::move(shape), values);
}

Tensor DoubleTensor(std::vector<int64_t> shape, const std::vector<double>& values) {
  return TensorOf(graph::v1::FLOAT64, std::move(shape), values);
}

Tensor LongTensor(std::vector<int64_t> shape, const std::vector<int64_t>& values) {
  return TensorOf(graph::v1::INT64, std::move(shape), values);
}

EngineOptions WithSeed(int64_t seed) {
  EngineOptions options;
  options.seed = seed;
  return options;
}

bool BitEqual(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape &&
         (a.bytes() == 0 || std::memcmp(a.data.get(), b.data.get(), static_cast<size_t>(a.bytes())) == 0);
}

absl::StatusOr<std::unique_ptr<InProcessRun>> InProcessRun::Create(
    const std::vector<graph::v1::StageProgram>& programs, const EngineOptions& options) {
  auto run = std::make_unique<InProcessRun>();
  run->programs_ = programs;
  for (const graph::v1::StageProgram& program : programs) {
    absl::StatusOr<std::unique_ptr<Engine>> engine = LoadEngine("torch");
    if (!engine.ok()) {
      return engine.status();
    }
    if (absl::Status status = (*engine)->Load(program, options); !status.ok()) {
      return status;
    }
    run->engines_.push_back(*std::move(engine));
  }
  return run;
}

absl::StatusOr<double> InProcessRun::ForwardBackward(int64_t step, const std::vector<MicroBatch>& batches) {
  if (absl::Status status = ShareVariables(); !status.ok()) {
    return status;
  }
  double sum = 0;
  double weights = 0;
  std::vector<Pass> passes;
  for (size_t m = 0; m < batches.size(); ++m) {
    passes.push_back({.step = step,
                      .micro_batch = static_cast<int32_t>(m),
                      .training = true,
                      .samples = batches[m].samples,
                      .weight = batches[m].weight});
    const absl::StatusOr<std::optional<double>> loss = Forward(passes.back(), batches[m]);
    if (!loss.ok()) {
      return loss.status();
    }
    sum += batches[m].weight * loss->value_or(0);
    weights += batches[m].weight;
  }
  for (const Pass& pass : passes) {
    if (absl::Status status = Backward(pass); !status.ok()) {
      return status;
    }
  }
  for (size_t user = 0; user < engines_.size(); ++user) {
    absl::StatusOr<std::vector<VariableGradient>> gradients = engines_[user]->TakeBorrowedGradients();
    if (!gradients.ok()) {
      return gradients.status();
    }
    for (const graph::v1::SharedVariable& shared : programs_[user].borrowed()) {
      for (const VariableGradient& gradient : *gradients) {
        if (gradient.shared == shared.id()) {
          absl::Status status =
              engines_[static_cast<size_t>(shared.owner_stage())]->ReceiveLentGradient(gradient);
          if (!status.ok()) {
            return status;
          }
        }
      }
    }
  }
  return sum / weights;
}

absl::StatusOr<double> InProcessRun::Evaluate(int64_t step, int32_t micro_batch, const MicroBatch& batch) {
  if (absl::Status status = ShareVariables(); !status.ok()) {
    return status;
  }
  const Pass pass{.step = step,
                  .micro_batch = micro_batch,
                  .training = false,
                  .samples = batch.samples,
                  .weight = batch.weight};
  const absl::StatusOr<std::optional<double>> loss = Forward(pass, batch);
  if (!loss.ok()) {
    return loss.status();
  }
  return loss->value_or(0);
}

absl::StatusOr<std::optional<double>> InProcessRun::Forward(const Pass& pass, const MicroBatch& batch) {
  for (size_t stage = 0; stage < engines_.size(); ++stage) {
    for (const graph::v1::SubDag& sub_dag : programs_[stage].sub_dags()) {
      for (const graph::v1::Operator& op : sub_dag.operators()) {
        if (op.kind() == graph::v1::Operator::PLACEHOLDER) {
          if (absl::Status status = engines_[stage]->Feed(pass, op.name(), batch.feeds.at(op.name()));
              !status.ok()) {
            return status;
          }
        }
      }
    }
  }
  std::optional<double> loss;
  std::set<int32_t> arrived;
  std::vector<int> next(engines_.size(), 0);
  const auto ready = [&](size_t stage) {
    for (const graph::v1::Edge& edge : programs_[stage].incoming()) {
      if (edge.to_sub_dags(0) <= next[stage] && !arrived.contains(edge.id())) {
        return false;
      }
    }
    return next[stage] < programs_[stage].sub_dags_size();
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t stage = 0; stage < engines_.size(); ++stage) {
      while (ready(stage)) {
        absl::StatusOr<ForwardResult> result = engines_[stage]->Forward(pass, next[stage]++);
        if (!result.ok()) {
          return result.status();
        }
        if (result->loss.has_value()) {
          loss = result->loss;
        }
        for (const EdgeTensor& output : result->outputs) {
          for (const graph::v1::Edge& edge : programs_[stage].outgoing()) {
            if (edge.id() == output.edge) {
              absl::Status status =
                  engines_[static_cast<size_t>(edge.to_stage())]->Receive(pass, edge.id(), *output.tensor);
              if (!status.ok()) {
                return status;
              }
            }
          }
          arrived.insert(output.edge);
        }
        progress = true;
      }
    }
  }
  for (size_t stage = 0; stage < engines_.size(); ++stage) {
    if (next[stage] != programs_[stage].sub_dags_size()) {
      return absl::InternalError(absl::StrCat("stage ", stage, " waits in sub-DAG ", next[stage]));
    }
  }
  return loss;
}

absl::Status InProcessRun::Backward(const Pass& pass) {
  std::map<int32_t, int> missing;  // gradients by edge
  for (const graph::v1::StageProgram& program : programs_) {
    for (const graph::v1::Edge& edge : program.outgoing()) {
      if (edge.differentiable()) {
        missing[edge.id()] = edge.cotangent_per_consumer() ? edge.consumers_size() : 1;
      }
    }
  }
  std::vector<int> next;
  next.reserve(programs_.size());
  for (const graph::v1::StageProgram& program : programs_) {
    next.push_back(program.sub_dags_size() - 1);
  }
  const auto ready = [&](size_t stage) {
    for (const graph::v1::Edge& edge : programs_[stage].outgoing()) {
      if (edge.from_sub_dag() == next[stage] && edge.differentiable() && missing[edge.id()] > 0) {
        return false;
      }
    }
    return next[stage] >= 0;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t stage = 0; stage < engines_.size(); ++stage) {
      while (ready(stage)) {
        absl::StatusOr<std::vector<EdgeTensor>> gradients = engines_[stage]->Backward(pass, next[stage]--);
        if (!gradients.ok()) {
          return gradients.status();
        }
        for (const EdgeTensor& gradient : *gradients) {
          for (const graph::v1::Edge& edge : programs_[stage].incoming()) {
            if (edge.id() == gradient.edge) {
              absl::Status status =
                  engines_[static_cast<size_t>(edge.from_stage())]->ReceiveGradient(pass, gradient);
              if (!status.ok()) {
                return status;
              }
            }
          }
          --missing[gradient.edge];
        }
        progress = true;
      }
    }
  }
  for (size_t stage = 0; stage < engines_.size(); ++stage) {
    if (next[stage] != -1) {
      return absl::InternalError(
          absl::StrCat("stage ", stage, " waits for gradients in sub-DAG ", next[stage]));
    }
  }
  return absl::OkStatus();
}

absl::Status InProcessRun::ShareVariables() {
  for (size_t user = 0; user < engines_.size(); ++user) {
    for (const graph::v1::SharedVariable& shared : programs_[user].borrowed()) {
      const absl::StatusOr<Tensor> value =
          engines_[static_cast<size_t>(shared.owner_stage())]->ReadVariable(shared.variable());
      if (!value.ok()) {
        return value.status();
      }
      if (absl::Status status = engines_[user]->WriteVariable(shared.variable(), *value); !status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> InProcessRun::Update(int64_t step, double learning_rate_factor) {
  double sum = 0;
  for (const std::unique_ptr<Engine>& engine : engines_) {
    const absl::StatusOr<UpdateResult> result = engine->Update(step, learning_rate_factor);
    if (!result.ok()) {
      return result.status();
    }
    sum += result->squared_gradient_norm;
  }
  return sum;
}

absl::StatusOr<std::map<std::string, Tensor>> InProcessRun::Variables() const {
  std::map<std::string, Tensor> result;
  for (const std::unique_ptr<Engine>& engine : engines_) {
    for (const VariableInfo& variable : engine->Variables()) {
      if (!variable.borrowed) {
        absl::StatusOr<Tensor> value = engine->ReadVariable(variable.name);
        if (!value.ok()) {
          return value.status();
        }
        result[variable.tensor_name] = *std::move(value);
      }
    }
  }
  return result;
}

absl::StatusOr<std::map<std::string, Tensor>> InProcessRun::Gradients() const {
  std::map<std::string, Tensor> result;
  for (const std::unique_ptr<Engine>& engine : engines_) {
    for (const VariableInfo& variable : engine->Variables()) {
      if (!variable.borrowed && variable.trainable) {
        absl::StatusOr<std::optional<Tensor>> gradient = engine->ReadGradient(variable.name);
        if (!gradient.ok()) {
          return gradient.status();
        }
        if (gradient->has_value()) {
          result[variable.tensor_name] = **std::move(gradient);
        }
      }
    }
  }
  return result;
}

}  // namespace fusion::worker
