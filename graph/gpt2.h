// GPT-2 as transformers' GPT2LMHeadModel defines it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::graph {

/// Parameters transformer.wte.weight, transformer.h.0.attn.c_attn.weight (Conv1D: [in, out]) and so on,
/// initialised as Hugging Face does; the head is tied to transformer.wte.weight. `input` and `label` are
/// int64 [batch, context], the label being the input shifted by one. The loss is the mean cross-entropy over
/// all tokens.
///
/// Between the embeddings and the loss, values are [batch x context, width]: one row a token.
absl::StatusOr<v1::Graph> BuildGpt2(const v1alpha1::Model& model);

absl::StatusOr<std::string> Gpt2ConfigJson(const v1alpha1::Model& model);

}  // namespace fusion::graph
