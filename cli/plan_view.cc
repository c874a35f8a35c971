#include "cli/plan_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/table.h"
#include "proto/quantity.h"

namespace fusion::cli {
namespace {

using api::FormatBytes;
using api::FormatSeconds;
using graph::v1::Plan;
using graph::v1::PlannedLink;
using graph::v1::PlannedStage;

/// "h.0.ln_1 … h.3.mlp (42)"
std::string OperatorRange(const PlannedStage& stage) {
  if (stage.operators().empty()) return "-";
  if (stage.operators_size() == 1) return stage.operators(0);
  return absl::StrCat(stage.operators(0), " … ", stage.operators(stage.operators_size() - 1), " (",
                      stage.operators_size(), ")");
}

/// 1234 -> "1,234"
std::string Grouped(int64_t number) {
  std::string grouped;
  const std::string digits = absl::StrCat(number);
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string Memory(const PlannedStage& stage) {
  const bool limited = stage.memory_limit_bytes() > 0 && stage.memory_limit_bytes() < INT64_MAX;
  return limited ? absl::StrCat(FormatBytes(static_cast<double>(stage.memory_bytes())), " of ",
                                FormatBytes(static_cast<double>(stage.memory_limit_bytes())))
                 : FormatBytes(static_cast<double>(stage.memory_bytes()));
}

std::string StageTable(const Plan& plan, bool wide) {
  std::vector<Column> columns = {
      {"STAGE", Align::kRight}, {"COMPNODE"}, {"CLUSTER"}, {"OPERATORS"}, {"PARAMETERS", Align::kRight},
      {"MEMORY", Align::kRight}};
  if (wide) {
    columns.insert(columns.end(), {{"SUB-DAGS", Align::kRight},
                                   {"DEPTH", Align::kRight},
                                   {"FORWARD", Align::kRight},
                                   {"BACKWARD", Align::kRight},
                                   {"GFLOP/STEP", Align::kRight}});
  }
  Table table(std::move(columns));
  for (const PlannedStage& stage : plan.stages()) {
    std::vector<std::string> row = {
        absl::StrCat(stage.index()), stage.compnode(), stage.cluster(), OperatorRange(stage),
        Grouped(stage.parameters()), Memory(stage)};
    if (wide) {
      row.insert(row.end(), {absl::StrCat(stage.sub_dags_size()), absl::StrCat(stage.depth()),
                             FormatSeconds(stage.forward_seconds()), FormatSeconds(stage.backward_seconds()),
                             absl::StrFormat("%.3g", stage.flops_per_step() / 1e9)});
    }
    table.Add(std::move(row));
  }
  return table.Render();
}

std::string LinkTable(const Plan& plan, bool wide) {
  std::vector<Column> columns = {
      {"LINK"}, {"CODEC"}, {"BYTES", Align::kRight}, {"RATIO", Align::kRight}, {"TIME", Align::kRight}};
  if (wide) columns.insert(columns.end(), {{"DENSE", Align::kRight}, {"DIRECTION"}});
  Table table(std::move(columns));
  for (const PlannedLink& link : plan.links()) {
    std::vector<std::string> row = {absl::StrCat(link.from(), " → ", link.to()), link.codec(),
                                    FormatBytes(static_cast<double>(link.bytes())),
                                    absl::StrFormat("%.3g", link.ratio()), FormatSeconds(link.seconds())};
    if (wide) {
      row.push_back(FormatBytes(static_cast<double>(link.dense_bytes())));
      row.push_back(link.direction() == PlannedLink::Forward ? "forward" : "backward");
    }
    table.Add(std::move(row));
  }
  return table.Render();
}

}  // namespace

std::string PlanText(const Plan& plan, bool wide) {
  std::string text =
      absl::StrCat(plan.job(), ": ", plan.stages_size(), plan.stages_size() == 1 ? " stage" : " stages",
                   " by ", plan.policy(), ", ", plan.schedule(), "\n\n", StageTable(plan, wide));
  if (plan.links_size() > 0)
    absl::StrAppend(&text, "\n", LinkTable(plan, wide), "(bytes and time of one micro-batch)\n");
  absl::StrAppend(&text, "\npredicted: ", FormatSeconds(plan.step_seconds()), " a step, ",
                  api::FormatRate(plan.samples_per_second()), " samples/s, bubble ",
                  absl::StrFormat("%.0f %%", 100 * plan.bubble_fraction()));
  if (plan.free_links_step_seconds() > 0) {
    absl::StrAppend(&text, "; over free links ", FormatSeconds(plan.free_links_step_seconds()));
  }
  absl::StrAppend(&text, "\n");
  return text;
}

std::string ComparisonText(const std::vector<ComparedPlan>& plans) {
  Table table({{"POLICY"},
               {"STAGES", Align::kRight},
               {"STEP", Align::kRight},
               {"SAMPLES/S", Align::kRight},
               {"BUBBLE", Align::kRight},
               {"SLOWEST LINK", Align::kRight},
               {"COMPNODES"}});
  std::string reasons;
  for (const ComparedPlan& compared : plans) {
    if (!compared.infeasible.empty()) {
      table.Add({compared.policy, "-", "-", "-", "-", "-", "infeasible"});
      absl::StrAppend(&reasons, "\n", compared.policy, ": ", compared.infeasible, "\n");
      continue;
    }
    const Plan& plan = compared.plan;
    double slowest = 0;
    for (const PlannedLink& link : plan.links()) slowest = std::max(slowest, link.seconds());
    std::string compnodes;
    for (const PlannedStage& stage : plan.stages())
      absl::StrAppend(&compnodes, compnodes.empty() ? "" : " ", stage.compnode());
    table.Add({compared.policy, absl::StrCat(plan.stages_size()), FormatSeconds(plan.step_seconds()),
               api::FormatRate(plan.samples_per_second()),
               absl::StrFormat("%.0f %%", 100 * plan.bubble_fraction()),
               plan.links().empty() ? "-" : FormatSeconds(slowest), compnodes});
  }
  return table.Render() + reasons;
}

}  // namespace fusion::cli
