#include "proto/manifests/manifests.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "proto/manifests/crd.h"
#include "proto/manifests/reference.h"
#include "proto/manifests/resources.h"

namespace fusion::api {

absl::StatusOr<std::map<std::string, std::string>> GenerateManifests(absl::string_view descriptor_set) {
  google::protobuf::FileDescriptorSet set;
  if (!set.ParseFromArray(descriptor_set.data(), static_cast<int>(descriptor_set.size()))) {
    return absl::InvalidArgumentError("not a descriptor set");
  }
  google::protobuf::DescriptorPool pool;
  for (const google::protobuf::FileDescriptorProto& file : set.file()) {
    if (pool.BuildFile(file) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(file.name(), " does not build; give --include_imports"));
    }
  }
  std::map<std::string, std::string> files;
  for (const ResourceDefinition& definition : ResourceDefinitions()) {
    const google::protobuf::Descriptor* message = pool.FindMessageTypeByName(definition.message);
    if (message == nullptr) return absl::NotFoundError(absl::StrCat("no message ", definition.message));
    files[absl::StrCat("crds/fusion.dev_", definition.plural, ".yaml")] = CrdYaml(definition, *message);
  }
  files["docs/api.md"] = ApiReference(pool);
  return files;
}

}  // namespace fusion::api
