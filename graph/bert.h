// BERT as transformers' BertForMaskedLM and BertModel define it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/v1alpha1/api.pb.h"

namespace fusion::graph {

/// One tower, CrossEntropy: masked language modelling. BertForMaskedLM's parameters
/// (bert.embeddings.word_embeddings.weight, … cls.predictions.bias), the decoder tied to the word embeddings.
/// `input` is int64 [batch, context]; `label` has the ids to predict and -100 elsewhere, and the loss is the
/// mean cross-entropy over the others. No padding.
///
/// Two towers, InfoNCE: BertModel's parameters without the pooler, shared by both towers. `input` and `label`
/// are int64 [batch, context], the two texts of each pair, padded with id 0 at the end. A text's embedding is
/// the mean of its tokens' last hidden states, scaled to length 1, as in sentence-transformers' MiniLM; the
/// loss is the cross-entropy of the cosines of each `input` with all `label`s of the micro-batch, divided by
/// the temperature, its own being the right one. Operators of the first tower are named anchor.*, of the
/// second positive.*.
///
/// Between the embeddings and the head, values are [batch x context, width]: one row a token.
absl::StatusOr<v1::Graph> BuildBert(const v1alpha1::Model& model);

absl::StatusOr<std::string> BertConfigJson(const v1alpha1::Model& model);

}  // namespace fusion::graph
