// The API reference page from the messages of proto/fusion/v1alpha1/api.proto.
#pragma once

#include <string>

#include "google/protobuf/descriptor.h"

namespace fusion::api {

/// docs/api.md: each resource and each message that it holds, in order of appearance. `pool` has the messages
/// with their source information.
std::string ApiReference(const google::protobuf::DescriptorPool& pool);

}  // namespace fusion::api
