// A graph of one's own for tests: operators outside the registry, a tensor list, and edges that skip stages.
#pragma once

#include <string>

namespace fusion::graph {

/// Five input columns, three targets. `first` and `input` are read again right before the end.
inline std::string SkipGraphJson() {
  const auto variable = [](const std::string& name, const std::string& shape) {
    return R"({"name": ")" + name + R"(", "kind": "VARIABLE", "outputs": [{"dtype": "FLOAT32", "shape": )" +
           shape + R"(}], "variable": {"tensorName": ")" + name +
           R"(", "trainable": true, "init": {"kind": "NORMAL", "standardDeviation": 0.4}}},)";
  };
  const auto compute = [](const std::string& name, const std::string& kind, const std::string& type,
                          const std::string& args, const std::string& shape) {
    const size_t dot = type.find('.', type.find('.') + 1);
    const std::string overload =
        dot == std::string::npos ? "" : R"("overload": ")" + type.substr(dot + 1) + R"(", )";
    return R"({"name": ")" + name + R"(", "kind": ")" + kind + R"(", "type": ")" + type.substr(0, dot) +
           R"(", )" + overload + R"("args": [)" + args + R"(], "outputs": [{"dtype": "FLOAT32", "shape": )" +
           shape + "}]},\n";
  };
  const auto read = [](const std::string& name) { return R"({"value": ")" + name + R"("})"; };
  const std::string p = "PARAMETRIC";
  const std::string n = "NON_PARAMETRIC";
  const std::string rows = "[-1, 8]";
  return R"({"name": "skip", "loss": {"value": "loss"}, "operators": [)"
         R"({"name": "input", "kind": "PLACEHOLDER", "outputs": [{"dtype": "FLOAT32", "shape": [-1, 5]}]},)" +
         variable("in.weight", "[8, 5]") + variable("in.bias", "[8]") + variable("mid.weight", "[8, 8]") +
         variable("out.weight", "[3, 13]") +
         compute("in", p, "aten.linear", read("input") + "," + read("in.weight") + "," + read("in.bias"),
                 rows) +
         compute("first", n, "aten.silu", read("in"), rows) +
         compute("scan", n, "aten.cumsum", read("first") + R"(, {"int": 1})", rows) +
         compute("mid", p, "aten.linear", read("scan") + "," + read("mid.weight"), rows) +
         compute("gate", n, "aten.sigmoid", read("mid"), rows) +
         compute("gated", n, "aten.mul.Tensor", read("gate") + "," + read("scan"), rows) +
         compute("second", n, "aten.silu", read("gated"), rows) +
         compute("sum", n, "aten.add.Tensor", read("second") + "," + read("first"), rows) +
         compute("joined", n, "aten.cat", R"({"values": [{"value": "sum"}, {"value": "input"}]}, {"int": 1})",
                 "[-1, 13]") +
         compute("out", p, "aten.linear", read("joined") + "," + read("out.weight"), "[-1, 3]") +
         R"({"name": "label", "kind": "PLACEHOLDER", "outputs": [{"dtype": "FLOAT32", "shape": [-1, 3]}]},)" +
         R"({"name": "loss", "kind": "NON_PARAMETRIC", "type": "aten.mse_loss", "args": [{"value": "out"}, )"
         R"({"value": "label"}], "outputs": [{"dtype": "FLOAT32", "shape": []}]}]})";
}

}  // namespace fusion::graph
