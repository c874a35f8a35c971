#include "operator/log.h"

#include "spdlog/spdlog.h"

namespace fusion::op {

void LogWarning(absl::string_view text, absl::string_view component, absl::string_view object,
                const absl::Status& status) {
  spdlog::warn("{} component={} object={} error=\"{}\"", std::string(text), std::string(component),
               std::string(object), status.ToString());
}

}  // namespace fusion::op
