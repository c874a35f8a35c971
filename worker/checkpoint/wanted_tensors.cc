#include "worker/checkpoint/wanted_tensors.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "worker/checkpoint/convert.h"

namespace fusion::worker {
namespace {

using Tensors = std::map<std::string, TensorView>;

constexpr const char* kOurPrefixes[] = {"transformer.", "bert."};
constexpr const char* kTheirPrefixes[] = {"",        "transformer.",        "bert.",       "model.",
                                          "module.", "module.transformer.", "module.bert."};
constexpr std::pair<const char*, const char*> kOtherSuffixes[] = {
    {"LayerNorm.weight", "LayerNorm.gamma"},
    {"LayerNorm.bias", "LayerNorm.beta"},
    {"cls.predictions.bias", "cls.predictions.decoder.bias"},
    {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
constexpr char kOptionalBuffer[] = "num_batches_tracked";

// All spellings of a name, the likeliest first.
std::vector<std::string> Spellings(const std::string& name) {
  absl::string_view base = name;
  for (const char* prefix : kOurPrefixes) {
    if (absl::ConsumePrefix(&base, prefix)) break;
  }
  std::vector<std::string> bases = {std::string(base)};
  for (const auto& [ours, theirs] : kOtherSuffixes) {
    absl::string_view stem = base;
    if (absl::ConsumeSuffix(&stem, ours)) bases.push_back(absl::StrCat(stem, theirs));
  }
  std::vector<std::string> spellings = {name};
  for (const std::string& spelled : bases) {
    for (const char* prefix : kTheirPrefixes) spellings.push_back(absl::StrCat(prefix, spelled));
  }
  return spellings;
}

std::string Describe(DataType dtype, const std::vector<int64_t>& shape) {
  return absl::StrCat(graph::v1::DataType_Name(dtype), ShapeText(shape));
}

bool Fits(const WantedTensor& wanted, const TensorView& view, Matching matching) {
  return view.shape == wanted.shape &&
         (matching == Matching::kExact ? view.dtype == wanted.dtype : CanConvert(view.dtype, wanted.dtype));
}

// Variable -> tensor, no tensor twice.
std::map<std::string, std::string> Assign(const Tensors& tensors, const std::vector<WantedTensor>& model,
                                          Matching matching) {
  std::map<std::string, std::string> assigned;
  std::set<std::string> taken;
  for (const WantedTensor& wanted : model) {
    if (tensors.count(wanted.name) > 0) {
      assigned[wanted.name] = wanted.name;
      taken.insert(wanted.name);
    }
  }
  for (const WantedTensor& wanted : model) {
    if (matching == Matching::kExact || assigned.count(wanted.name) > 0) continue;
    for (const std::string& spelling : Spellings(wanted.name)) {
      if (tensors.count(spelling) > 0 && taken.insert(spelling).second) {
        assigned[wanted.name] = spelling;
        break;
      }
    }
  }
  return assigned;
}

}  // namespace

std::string ListText(const std::vector<std::string>& items, size_t limit) {
  if (items.size() <= limit) return absl::StrJoin(items, ", ");
  return absl::StrCat(absl::StrJoin(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(limit), ", "),
                      " and ", items.size() - limit, " more");
}

std::vector<WantedTensor> WantedBy(const Engine& engine) {
  std::vector<WantedTensor> result;
  for (const VariableInfo& variable : engine.Variables()) {
    result.push_back({.name = variable.tensor_name,
                      .dtype = variable.spec.dtype(),
                      .shape = {variable.spec.shape().begin(), variable.spec.shape().end()},
                      .trainable = variable.trainable});
  }
  return result;
}

absl::StatusOr<TensorMatch> MatchTensors(const std::string& path, const Tensors& tensors,
                                         const std::vector<WantedTensor>& model, Matching matching) {
  TensorMatch match{.tensors = Assign(tensors, model, matching), .unused = {}, .unset = {}};
  std::vector<std::string> missing;
  std::vector<std::string> misshaped;
  std::set<std::string> used;
  for (const WantedTensor& wanted : model) {
    const auto found = match.tensors.find(wanted.name);
    if (found == match.tensors.end()) {
      const bool optional = matching == Matching::kPublished && !wanted.trainable &&
                            absl::EndsWith(wanted.name, kOptionalBuffer);
      (optional ? match.unset : missing).push_back(wanted.name);
      continue;
    }
    used.insert(found->second);
    const TensorView& view = tensors.at(found->second);
    if (!Fits(wanted, view, matching)) {
      misshaped.push_back(absl::StrCat(found->second, " is ", Describe(view.dtype, view.shape),
                                       ", the model needs ", Describe(wanted.dtype, wanted.shape)));
    }
  }
  for (const auto& [name, view] : tensors) {
    if (used.count(name) == 0) match.unused.push_back(name);
  }
  std::vector<std::string> wrong;
  if (!missing.empty()) wrong.push_back(absl::StrCat("missing: ", ListText(missing)));
  if (!misshaped.empty()) wrong.push_back(absl::StrCat("misshaped: ", ListText(misshaped)));
  const bool strange = matching == Matching::kExact || !wrong.empty();
  if (strange && !match.unused.empty()) {
    wrong.push_back(absl::StrCat("of no variable: ", ListText(match.unused)));
  }
  if (!wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " does not fit the model's ", model.size(),
                                                   " variables; ", absl::StrJoin(wrong, "; ")));
  }
  return match;
}

}  // namespace fusion::worker
