// A runnable example for each row of the registry, so that tests, of this folder and of engines, meet every
// operator.
#pragma once

#include <string>
#include <vector>

#include "fusion/graph/v1/graph.pb.h"

namespace fusion::graph {

struct OperatorExample {
  std::string type;  ///< of the operator under test, with overload: aten.add.Tensor
  /// A valid graph in which it is named "example" (where it is not the loss). `input` is float32 [batch, 4,
  /// 6]; the variable x, added to it, gives the operator something trainable to read.
  v1::Graph graph;
};

/// At least one for each registered operator.
std::vector<OperatorExample> OperatorExamples();

}  // namespace fusion::graph
