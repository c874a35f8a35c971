// Reading Kubernetes JSON objects without exceptions: a field that is missing or has another type reads as
// its zero value.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "operator/client.h"

namespace fusion::op {

/// The value at a path of member names, or null.
const nlohmann::json* Find(const nlohmann::json& object, std::initializer_list<const char*> path);

std::string StringAt(const nlohmann::json& object, std::initializer_list<const char*> path);
int64_t IntAt(const nlohmann::json& object, std::initializer_list<const char*> path);

/// metadata.namespace and metadata.name.
ObjectKey KeyOf(const nlohmann::json& object);

std::string UidOf(const nlohmann::json& object);
std::string ResourceVersionOf(const nlohmann::json& object);
bool IsDeleting(const nlohmann::json& object);

/// fusion.dev/v1alpha1
std::string ApiVersionOf(const Resource& resource);

}  // namespace fusion::op
