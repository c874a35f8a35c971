// Tables of objects, with the columns of `kubectl get`.
#pragma once

#include <vector>

#include "cli/table.h"
#include "nlohmann/json_fwd.hpp"

namespace fusion::cli {

/// NAME PHASE STAGES STEP LOSS THROUGHPUT CLUSTERS RESTARTS; wide: + VALIDATION POLICY CHECKPOINT MESSAGE.
Table JobTable(const std::vector<nlohmann::json>& jobs, bool wide);

/// NAME CLUSTER CLASS READY ASSIGNMENTS; wide: + DEVICES MEMORY FLOPS.
Table CompnodeTable(const std::vector<nlohmann::json>& compnodes, bool wide);

}  // namespace fusion::cli
