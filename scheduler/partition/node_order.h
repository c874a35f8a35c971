// Orders in which a pipeline may visit the places: islands of fast links one after the other.
#pragma once

#include <vector>

#include "scheduler/partition/step_cost.h"

namespace fusion::scheduler {

/// At most `limit` distinct orders of all places, the most promising clusterings first. Islands come from
/// Louvain over 1 / (seconds of a typical value between two nodes). Few islands: all their orders; many:
/// nearest neighbour from each start. Inside an island: file order, fastest first, fastest last, nearest
/// neighbour. Up to four places: all orders.
std::vector<std::vector<int>> PlaceOrders(const StepCost& cost, int limit);

}  // namespace fusion::scheduler
