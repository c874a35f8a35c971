// What the options of a field and its type say of its JSON values; shared by the JSON mapper and the CRD
// generator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "fusion/options/options.pb.h"
#include "google/protobuf/descriptor.h"

namespace fusion::api {

const options::Field& OptionsOf(const google::protobuf::FieldDescriptor& field);

/// The pattern of a format, anchored, or empty. FORMAT_QUANTITY's pattern is of the string form.
absl::string_view FormatPattern(options::Format format);

/// The longest string of the field, by its option or its format; 0: no bound.
int64_t MaxLength(const google::protobuf::FieldDescriptor& field);

/// The value names of an enum without the zero value, in order of declaration.
std::vector<std::string> EnumNames(const google::protobuf::EnumDescriptor& descriptor);

/// Checks one string against pattern, length and format; empty when it fits, else what is wrong.
std::string CheckString(const google::protobuf::FieldDescriptor& field, absl::string_view value);

/// Checks one number against the bounds; empty when it fits, else what is wrong.
std::string CheckBounds(const google::protobuf::FieldDescriptor& field, double value);

}  // namespace fusion::api
