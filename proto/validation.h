// Rules that bind several fields of an object, or several objects, and that no schema can say. What a single
// field may hold is checked by proto/json_mapper.h. All functions are pure; paths of errors begin at the
// object's root. Absent fields that a schema requires are passed over here.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "fusion/v1alpha1/api.pb.h"
#include "proto/field_error.h"

namespace fusion::api {

/// One family or graph; config has the fields of its family, the necessary ones among them, and they fit each
/// other; the loss is one that the family has.
FieldErrors CheckModel(const v1alpha1::Model& model);

/// The data has a uri, only fields of its kind, and is of a kind that the model family reads.
FieldErrors CheckData(const v1alpha1::FusionJobSpec& spec);

/// Train has steps, batch and optimizer; Evaluate has a batch and model.initFrom; batch.micro divides
/// batch.global.
FieldErrors CheckTask(const v1alpha1::FusionJobSpec& spec);

/// The optimizer and each parameter group have only fields of the optimizer's type; groups do not change the
/// type.
FieldErrors CheckOptimizer(const v1alpha1::Training& training);

/// The schedule has only fields of its type, and its warm-up is no longer than the job.
FieldErrors CheckLearningRateSchedule(const v1alpha1::Training& training);

/// Clusters are listed once; no operator name is pinned to two compnodes, as far as the names alone say.
FieldErrors CheckPlacement(const v1alpha1::Placement& placement);

/// ratio where the type needs one and nowhere else; values that the type can send; the same of the schedule's
/// entries, whose steps rise.
FieldErrors CheckCompression(const v1alpha1::Compression& compression);

/// All rules above.
FieldErrors ValidateJob(const v1alpha1::FusionJob& job);

/// Emulation names a speed; the engine is known and runs on the devices; no link leads to the compnode
/// itself.
FieldErrors ValidateCompnode(const v1alpha1::Compnode& compnode);

/// An error in one object of a set.
struct SetError {
  enum class Kind { kJob, kCompnode };
  Kind kind;
  size_t index;  ///< in the list of its kind
  FieldError error;
};

/// Objects that are used together, in file order.
struct ObjectSet {
  std::vector<const v1alpha1::FusionJob*> jobs;
  std::vector<const v1alpha1::Compnode*> compnodes;
};

/// No two jobs, and no two compnodes, have one name.
std::vector<SetError> CheckNames(const ObjectSet& set);

/// Clusters and pins of jobs name compnodes that exist and may be used together. Nothing is checked in a set
/// without compnodes: they may be declared elsewhere.
std::vector<SetError> CheckReferences(const ObjectSet& set);

/// Compnodes of one cluster declare the same link to another cluster (it is one resource that they share),
/// links name peers that exist, and a link is declared between any two clusters that a job may use together.
std::vector<SetError> CheckLinks(const ObjectSet& set);

/// All rules of sets.
std::vector<SetError> ValidateSet(const ObjectSet& set);

/// Whether `name` fits a glob of pins and parameter groups: alternatives with |, * for any characters, ? for
/// one.
bool MatchesGlob(absl::string_view glob, absl::string_view name);

}  // namespace fusion::api
