// What the CRD generator and the API reference know of a resource beyond its messages.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"

namespace fusion::api {

/// A column of `kubectl get`.
struct PrinterColumn {
  std::string name;
  std::string type;  ///< string, integer, date
  std::string path;  ///< JSON path
};

struct ResourceDefinition {
  std::string message;  ///< full name
  std::string kind;
  std::string plural;
  std::string singular;
  std::string short_name;
  bool namespaced = true;
  std::vector<PrinterColumn> columns;
};

/// FusionJob, Compnode, FusionCluster.
const std::vector<ResourceDefinition>& ResourceDefinitions();

/// The comment above (or behind) the field or message in its file, as one paragraph; empty without one. The
/// descriptor's file has source information.
std::string CommentOf(const google::protobuf::FieldDescriptor& field);
std::string CommentOf(const google::protobuf::Descriptor& message);

}  // namespace fusion::api
