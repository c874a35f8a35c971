#include "operator/object.h"

#include "nlohmann/json.hpp"

namespace fusion::op {

const nlohmann::json* Find(const nlohmann::json& object, std::initializer_list<const char*> path) {
  const nlohmann::json* value = &object;
  for (const char* name : path) {
    if (!value->is_object()) return nullptr;
    const auto member = value->find(name);
    if (member == value->end()) return nullptr;
    value = &*member;
  }
  return value;
}

std::string StringAt(const nlohmann::json& object, std::initializer_list<const char*> path) {
  const nlohmann::json* value = Find(object, path);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

int64_t IntAt(const nlohmann::json& object, std::initializer_list<const char*> path) {
  const nlohmann::json* value = Find(object, path);
  return value != nullptr && value->is_number_integer() ? value->get<int64_t>() : 0;
}

ObjectKey KeyOf(const nlohmann::json& object) {
  return {StringAt(object, {"metadata", "namespace"}), StringAt(object, {"metadata", "name"})};
}

std::string UidOf(const nlohmann::json& object) { return StringAt(object, {"metadata", "uid"}); }

std::string ResourceVersionOf(const nlohmann::json& object) {
  return StringAt(object, {"metadata", "resourceVersion"});
}

bool IsDeleting(const nlohmann::json& object) {
  return Find(object, {"metadata", "deletionTimestamp"}) != nullptr;
}

std::string ApiVersionOf(const Resource& resource) {
  return resource.group.empty() ? resource.version : resource.group + "/" + resource.version;
}

}  // namespace fusion::op
