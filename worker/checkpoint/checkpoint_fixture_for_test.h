// What the tests of checkpoints share: small snapshots in a folder of their own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/safetensors.h"

namespace fusion::worker {

inline Tensor Constant(std::vector<int64_t> shape, float value) {
  Tensor tensor = AllocateTensor(graph::v1::FLOAT32, std::move(shape));
  std::fill(tensor.mutable_floats().begin(), tensor.mutable_floats().end(), value);
  return tensor;
}

inline StageSnapshot SnapshotOf(int64_t step, const std::string& name, float value) {
  return {.step = step,
          .variables = {{name, Constant({2, 2}, value)}},
          .optimizer = {{name + ".exp_avg", Constant({2, 2}, value / 2)}}};
}

inline std::vector<std::string> NamesIn(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A stage with these parameters of three numbers each.
inline graph::v1::StageProgram ProgramWith(const std::vector<std::string>& names) {
  graph::v1::StageProgram program;
  auto* sub_dag = program.add_sub_dags();
  for (const std::string& name : names) {
    auto* op = sub_dag->add_operators();
    op->set_name("variable " + name);
    op->set_kind(graph::v1::Operator::VARIABLE);
    op->mutable_variable()->set_tensor_name(name);
    auto* spec = op->add_outputs();
    spec->set_dtype(graph::v1::FLOAT32);
    spec->add_shape(3);
  }
  return program;
}

class CheckpointFixture : public ::testing::Test {
 protected:
  CheckpointFixture() : directory_(absl::StrCat(::testing::TempDir(), "/checkpoint-", getpid())) {
    std::filesystem::remove_all(directory_);
  }
  ~CheckpointFixture() override { std::filesystem::remove_all(directory_); }

  /// A checkpoint of two stages with a parameter each.
  absl::StatusOr<std::string> Save(int64_t step, float value, int64_t shard_bytes = kShardBytes) const {
    std::vector<std::string> parts;
    for (int stage = 0; stage < 2; ++stage) {
      const auto part = WritePart(directory_, stage, SnapshotOf(step, absl::StrCat("layer.", stage), value));
      if (!part.ok()) {
        return part.status();
      }
      parts.push_back(*part);
    }
    return AssembleCheckpoint(directory_, Info(step, shard_bytes), parts);
  }

  static CheckpointInfo Info(int64_t step, int64_t shard_bytes = kShardBytes) {
    return {.state = {.job = "job",
                      .step = step,
                      .incarnation = 2,
                      .seed = 7,
                      .samples = 64 * step,
                      .global_batch = 64,
                      .optimizer = "AdamW"},
            .config_files = {{"config.json", "{\"model_type\": \"gpt2\"}"}},
            .shard_bytes = shard_bytes};
  }

  const std::string directory_;
};

}  // namespace fusion::worker
