#include "operator/store/apply.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "operator/object.h"
#include "operator/store/field_set.h"
#include "operator/store/merge_schema.h"

namespace fusion::op {
namespace {

using nlohmann::json;

// Set by the server, so owned by nobody.
constexpr const char* kServerMetadata[] = {"name",         "namespace",         "uid",
                                           "generation",   "resourceVersion",   "creationTimestamp",
                                           "selfLink",     "deletionTimestamp", "deletionGracePeriodSeconds",
                                           "managedFields"};

struct ManagerEntry {
  std::string manager;
  std::string operation;  // Apply | Update
  std::string subresource;
  std::string time;
  FieldSet fields;

  bool SameOwner(const ManagerEntry& other) const {
    return manager == other.manager && operation == other.operation && subresource == other.subresource;
  }
};

std::vector<ManagerEntry> ReadEntries(const json& object) {
  std::vector<ManagerEntry> entries;
  const json* list = Find(object, {"metadata", "managedFields"});
  if (list == nullptr || !list->is_array()) return entries;
  for (const json& item : *list) {
    const json* fields = Find(item, {"fieldsV1"});
    entries.push_back({StringAt(item, {"manager"}), StringAt(item, {"operation"}),
                       StringAt(item, {"subresource"}), StringAt(item, {"time"}),
                       fields == nullptr ? FieldSet() : ParseFieldsV1(*fields)});
  }
  return entries;
}

void WriteEntries(const Resource& resource, const std::vector<ManagerEntry>& entries, json& object) {
  json list = json::array();
  for (const ManagerEntry& entry : entries) {
    if (entry.fields.empty()) continue;
    json item = {{"manager", entry.manager}, {"operation", entry.operation},
                 {"time", entry.time},       {"apiVersion", ApiVersionOf(resource)},
                 {"fieldsType", "FieldsV1"}, {"fieldsV1", FieldsV1(entry.fields)}};
    if (!entry.subresource.empty()) item["subresource"] = entry.subresource;
    list.push_back(std::move(item));
  }
  if (list.empty()) {
    object["metadata"].erase("managedFields");
  } else {
    object["metadata"]["managedFields"] = std::move(list);
  }
}

// The part of an object that a write to the main resource or to the status sets.
json WritablePart(const json& object, bool status) {
  json part = json::object();
  for (const auto& [name, value] : object.items()) {
    if (name == "apiVersion" || name == "kind") continue;
    if ((name == "status") != status) continue;
    part[name] = value;
  }
  const auto metadata = part.find("metadata");
  if (metadata != part.end() && metadata->is_object()) {
    for (const char* name : kServerMetadata) metadata->erase(name);
    if (metadata->empty()) part.erase(metadata);
  }
  return part;
}

// Items of a keyed list are objects with keys of their own.
absl::Status CheckKeyedLists(const MergeSchema& schema, const json& value, FieldPath& path) {
  if (value.is_array() && schema.list_type() == ListType::kMap) {
    std::set<std::string> elements;
    for (const json& item : value) {
      if (!item.is_object()) {
        return absl::InvalidArgumentError(absl::StrCat(PathString(path), ": items must be objects"));
      }
      const std::string element = schema.ItemElement(item);
      if (!elements.insert(element).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(PathString(path), ": two items have the key ", element.substr(2)));
      }
    }
  }
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      path.push_back("f:" + name);
      if (absl::Status status = CheckKeyedLists(schema.Member(name), member, path); !status.ok())
        return status;
      path.pop_back();
    }
  }
  return absl::OkStatus();
}

bool OwnsAtOrBelow(const FieldSet& set, const FieldPath& path) {
  const auto found = set.lower_bound(path);
  return found != set.end() && found->size() >= path.size() &&
         std::equal(path.begin(), path.end(), found->begin());
}

bool EqualAt(const MergeSchema& schema, const json& a, const json& b, const FieldPath& path) {
  const json* in_a = ValueAt(schema, a, path);
  const json* in_b = ValueAt(schema, b, path);
  if (in_a == nullptr || in_b == nullptr) return in_a == in_b;
  // An item of a keyed list is owned beside its fields: only its presence counts here.
  const bool item = !path.empty() && path.back().compare(0, 2, "k:") == 0;
  return item || *in_a == *in_b;
}

FieldSet Minus(const FieldSet& a, const FieldSet& b) {
  FieldSet difference;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::inserter(difference, difference.end()));
  return difference;
}

}  // namespace

absl::StatusOr<json> ApplyPatch(const Resource& resource, const json& live, const json& patch,
                                const ApplyOptions& options) {
  const MergeSchema schema = MergeSchema::Of(resource);
  const json part = WritablePart(patch, options.status);
  FieldPath root;
  if (absl::Status status = CheckKeyedLists(schema, part, root); !status.ok()) return status;

  ManagerEntry mine{options.manager, "Apply", options.status ? "status" : "", KubernetesTime(options.now),
                    LeavesOf(schema, part)};
  std::vector<ManagerEntry> entries = ReadEntries(live);
  const auto owner =
      std::find_if(entries.begin(), entries.end(), [&](const ManagerEntry& e) { return e.SameOwner(mine); });
  const FieldSet before = owner == entries.end() ? FieldSet() : owner->fields;

  json merged = live;
  MergeInto(schema, merged, part);

  std::vector<std::string> conflicts;
  for (ManagerEntry& entry : entries) {
    if (entry.SameOwner(mine)) continue;
    for (const FieldPath& path : mine.fields) {
      if (entry.fields.count(path) == 0 || EqualAt(schema, live, merged, path)) continue;
      if (options.force) {
        entry.fields.erase(path);
      } else {
        conflicts.push_back(absl::StrCat(PathString(path), " is owned by ", entry.manager));
      }
    }
  }
  if (!conflicts.empty()) {
    return absl::AbortedError(absl::StrCat(resource.kind, " ", KeyOf(live).ToString(), ": apply by ",
                                           options.manager, " conflicts: ", absl::StrJoin(conflicts, "; ")));
  }

  for (const FieldPath& path : Minus(before, mine.fields)) {
    const bool kept = std::any_of(entries.begin(), entries.end(), [&](const ManagerEntry& e) {
      return !e.SameOwner(mine) && OwnsAtOrBelow(e.fields, path);
    });
    if (!kept) EraseAt(schema, merged, path);
  }

  if (owner == entries.end()) {
    entries.push_back(std::move(mine));
  } else if (before != mine.fields || merged != live) {
    *owner = std::move(mine);
  }
  WriteEntries(resource, entries, merged);
  return merged;
}

json TrackWrite(const Resource& resource, const json& live, json next, const std::string& manager,
                absl::Time now) {
  const MergeSchema schema = MergeSchema::Of(resource);
  const FieldSet old_leaves = LeavesOf(schema, WritablePart(live, false));
  const FieldSet new_leaves = LeavesOf(schema, WritablePart(next, false));
  FieldSet changed;
  for (const FieldPath& path : new_leaves) {
    if (old_leaves.count(path) == 0 || !EqualAt(schema, live, next, path)) changed.insert(path);
  }
  const FieldSet gone = Minus(old_leaves, new_leaves);

  std::vector<ManagerEntry> entries = ReadEntries(live);
  ManagerEntry mine{manager, "Update", "", KubernetesTime(now), {}};
  for (ManagerEntry& entry : entries) {
    if (!entry.subresource.empty()) continue;
    for (const FieldPath& path : gone) entry.fields.erase(path);
    if (!entry.SameOwner(mine)) entry.fields = Minus(entry.fields, changed);
  }
  const auto owner =
      std::find_if(entries.begin(), entries.end(), [&](const ManagerEntry& e) { return e.SameOwner(mine); });
  if (owner == entries.end()) {
    mine.fields = changed;
    entries.push_back(std::move(mine));
  } else if (!changed.empty()) {
    owner->fields.insert(changed.begin(), changed.end());
    owner->time = KubernetesTime(now);
  }
  WriteEntries(resource, entries, next);
  return next;
}

std::string KubernetesTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

}  // namespace fusion::op
