// Small changes of an assignment, and descent by them.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "scheduler/partition/step_cost.h"

namespace fusion::scheduler {

/// Operators and the places they go to.
using Move = std::vector<std::pair<int, int>>;

/// Visits the neighbours of `assignment` in a fixed order until `visit` returns false:
///  - one operator to another place;
///  - one operator with all that follows it (or leads to it) on its place: a moved or a new boundary between
///  stages;
///  - all free operators of a place to another place, or exchanged with those of another.
/// Targets are all places up to 16; of more, those in use and the fastest unused ones of up to eight
/// clusters. Pinned operators do not move.
void VisitMoves(const StepCost& cost, const Assignment& assignment,
                const std::function<bool(const Move&)>& visit);

/// Takes every move that lowers the cost until a whole round finds none, or `evaluations` are used up (they
/// are counted down). Returns the cost reached.
Cost Descend(StepCost& cost, Assignment& assignment, int64_t& evaluations);

void Apply(const Move& move, Assignment& assignment);

}  // namespace fusion::scheduler
