#include <string>

#include "absl/strings/str_cat.h"
#include "graph/operator_row.h"

namespace fusion::graph {
namespace {

const char* ClassName(OperatorClass kind) {
  switch (kind) {
    case OperatorClass::kMatmul:
      return "matmul";
    case OperatorClass::kConvolution:
      return "convolution";
    case OperatorClass::kElementwise:
      return "elementwise";
    case OperatorClass::kReduction:
      return "reduction";
    case OperatorClass::kMemory:
      return "memory";
  }
  return "?";
}

}  // namespace

std::string RegistryMarkdown() {
  std::string text =
      "# Operators\n\n"
      "Made from the rows in `graph/rows_*.cc`; `graph_test` fails when this page is stale and says how to "
      "make it\n"
      "again. Signatures are ATen's; `fusion::` operators are our own. An engine runs these, and whatever "
      "else a graph\n"
      "names with recorded shapes and a declared cost. All values are contiguous.\n\n"
      "| operator | class | gradient | what it computes | signature |\n"
      "|---|---|---|---|---|\n";
  for (const RegisteredOperator& entry : Registry()) {
    absl::StrAppend(&text, "| `", entry.schema.type, entry.schema.overload.empty() ? "" : ".",
                    entry.schema.overload, "` | ", ClassName(entry.row->kind), " | ",
                    entry.row->differentiable ? "yes" : "no", " | ", entry.row->summary, " | `",
                    entry.row->schema, "` |\n");
  }
  return text;
}

}  // namespace fusion::graph
