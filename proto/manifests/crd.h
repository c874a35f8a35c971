// CustomResourceDefinitions from the messages of proto/fusion/v1alpha1/api.proto.
#pragma once

#include <string>

#include "google/protobuf/descriptor.h"
#include "nlohmann/json.hpp"
#include "proto/manifests/resources.h"

namespace fusion::api {

/// The OpenAPI v3 structural schema of a message: descriptions from comments; types, bounds, formats, enums,
/// defaults, list keys, required fields and CEL rules from options and types.
nlohmann::ordered_json MessageSchema(const google::protobuf::Descriptor& message);

/// crds/fusion.dev_PLURAL.yaml. REQUIRES: `message` is the definition's.
std::string CrdYaml(const ResourceDefinition& definition, const google::protobuf::Descriptor& message);

}  // namespace fusion::api
