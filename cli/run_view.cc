#include "cli/run_view.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/quantity.h"

namespace fusion::cli {
namespace {

std::string Percent(double share) { return absl::StrFormat("%+.1f %%", 100 * share); }

void AppendTimes(const op::JobResult& result, const JobState& state, std::string* out) {
  const double measured = MedianStepSeconds(state);
  if (measured > 0) {
    absl::StrAppend(out, "  step time        ", api::FormatSeconds(measured), " measured (median)");
    if (state.plan.has_value() && state.plan->step_seconds() > 0) {
      const double predicted = state.plan->step_seconds();
      absl::StrAppend(out, ", ", api::FormatSeconds(predicted), " predicted (",
                      Percent(predicted / measured - 1), ")");
    }
    absl::StrAppend(out, "\n");
  }
  if (result.tasks > 0) {
    const double share =
        100.0 * static_cast<double>(result.overrun_tasks) / static_cast<double>(result.tasks);
    absl::StrAppend(out, "  emulated tasks   ", result.tasks, ", ", result.overrun_tasks,
                    " longer than emulated (", absl::StrFormat("%.2g %%", share), ")\n");
  }
}

void AppendLinks(const JobState& state, std::string* out) {
  const auto steps = static_cast<double>(state.step_seconds.size());
  for (const auto& [link, bytes] : state.link_bytes) {
    const std::string name = absl::StrCat("link ", link.first, " → ", link.second);
    absl::StrAppend(out, "  ", name, std::string(name.size() < 19 ? 19 - name.size() : 1, ' '),
                    api::FormatBytes(static_cast<double>(bytes)), ", ",
                    api::FormatBytes(static_cast<double>(bytes) / steps), " a step\n");
  }
}

}  // namespace

Progress ProgressOf(const std::string& job, int64_t steps, const JobState& state) {
  Progress progress;
  progress.job = job;
  progress.phase = state.phase;
  progress.step = state.last_step.step;
  progress.steps = steps;
  progress.loss = state.last_step.loss;
  progress.validation_loss = state.validation_loss;
  progress.validation_accuracy = state.validation_accuracy;
  if (state.last_step.step > 0) {
    progress.samples_per_second = state.last_step.samples_per_second;
    const auto left = static_cast<double>(std::max<int64_t>(steps - state.last_step.step, 0));
    progress.eta_seconds = MedianStepSeconds(state, 0) * left;
  }
  for (const op::LinkRecord& link : state.last_step.links)
    progress.links.push_back({link.from, link.to, link.bytes});
  return progress;
}

double MedianStepSeconds(const JobState& state, size_t warm_up) {
  if (state.step_seconds.empty()) return 0;
  const size_t skip = state.step_seconds.size() > warm_up ? warm_up : 0;
  std::vector<double> seconds(state.step_seconds.begin() + static_cast<ptrdiff_t>(skip),
                              state.step_seconds.end());
  const auto middle = seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

std::optional<double> ValidationLossBound(const v1alpha1::FusionJob& job) {
  const auto& annotations = job.metadata().annotations();
  const auto annotation = annotations.find("fusion.dev/validation-loss-bound");
  double bound = 0;
  if (annotation == annotations.end() || !absl::SimpleAtod(annotation->second, &bound)) return std::nullopt;
  return bound;
}

std::string RunSummary(const op::JobResult& result, const JobState& state, std::optional<double> bound) {
  std::string text = absl::StrCat(result.job, ": ", result.phase);
  if (result.step > 0) absl::StrAppend(&text, " after ", result.step, result.step == 1 ? " step" : " steps");
  if (result.phase == "Failed") absl::StrAppend(&text, ": ", result.reason, ": ", result.message);
  absl::StrAppend(&text, "\n");
  if (result.loss.has_value())
    absl::StrAppend(&text, "  loss             ", absl::StrFormat("%.6g\n", *result.loss));
  if (result.validation_loss.has_value()) {
    absl::StrAppend(&text, "  validation loss  ", absl::StrFormat("%.6g", *result.validation_loss));
    if (bound.has_value()) {
      const bool below = *result.validation_loss <= *bound;
      absl::StrAppend(&text, absl::StrFormat(", %s the bound of %.6g", below ? "under" : "ABOVE", *bound));
    }
    absl::StrAppend(&text, "\n");
  }
  if (result.validation_accuracy.has_value()) {
    absl::StrAppend(
        &text, "  accuracy         ",
        absl::StrFormat("%.2f %% of the validation samples\n", 100 * *result.validation_accuracy));
  }
  AppendTimes(result, state, &text);
  AppendLinks(state, &text);
  if (!result.checkpoint.empty()) absl::StrAppend(&text, "  checkpoint       ", result.checkpoint, "\n");
  return text;
}

}  // namespace fusion::cli
