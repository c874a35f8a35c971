#include "operator/store/field_set.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace fusion::op {
namespace {

using nlohmann::json;

void AddLeaves(const MergeSchema& schema, const json& value, FieldPath& path, FieldSet& leaves) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [name, member] : value.items()) {
      path.push_back("f:" + name);
      AddLeaves(schema.Member(name), member, path, leaves);
      path.pop_back();
    }
  } else if (value.is_array() && schema.list_type() == ListType::kMap) {
    for (const json& item : value) {
      path.push_back(schema.ItemElement(item));
      leaves.insert(path);
      if (item.is_object() && !item.empty()) {
        AddLeaves(schema, item, path, leaves);
      }
      path.pop_back();
    }
  } else if (value.is_array() && schema.list_type() == ListType::kSet) {
    for (const json& item : value) {
      path.push_back("v:" + item.dump());
      leaves.insert(path);
      path.pop_back();
    }
  } else {
    leaves.insert(path);
  }
}

// Where `element` points inside `value`, or end.
json::iterator ItemOf(const MergeSchema& schema, json& list, const std::string& element) {
  return std::find_if(list.begin(), list.end(), [&](const json& item) {
    return element == (schema.list_type() == ListType::kMap ? schema.ItemElement(item) : "v:" + item.dump());
  });
}

bool IsMemberElement(const std::string& element) { return absl::StartsWith(element, "f:"); }

// True when `value` is empty after the erasure, so that its holder may go too.
bool EraseFrom(const MergeSchema& schema, json& value, const FieldPath& path, size_t depth) {
  const std::string& element = path[depth];
  const bool last = depth + 1 == path.size();
  if (IsMemberElement(element)) {
    if (!value.is_object()) return false;
    const std::string name = element.substr(2);
    const auto member = value.find(name);
    if (member == value.end()) return false;
    if (last || EraseFrom(schema.Member(name), *member, path, depth + 1)) value.erase(member);
  } else {
    if (!value.is_array()) return false;
    const auto item = ItemOf(schema, value, element);
    if (item == value.end()) return false;
    if (last || EraseFrom(schema, *item, path, depth + 1)) value.erase(item);
  }
  return value.empty() && depth > 1;
}

void ParseInto(const json& fields, FieldPath& path, FieldSet& set) {
  if (!fields.is_object()) return;
  if ((fields.empty() || fields.contains(".")) && !path.empty()) set.insert(path);
  for (const auto& [element, child] : fields.items()) {
    if (element == ".") continue;
    path.push_back(element);
    ParseInto(child, path, set);
    path.pop_back();
  }
}

}  // namespace

std::string PathString(const FieldPath& path) {
  std::string text;
  for (const std::string& element : path) {
    if (IsMemberElement(element)) {
      absl::StrAppend(&text, ".", element.substr(2));
      continue;
    }
    const json value = json::parse(element.substr(2), nullptr, false);
    absl::StrAppend(&text, "[");
    if (value.is_object()) {
      const char* separator = "";
      for (const auto& [key, key_value] : value.items()) {
        absl::StrAppend(&text, separator, key, "=", key_value.dump());
        separator = ",";
      }
    } else {
      absl::StrAppend(&text, "=", element.substr(2));
    }
    absl::StrAppend(&text, "]");
  }
  return text;
}

FieldSet LeavesOf(const MergeSchema& schema, const json& value) {
  FieldSet leaves;
  FieldPath path;
  if (value.is_object() && !value.empty()) AddLeaves(schema, value, path, leaves);
  return leaves;
}

json FieldsV1(const FieldSet& set) {
  json fields = json::object();
  for (auto path = set.begin(); path != set.end(); ++path) {
    json* node = &fields;
    for (const std::string& element : *path) node = &(*node)[element];
    *node = json::object();
    // A path sorts right before those inside it.
    const auto next = std::next(path);
    const bool has_places_inside = next != set.end() && next->size() > path->size() &&
                                   std::equal(path->begin(), path->end(), next->begin());
    if (has_places_inside) (*node)["."] = json::object();
  }
  return fields;
}

FieldSet ParseFieldsV1(const json& fields) {
  FieldSet set;
  FieldPath path;
  ParseInto(fields, path, set);
  return set;
}

const json* ValueAt(const MergeSchema& root_schema, const json& root, const FieldPath& path) {
  MergeSchema schema = root_schema;
  const json* value = &root;
  for (const std::string& element : path) {
    if (IsMemberElement(element)) {
      if (!value->is_object()) return nullptr;
      const auto member = value->find(element.substr(2));
      if (member == value->end()) return nullptr;
      value = &*member;
      schema = schema.Member(element.substr(2));
    } else {
      if (!value->is_array()) return nullptr;
      const auto item = ItemOf(schema, const_cast<json&>(*value), element);
      if (item == value->end()) return nullptr;
      value = &*item;
    }
  }
  return value;
}

void EraseAt(const MergeSchema& schema, json& root, const FieldPath& path) {
  if (path.size() > 1) EraseFrom(schema, root, path, 0);
}

void MergeInto(const MergeSchema& schema, json& target, const json& patch) {
  if (patch.is_object() && target.is_object()) {
    for (const auto& [name, member] : patch.items()) {
      const auto found = target.find(name);
      if (found == target.end()) {
        target[name] = member;
      } else {
        MergeInto(schema.Member(name), *found, member);
      }
    }
  } else if (patch.is_array() && target.is_array() && schema.list_type() != ListType::kAtomic) {
    for (const json& item : patch) {
      const std::string element =
          schema.list_type() == ListType::kMap ? schema.ItemElement(item) : "v:" + item.dump();
      const auto found = ItemOf(schema, target, element);
      if (found == target.end()) {
        target.push_back(item);
      } else {
        MergeInto(schema, *found, item);
      }
    }
  } else {
    target = patch;
  }
}

}  // namespace fusion::op
