// From a checked job to what the planner needs, and errors to exit statuses; shared by the commands that
// plan.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console.h"
#include "fusion/graph/v1/graph.pb.h"
#include "fusion/graph/v1/plan.pb.h"
#include "proto/manifest.h"

namespace fusion::cli {

/// The model as the job's file names it: a relative path of a graph is seen from the file's folder.
absl::StatusOr<graph::v1::Graph> BuildModelOf(const api::Declared<v1alpha1::FusionJob>& job);

/// The graph that is planned: the model's in the job's precision. An error begins with the job's file.
absl::StatusOr<graph::v1::Graph> JobGraph(const api::Declared<v1alpha1::FusionJob>& job);

/// A plan.json, strictly read.
absl::StatusOr<graph::v1::Plan> ReadPlan(const std::string& path);

/// The objects alone, in file order.
std::vector<v1alpha1::Compnode> Compnodes(const api::Manifest& manifest);

/// The compnodes with emulated speeds that a machine of this profile can imitate together; where they were
/// scaled for that, a note says so.
std::vector<v1alpha1::Compnode> FittingCompnodes(const api::Manifest& manifest, double machine_flops,
                                                 Console& console);

/// Prints the error; the exit status that fits its code: 130 CANCELLED, 2 INVALID_ARGUMENT and NOT_FOUND,
/// else 1.
int Fail(const absl::Status& status, Console& console);

}  // namespace fusion::cli
