#include "operator/broker/step_record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "nlohmann/json.hpp"

namespace fusion::op {
namespace {

void SetFinite(nlohmann::ordered_json& object, const char* name, double value) {
  if (std::isfinite(value)) object[name] = value;
}

}  // namespace

std::string MetricsLine(const StepRecord& record) {
  nlohmann::ordered_json line;
  line["step"] = record.step;
  if (record.loss) SetFinite(line, "loss", *record.loss);
  if (record.validation_loss) SetFinite(line, "validationLoss", *record.validation_loss);
  if (record.validation_accuracy) SetFinite(line, "validationAccuracy", *record.validation_accuracy);
  if (record.learning_rate) SetFinite(line, "learningRate", *record.learning_rate);
  SetFinite(line, "gradientNorm", record.gradient_norm);
  SetFinite(line, "samplesPerSecond", record.samples_per_second);
  if (record.tokens_per_second > 0) SetFinite(line, "tokensPerSecond", record.tokens_per_second);
  SetFinite(line, "stepSeconds", record.step_seconds);
  line["links"] = nlohmann::ordered_json::array();
  for (const LinkRecord& link : record.links) {
    nlohmann::ordered_json entry = {{"from", link.from}, {"to", link.to}, {"bytes", link.bytes}};
    if (link.bytes > 0)
      entry["ratio"] = static_cast<double>(link.dense_bytes) / static_cast<double>(link.bytes);
    SetFinite(entry, "seconds", link.seconds);
    line["links"].push_back(std::move(entry));
  }
  line["stages"] = nlohmann::ordered_json::array();
  for (const StageRecord& stage : record.stages) {
    nlohmann::ordered_json entry = {{"index", stage.index}};
    SetFinite(entry, "forwardSeconds", stage.forward_seconds);
    SetFinite(entry, "backwardSeconds", stage.backward_seconds);
    SetFinite(entry, "waitSeconds", stage.wait_seconds);
    if (stage.peak_memory_bytes > 0) entry["peakMemoryBytes"] = stage.peak_memory_bytes;
    if (stage.tasks > 0) {
      entry["tasks"] = stage.tasks;
      entry["overrunTasks"] = stage.overrun_tasks;
    }
    line["stages"].push_back(std::move(entry));
  }
  return line.dump();
}

std::vector<StepRecord> StepAggregator::Add(const wire::v1::StepReport& report) {
  reports_[report.step()][report.stage()] = report;
  return TakeComplete();
}

std::vector<StepRecord> StepAggregator::Add(const wire::v1::ValidationReport& report) {
  validations_[report.step()] = report;
  return TakeComplete();
}

std::vector<StepRecord> StepAggregator::TakeComplete() {
  std::vector<StepRecord> records;
  while (true) {
    const auto reports = reports_.find(next_);
    if (reports == reports_.end() || static_cast<int>(reports->second.size()) < shape_.stages) break;
    const auto validation = validations_.find(next_);
    if (shape_.ValidatesAfter(next_) && validation == validations_.end()) break;
    StepRecord record = Join(next_, reports->second);
    if (validation != validations_.end()) {
      record.validation_loss = validation->second.loss();
      if (validation->second.has_accuracy()) record.validation_accuracy = validation->second.accuracy();
      validations_.erase(validation);
    }
    records.push_back(std::move(record));
    reports_.erase(reports);
    ++next_;
  }
  return records;
}

StepRecord StepAggregator::Join(int64_t step, const std::map<int, wire::v1::StepReport>& reports) {
  StepRecord record;
  record.step = step;
  double squared_norm = 0;
  std::optional<double> job_squared_norm;
  int64_t start_ns = std::numeric_limits<int64_t>::max();
  int64_t end_ns = 0;
  for (const auto& [stage, report] : reports) {
    if (report.has_loss()) record.loss = report.loss();
    if (report.has_learning_rate()) record.learning_rate = report.learning_rate();
    squared_norm += report.squared_gradient_norm();
    if (report.has_job_squared_gradient_norm()) job_squared_norm = report.job_squared_gradient_norm();
    start_ns = std::min(start_ns, report.start_ns());
    end_ns = std::max(end_ns, report.end_ns());
    record.tasks += report.tasks();
    record.overrun_tasks += report.overrun_tasks();
    record.peak_memory_bytes = std::max(record.peak_memory_bytes, report.peak_memory_bytes());
    record.stages.push_back({stage, report.forward_seconds(), report.backward_seconds(),
                             report.wait_seconds(), report.peak_memory_bytes(), report.tasks(),
                             report.overrun_tasks()});
    for (const wire::v1::LinkReport& link : report.links()) {
      record.links.push_back({stage, link.to_stage(), link.bytes(), link.dense_bytes(), link.seconds()});
    }
  }
  record.gradient_norm = std::sqrt(job_squared_norm.value_or(squared_norm));
  record.step_seconds = static_cast<double>(end_ns - std::max(last_end_ns_, start_ns)) * 1e-9;
  last_end_ns_ = end_ns;
  if (record.step_seconds > 0) {
    record.samples_per_second = static_cast<double>(shape_.samples_per_step) / record.step_seconds;
    record.tokens_per_second = record.samples_per_second * static_cast<double>(shape_.tokens_per_sample);
  }
  return record;
}

}  // namespace fusion::op
