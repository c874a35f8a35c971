#include "operator/log.h"

#include <memory>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace fusion::op {
namespace {

// stdout is for results.
spdlog::logger& Logger() {
  static spdlog::logger logger("fusion", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  return logger;
}

}  // namespace

void LogWarning(absl::string_view text, absl::string_view component, absl::string_view object,
                const absl::Status& status) {
  Logger().warn("{} component={} object={} error=\"{}\"", std::string(text), std::string(component),
                std::string(object), status.ToString());
}

}  // namespace fusion::op
