// Between messages and Kubernetes JSON, by reflection, for any message: as strict as the apiserver's
// structural schema, which protobuf's own mapper is not (it takes "8" for an int32, drops zeros, prints NaN).
//
// Names are the camel case of the field names; enum values are written by name and the zero value is never
// written; counts and bytes are JSON numbers; a quantity is an integer or a string; int keys of maps are
// strings; bytes are base64. Fields with presence are printed when set, zeros included; scalars without
// presence (fusion.graph.v1) are printed always, and so are the empty lists of their messages. Doubles are
// the shortest text that reads back equal. A non-finite number is left out.
//
// graph.v1.Argument has a JSON form of its own: see proto/argument_json.h.
//
// Checks come from the options in fusion/options/options.proto. All functions are thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "nlohmann/json_fwd.hpp"
#include "proto/field_error.h"

namespace fusion::api {

enum class Mode {
  kStrict,  ///< users' files: unknown fields, missing required ones, bounds, formats and duplicates are
            ///< errors
  kLenient  ///< objects of a store, perhaps written by a newer version: what is unknown is passed over; wrong
            ///< types are errors
};

/// Reads `json` into `message`, which is cleared first, and returns every error found, in the order of the
/// document's keys. Fields in error are left unset, list items in error stay in the list, so that later
/// checks keep their indexes.
FieldErrors ReadJson(const nlohmann::json& json, Mode mode, google::protobuf::Message* message);

/// ReadJson with its errors as one INVALID_ARGUMENT.
absl::Status FromJson(const nlohmann::json& json, Mode mode, google::protobuf::Message* message);

nlohmann::json ToJson(const google::protobuf::Message& message);

/// Sets absent fields that have a default, as an apiserver does: inside messages that are present, or present
/// by their own default {}.
void ApplyDefaults(google::protobuf::Message* message);

/// "not supported yet: …" for each field and value that parses but comes in a later version; a field at its
/// default is no use of it. Call it before ApplyDefaults or after.
FieldErrors CheckSupported(const google::protobuf::Message& message);

}  // namespace fusion::api
