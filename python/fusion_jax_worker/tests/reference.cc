// Writes what the second engine is compared with: engine_reference FOLDER
//
//   operators/N.pb            StageProgram of example N of the registry (graph/operator_examples.h), as one
//   sub-DAG operators/N.safetensors   feed/M/PLACEHOLDER of two micro-batches; what LibTorch makes of them:
//   loss, and
//                             variable/NAME and gradient/NAME by tensor name
//   operators/types           the operator under test in each, one a line
//   codecs/NAME.safetensors   value, message, decoded; gradient, gradient_message, gradient_decoded

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codec/codec.h"
#include "graph/operator_examples.h"
#include "graph/registry.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/engine/engine_test_support.h"

namespace fusion::worker {
namespace {

constexpr int64_t kSamples = 2;
constexpr int kMicroBatches = 2;
constexpr int64_t kSeed = 7;

using Tensors = std::map<std::string, Tensor>;

absl::Status Write(const std::string& path, const Tensors& tensors) {
  std::map<std::string, TensorView> views;
  for (const auto& [name, tensor] : tensors) views[name] = ViewOf(tensor);
  return WriteSafetensors(path, views);
}

/// Numbers that differ from place to place; valid ids and classes for integers.
Tensor DataFor(const graph::v1::TensorSpec& spec, int micro_batch) {
  Tensor tensor = AllocateTensor(spec.dtype(), graph::ShapeOf(spec, kSamples));
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    if (spec.dtype() == graph::v1::INT64) {
      reinterpret_cast<int64_t*>(tensor.data.get())[i] = (i + micro_batch) % 5;
    } else {
      tensor.mutable_floats()[i] = std::sin(static_cast<float>(i + 100 * micro_batch) + 0.5F);
    }
  }
  return tensor;
}

absl::Status WriteOperator(const graph::OperatorExample& example, const std::string& stem) {
  const graph::v1::StageProgram program = WholeProgram(example.graph);
  std::ofstream(stem + ".pb", std::ios::binary) << program.SerializeAsString();
  auto run = InProcessRun::Create({program}, WithSeed(kSeed));
  if (!run.ok()) return run.status();
  Tensors tensors;
  std::vector<MicroBatch> batches(kMicroBatches);
  for (int m = 0; m < kMicroBatches; ++m) {
    batches[m].samples = kSamples;
    batches[m].weight = 1.0 / kMicroBatches;
    for (const graph::v1::Operator& op : example.graph.operators()) {
      if (op.kind() != graph::v1::Operator::PLACEHOLDER) continue;
      batches[m].feeds[op.name()] = DataFor(op.outputs(0), m);
      tensors[absl::StrCat("feed/", m, "/", op.name())] = batches[m].feeds[op.name()];
    }
  }
  const auto variables = (*run)->Variables();
  if (!variables.ok()) return variables.status();
  for (const auto& [name, tensor] : *variables) {
    tensors["variable/" + name] = CopyTensor(ViewOf(tensor));  // as it is before anything ran
  }
  const auto loss = (*run)->ForwardBackward(1, batches);
  if (!loss.ok()) return loss.status();
  tensors["loss"] = DoubleTensor({}, {*loss});
  const auto gradients = (*run)->Gradients();
  if (!gradients.ok()) return gradients.status();
  for (const auto& [name, tensor] : *gradients) tensors["gradient/" + name] = tensor;
  return Write(stem + ".safetensors", tensors);
}

absl::Status WriteOperators(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream types(folder + "/types");
  int number = 0;
  for (const graph::OperatorExample& example : graph::OperatorExamples()) {
    const absl::Status status = WriteOperator(example, absl::StrCat(folder, "/", number++));
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat(example.type, ": ", status.message()));
    types << example.type << "\n";
  }
  return absl::OkStatus();
}

/// Magnitudes over the whole range, equal ones, zeros and non-finite ones among them.
std::vector<float> Numbers(int64_t count, float phase) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) {
    const float wave = std::sin(static_cast<float>(i) * 1.7F + phase);
    numbers.push_back(wave * std::exp2(std::round(20 * std::sin(static_cast<float>(i / 40)))));
    if (i % 11 == 0) numbers.back() = 0;
    if (i % 13 == 0) numbers.back() = i % 2 == 0 ? 0.5F : -0.5F;
    if (i % 97 == 1) numbers.back() = std::ldexp(wave, -140);
    if (i % 151 == 3) numbers.back() = wave * INFINITY;
  }
  return numbers;
}

absl::Status WriteCodec(const std::string& name, const std::vector<int64_t>& shape, const std::string& path) {
  const auto codec = codec::ParseCodec(name);
  if (!codec.ok()) return codec.status();
  const codec::Layout layout = codec::LayoutOf(shape);
  const auto bytes_of = [](const Tensor& tensor) {
    return absl::Span<std::byte>(tensor.data.get(), static_cast<size_t>(tensor.bytes()));
  };
  Tensors tensors;
  tensors["value"] = FloatTensor(shape, Numbers(layout.elements(), 0));
  tensors["message"] = AllocateTensor(graph::v1::UINT8, {codec::ValueBytes(*codec, layout)});
  tensors["decoded"] = AllocateTensor(graph::v1::FLOAT32, shape);
  tensors["gradient"] = FloatTensor(shape, Numbers(layout.elements(), 1));
  tensors["gradient_message"] = AllocateTensor(graph::v1::UINT8, {codec::GradientBytes(*codec, layout)});
  tensors["gradient_decoded"] = AllocateTensor(graph::v1::FLOAT32, shape);
  codec::Mask mask;
  absl::Status status =
      codec::EncodeValue(*codec, layout, tensors["value"].floats(), bytes_of(tensors["message"]), &mask);
  status.Update(codec::DecodeValue(*codec, layout, bytes_of(tensors["message"]),
                                   tensors["decoded"].mutable_floats(), nullptr));
  status.Update(codec::EncodeGradient(*codec, layout, tensors["gradient"].floats(), mask,
                                      bytes_of(tensors["gradient_message"])));
  status.Update(codec::DecodeGradient(*codec, layout, bytes_of(tensors["gradient_message"]), mask,
                                      tensors["gradient_decoded"].mutable_floats()));
  return status.ok() ? Write(path, tensors) : status;
}

absl::Status WriteCodecs(const std::string& folder) {
  std::filesystem::create_directories(folder);
  absl::Status status;
  for (const char* name : {"fp32", "fp16", "bf16", "int8", "int4", "topk-0.1-int4", "topk-0.03-int8",
                           "topk-0.25-fp16-independent", "topk-0.5-fp32", "topk-1-int8"}) {
    // A row of whole blocks, one with a rest, one short of a block, and a vector.
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{3, 5, 64}, {7, 71}, {9, 6}, {40}}) {
      status.Update(
          WriteCodec(name, shape,
                     absl::StrCat(folder, "/", name, "-", shape.size(), "d-", shape.back(), ".safetensors")));
    }
  }
  return status;
}

}  // namespace
}  // namespace fusion::worker

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: engine_reference FOLDER\n";
    return 2;
  }
  const std::string folder = argv[1];
  absl::Status status = fusion::worker::WriteOperators(folder + "/operators");
  if (status.ok()) status = fusion::worker::WriteCodecs(folder + "/codecs");
  if (!status.ok()) {
    std::cerr << "engine_reference: " << status.ToString() << "\n";
    return 1;
  }
  return 0;
}
