// Builds graphs operator by operator. Shapes come from the registry, so that a family states what it computes
// and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fusion/graph/v1/graph.pb.h"
#include "graph/shapes.h"

namespace fusion::graph {

/// A size of `count` x samples, where a shape or a size argument is expected.
constexpr int64_t Batch(int64_t count = 1) { return -count; }

v1::Argument Read(const v1::ValueRef& value);
v1::Argument Int(int64_t value);
/// A number as in Sizes: Batch(n) follows the micro-batch.
v1::Argument Size(int64_t size);
v1::Argument Double(double value);
v1::Argument Bool(bool value);
v1::Argument Text(absl::string_view value);
v1::Argument Type(v1::DataType value);
/// Sizes, of which those written Batch(n) follow the micro-batch.
v1::Argument Sizes(absl::Span<const int64_t> sizes);
v1::Argument None();
v1::Argument RandomKey();
v1::Argument Training();

v1::Init Zeros();
v1::Init Ones();
v1::Init Normal(double standard_deviation);
v1::Init Uniform(double low, double high);

class GraphBuilder {
 public:
  using KeywordArguments = std::vector<std::pair<std::string, v1::Argument>>;

  explicit GraphBuilder(absl::string_view name) { graph_.set_name(std::string(name)); }

  v1::ValueRef Placeholder(absl::string_view name, v1::DataType dtype, const Shape& shape);
  /// A float32 parameter; the operator has the tensor's name.
  v1::ValueRef Variable(absl::string_view name, const Shape& shape, const v1::Init& init);
  /// A variable that is not trained.
  v1::ValueRef Buffer(absl::string_view name, v1::DataType dtype, const Shape& shape, const v1::Init& init);
  /// `type` with its overload: "aten.add.Tensor". It must be registered and have one output.
  v1::ValueRef Add(absl::string_view name, absl::string_view type, std::vector<v1::Argument> args,
                   const KeywordArguments& kwargs = {});
  /// The same for an operator with any number of outputs.
  std::vector<v1::ValueRef> AddMany(absl::string_view name, absl::string_view type,
                                    std::vector<v1::Argument> args, const KeywordArguments& kwargs = {});

  /// Counts the training passes of the operator added last in a buffer, INT64 [].
  void CountPasses(const v1::ValueRef& counter);

  /// The graph, validated, or the first error of any call before.
  absl::StatusOr<v1::Graph> Finish(const v1::ValueRef& loss);

 private:
  absl::StatusOr<std::vector<v1::TensorSpec>> Outputs(const v1::Operator& op) const;

  v1::Graph graph_;
  absl::flat_hash_map<std::string, int> positions_;
  absl::Status status_;
};

}  // namespace fusion::graph
