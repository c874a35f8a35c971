// Plans as text.
#pragma once

#include <string>
#include <vector>

#include "fusion/graph/v1/plan.pb.h"

namespace fusion::cli {

/// Two tables, stages and links, and a line of predictions. `wide` adds times, depth and codec details.
std::string PlanText(const graph::v1::Plan& plan, bool wide);

/// A policy's plan, or why it has none.
struct ComparedPlan {
  std::string policy;
  graph::v1::Plan plan;
  std::string infeasible;  ///< empty: there is a plan
};

/// One row a policy.
std::string ComparisonText(const std::vector<ComparedPlan>& plans);

}  // namespace fusion::cli
