#include "cli/object_view.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fusion/v1alpha1/api.pb.h"
#include "nlohmann/json.hpp"
#include "proto/json_mapper.h"

namespace fusion::cli {
namespace {

using nlohmann::json;
using v1alpha1::Compnode;
using v1alpha1::FusionJob;

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

/// What can be read of the object: a newer version may have written it.
template <typename T>
T Read(const json& object) {
  T message;
  api::ReadJson(object, api::Mode::kLenient, &message);
  return message;
}

template <typename Conditions>
const v1alpha1::Condition* FindCondition(const Conditions& conditions, const std::string& type) {
  for (const v1alpha1::Condition& condition : conditions) {
    if (condition.type() == type) return &condition;
  }
  return nullptr;
}

std::string Step(const FusionJob& job) {
  const auto& progress = job.status().progress();
  if (!progress.has_step()) return "-";
  return progress.has_steps() ? absl::StrCat(progress.step(), "/", progress.steps())
                              : absl::StrCat(progress.step());
}

}  // namespace

Table JobTable(const std::vector<json>& jobs, bool wide) {
  std::vector<Column> columns = {{"NAME"},
                                 {"PHASE"},
                                 {"STAGES"},
                                 {"STEP", Align::kRight},
                                 {"LOSS", Align::kRight},
                                 {"THROUGHPUT"},
                                 {"CLUSTERS"},
                                 {"RESTARTS", Align::kRight}};
  if (wide)
    columns.insert(columns.end(), {{"VALIDATION", Align::kRight}, {"POLICY"}, {"CHECKPOINT"}, {"MESSAGE"}});
  Table table(std::move(columns));
  for (const json& object : jobs) {
    const auto job = Read<FusionJob>(object);
    const v1alpha1::FusionJobStatus& status = job.status();
    std::vector<std::string> row = {
        job.metadata().name(),
        status.has_phase() ? v1alpha1::FusionJobStatus::Phase_Name(status.phase()) : "-",
        OrDash(status.display().stages_ready()),
        Step(job),
        OrDash(status.display().loss()),
        OrDash(status.display().throughput()),
        OrDash(status.display().clusters()),
        absl::StrCat(status.restarts())};
    if (wide) {
      const v1alpha1::Condition* failed = FindCondition(status.conditions(), "Failed");
      row.push_back(status.progress().has_validation_loss()
                        ? absl::StrFormat("%.4g", status.progress().validation_loss())
                        : "-");
      row.push_back(OrDash(status.plan().policy()));
      row.push_back(OrDash(status.checkpoint()));
      row.push_back(failed != nullptr ? failed->message() : "");
    }
    table.Add(std::move(row));
  }
  return table;
}

Table CompnodeTable(const std::vector<json>& compnodes, bool wide) {
  std::vector<Column> columns = {{"NAME"}, {"CLUSTER"}, {"CLASS"}, {"READY"}, {"ASSIGNMENTS"}};
  if (wide) columns.insert(columns.end(), {{"DEVICES"}, {"MEMORY", Align::kRight}, {"FLOPS", Align::kRight}});
  Table table(std::move(columns));
  for (const json& object : compnodes) {
    const auto compnode = Read<Compnode>(object);
    const v1alpha1::CompnodeSpec& spec = compnode.spec();
    const v1alpha1::Condition* ready = FindCondition(compnode.status().conditions(), "Ready");
    std::vector<std::string> row = {
        compnode.metadata().name(), spec.cluster(),
        spec.has_class_() ? v1alpha1::CompnodeSpec::Class_Name(spec.class_()) : "-",
        ready != nullptr ? v1alpha1::Condition::Status_Name(ready->status()) : "-",
        OrDash(absl::StrJoin(compnode.status().assignments(), ","))};
    if (wide) {
      row.push_back(
          OrDash(absl::StrJoin(spec.devices(), ",", [](std::string* out, const v1alpha1::Device& device) {
            absl::StrAppend(out, device.count() > 1 ? absl::StrCat(device.count(), "x") : "", device.name());
          })));
      row.push_back(OrDash(spec.devices_size() > 0 ? spec.devices(0).memory() : spec.host_memory()));
      row.push_back(spec.has_emulation() ? absl::StrFormat("%.3g", spec.emulation().flops())
                    : spec.devices_size() > 0 && spec.devices(0).peak_flops().has_fp32()
                        ? absl::StrFormat("%.3g", spec.devices(0).peak_flops().fp32())
                        : "-");
    }
    table.Add(std::move(row));
  }
  return table;
}

}  // namespace fusion::cli
