// How a run is told: one line that is overwritten on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/console.h"

namespace fusion::cli {

/// Bytes that a link carried in the last step.
struct LinkTraffic {
  int from = 0;  ///< stages
  int to = 0;
  int64_t bytes = 0;
};

struct Progress {
  std::string job;
  std::string phase;  ///< of the job: Planning, Running, …
  int64_t step = 0;
  int64_t steps = 0;
  std::optional<double> loss;
  std::optional<double> validation_loss;
  std::optional<double> validation_accuracy;  ///< of a classification
  std::optional<double> samples_per_second;
  std::optional<double> eta_seconds;
  std::vector<LinkTraffic> links;
};

/// The whole of it in one line, without styles: "gpt2 ━━━━──── 12/200 · loss 2.31 · 41.2 samples/s · ETA
/// 1m37s · 0→1 12.3 KiB …". Parts that do not fit `width` columns are left out from the end, the bar first
/// shrinks; the result is never wider.
std::string ProgressLine(const Progress& progress, int width);

/// Draws progress on console.err. On a terminal the line is overwritten at most ten times a second; elsewhere
/// a plain line is printed on a new phase, on a validation and every `kPlainInterval`. Not thread-safe.
class ProgressView {
 public:
  static constexpr absl::Duration kPlainInterval = absl::Seconds(10);

  explicit ProgressView(Console& console) : console_(console) {}
  ~ProgressView() { Clear(); }
  ProgressView(const ProgressView&) = delete;
  ProgressView& operator=(const ProgressView&) = delete;

  void Show(const Progress& progress, absl::Time now);
  /// Removes the line, so that other text can be printed; the next Show draws it again.
  void Clear();

 private:
  void ShowPlain(const Progress& progress, absl::Time now);

  Console& console_;
  bool drawn_ = false;
  absl::Time last_ = absl::InfinitePast();
  std::string last_phase_;
  std::string last_job_;
  std::optional<double> last_validation_;
};

}  // namespace fusion::cli
