#include "operator/client.h"

namespace fusion::op {

const Resource kFusionJobs = {"fusion.dev", "v1alpha1", "fusionjobs", "FusionJob", true};
const Resource kCompnodes = {"fusion.dev", "v1alpha1", "compnodes", "Compnode", false};

std::string ObjectKey::ToString() const {
  return namespace_name.empty() ? name : namespace_name + "/" + name;
}

}  // namespace fusion::op
