#include "worker/profile_command.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/mapped_file.h"

namespace fusion::worker {
namespace {

using nlohmann::json;

// By graph::OperatorClass.
constexpr std::array<const char*, 5> kClasses = {"matmul", "convolution", "elementwise", "reduction",
                                                 "memory"};

absl::StatusOr<graph::v1::Graph> ReadGraph(const std::string& path) {
  graph::v1::Graph graph;
  if (path.empty()) {
    return graph;
  }
  const auto file = MappedFile::Open(path);
  if (!file.ok()) {
    return file.status();
  }
  if (!graph.ParseFromArray(file->bytes().data(), static_cast<int>(file->bytes().size()))) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a graph in protobuf's binary form"));
  }
  return graph;
}

}  // namespace

std::string ProfileJson(const MachineMeasurement& measurement) {
  json lambda = json::object();
  for (size_t i = 0; i < kClasses.size() && i < measurement.lambda.size(); ++i) {
    lambda[kClasses[i]] = measurement.lambda[i];
  }
  json operators = json::object();
  for (const OperatorMeasurement& op : measurement.operators) {
    operators[op.signature] = {{"forward", op.forward}, {"backward", op.backward}};
  }
  return json{{"flops", measurement.flops},
              {"lambda", lambda},
              {"memoryBytesPerSecond", measurement.memory_bytes_per_second},
              {"operatorSeconds", measurement.operator_seconds},
              {"updateSecondsPerParameter", measurement.update_seconds_per_parameter},
              {"operators", operators}}
      .dump(2);
}

absl::StatusOr<std::string> RunProfile(const ProfileOptions& options) {
  const auto graph = ReadGraph(options.graph);
  if (!graph.ok()) {
    return graph.status();
  }
  const auto engine = LoadEngine(options.engine);
  if (!engine.ok()) {
    return engine.status();
  }
  const auto measurement = (*engine)->Measure(*graph, options.samples);
  if (!measurement.ok()) {
    return measurement.status();
  }
  return ProfileJson(*measurement);
}

}  // namespace fusion::worker
