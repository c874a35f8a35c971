// How the lists and maps of a kind merge, read from the API's descriptors: the facts from which the CRDs'
// list types are made too, so that the embedded store and a kube-apiserver merge alike.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "operator/client.h"

namespace google::protobuf {
class Descriptor;
}

namespace fusion::op {

enum class ListType {
  kAtomic,  ///< one value, replaced as a whole
  kMap,     ///< items merge by their key fields
  kSet,     ///< scalars, each owned by itself
};

/// The type at one place of an object. A cheap value. Fields that the descriptors do not know (of a newer
/// API) merge as objects when they are objects, and are atomic otherwise.
class MergeSchema {
 public:
  /// The root type of a kind.
  static MergeSchema Of(const Resource& resource);

  /// The type of the member `name`, or of a list's items when this is a list's type.
  MergeSchema Member(absl::string_view name) const;

  ListType list_type() const { return list_type_; }

  /// Path element that names `item` in this kMap list: k:{"type":"Ready"}. Absent keys take their default.
  std::string ItemElement(const nlohmann::json& item) const;

 private:
  const google::protobuf::Descriptor* message_ =
      nullptr;  ///< of the value or of the list's items; null: unknown
  ListType list_type_ = ListType::kAtomic;
  std::vector<std::string> keys_;                ///< JSON names, of a kMap list
  std::map<std::string, std::string> defaults_;  ///< key -> JSON text
};

}  // namespace fusion::op
