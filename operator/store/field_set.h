// Which fields of an object somebody owns: Kubernetes' FieldsV1.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "operator/store/merge_schema.h"

namespace fusion::op {

/// Elements are written as in FieldsV1: f:NAME a member, k:{"type":"Ready"} an item of a keyed list, v:VALUE
/// one of a set.
using FieldPath = std::vector<std::string>;

/// Owned places: scalars, atomic lists, empty objects, and items of keyed lists beside the fields inside
/// them.
using FieldSet = std::set<FieldPath>;

/// .status.conditions[type="Ready"].reason
std::string PathString(const FieldPath& path);

/// The places that `value`, whose type is `schema`, sets.
FieldSet LeavesOf(const MergeSchema& schema, const nlohmann::json& value);

/// FieldsV1: nested objects; "." marks an owned place that has places inside.
nlohmann::json FieldsV1(const FieldSet& set);
FieldSet ParseFieldsV1(const nlohmann::json& fields);

/// The value at `path`, or null.
const nlohmann::json* ValueAt(const MergeSchema& schema, const nlohmann::json& root, const FieldPath& path);

/// Removes what is at `path`, then the objects that this leaves empty, but no member of the root itself.
void EraseAt(const MergeSchema& schema, nlohmann::json& root, const FieldPath& path);

/// Sets what `patch` sets and keeps the rest: objects and keyed lists merge, other values are replaced.
void MergeInto(const MergeSchema& schema, nlohmann::json& target, const nlohmann::json& patch);

}  // namespace fusion::op
