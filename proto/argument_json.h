// The JSON form of graph.v1.Argument, which is a oneof: an object whose first key says the kind.
//
//   {"value": "h.0.ln_1", "index": 0}       an operator's output; index may be left out when 0
//   {"int": 4, "timesBatch": 0}             4 + 0 x samples; timesBatch may be left out when 0
//   {"double": 0.5}                         or "inf", "-inf", "nan"
//   {"bool": true}  {"string": "mean"}  {"dtype": "FLOAT32"}
//   {"ints": [{"int": 1, "timesBatch": 0}, …]}
//   {"values": [{"value": "a", "index": 0}, …]}
//   {"none": true}  {"randomKey": true}  {"training": true}
//
// graph.v1.ValueRef is written {"value", "index"} and graph.v1.AffineInt {"int", "timesBatch"} wherever they
// stand.
#pragma once

#include "google/protobuf/message.h"
#include "nlohmann/json_fwd.hpp"
#include "proto/field_error.h"
#include "proto/json_mapper.h"

namespace fusion::api {

/// Whether messages of this type have the form above.
bool HasArgumentForm(const google::protobuf::Descriptor& descriptor);

/// REQUIRES: HasArgumentForm(message's descriptor). Appends errors below `path`.
void ReadArgumentForm(const nlohmann::json& json, const std::string& path, Mode mode,
                      google::protobuf::Message* message, FieldErrors* errors);

nlohmann::json WriteArgumentForm(const google::protobuf::Message& message);

}  // namespace fusion::api
