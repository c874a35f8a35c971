#include "cli/progress.h"

#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/table.h"
#include "proto/quantity.h"

namespace fusion::cli {
namespace {

constexpr int kWidestBar = 24;
constexpr int kNarrowestBar = 8;

std::string Bar(double share, int cells) {
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * cells);
  std::string bar;
  for (int i = 0; i < cells; ++i) bar += i < full ? "━" : "─";
  return bar;
}

std::string Link(const LinkTraffic& link) {
  return absl::StrCat(link.from, "→", link.to, " ", api::FormatBytes(static_cast<double>(link.bytes)));
}

/// What is known beside the bar, the most important first.
std::vector<std::string> Parts(const Progress& progress) {
  std::vector<std::string> parts;
  if (progress.steps > 0 && (progress.step > 0 || progress.phase == "Running")) {
    parts.push_back(absl::StrCat(progress.step, "/", progress.steps));
  }
  if (progress.loss.has_value()) parts.push_back(absl::StrFormat("loss %.4g", *progress.loss));
  if (progress.samples_per_second.has_value()) {
    parts.push_back(absl::StrCat(api::FormatRate(*progress.samples_per_second), " samples/s"));
  }
  if (progress.eta_seconds.has_value() && progress.phase == "Running")
    parts.push_back(absl::StrCat("ETA ", api::FormatSeconds(*progress.eta_seconds)));
  if (progress.validation_loss.has_value())
    parts.push_back(absl::StrFormat("validation %.4g", *progress.validation_loss));
  if (progress.validation_accuracy.has_value())
    parts.push_back(absl::StrFormat("accuracy %.2f %%", 100 * *progress.validation_accuracy));
  for (const LinkTraffic& link : progress.links) parts.push_back(Link(link));
  return parts;
}

/// The first `width` characters.
std::string Cut(const std::string& text, int width) {
  std::string out;
  int characters = 0;
  for (char c : text) {
    if ((c & 0xC0) != 0x80 && ++characters > width) break;
    out += c;
  }
  return out;
}

/// Joins as many parts as fit; an ellipsis stands for the rest.
std::string Joined(const std::string& head, const std::vector<std::string>& parts, int width) {
  constexpr char kSeparator[] = " · ";
  std::string line = head;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string longer = absl::StrCat(line, line.empty() ? "" : kSeparator, parts[i]);
    const int reserve = i + 1 < parts.size() ? 2 : 0;
    if (DisplayWidth(longer) + reserve > width) return DisplayWidth(line) + 2 <= width ? line + " …" : line;
    line = longer;
  }
  return line;
}

}  // namespace

std::string ProgressLine(const Progress& progress, int width) {
  const std::vector<std::string> parts = Parts(progress);
  std::string head = progress.job;
  if (progress.steps > 0 && progress.phase == "Running") {
    const int rest = DisplayWidth(Joined("", parts, 1 << 20)) + DisplayWidth(head) + 4;
    const int cells = std::clamp(width - rest, kNarrowestBar, kWidestBar);
    const double share = static_cast<double>(progress.step) / static_cast<double>(progress.steps);
    absl::StrAppend(&head, " ", Bar(share, cells));
  } else {
    absl::StrAppend(&head, " ", progress.phase);
  }
  return Cut(Joined(head, parts, width), width);
}

void ProgressView::Show(const Progress& progress, absl::Time now) {
  constexpr absl::Duration kRedraw = absl::Milliseconds(100);
  if (!console_.err_terminal) {
    ShowPlain(progress, now);
    return;
  }
  if (now - last_ < kRedraw && progress.phase == last_phase_) return;
  last_ = now;
  last_phase_ = progress.phase;
  const int width = console_.err_width == nullptr ? 80 : console_.err_width();
  // The last column stays free: some terminals wrap when it is written.
  console_.err << "\r" << console_.Err(Style::kAccent, ProgressLine(progress, width - 1)) << "\x1b[K"
               << std::flush;
  drawn_ = true;
}

void ProgressView::ShowPlain(const Progress& progress, absl::Time now) {
  const bool news = progress.phase != last_phase_ || progress.job != last_job_ ||
                    progress.validation_loss != last_validation_ ||
                    (progress.steps > 0 && progress.step == progress.steps);
  if (!news && now - last_ < kPlainInterval) return;
  last_ = now;
  last_phase_ = progress.phase;
  last_job_ = progress.job;
  last_validation_ = progress.validation_loss;
  const std::vector<std::string> parts = Parts(progress);
  console_.err << progress.job << ": " << progress.phase << (parts.empty() ? "" : ", ")
               << absl::StrJoin(parts, ", ") << std::endl;
}

void ProgressView::Clear() {
  if (drawn_) console_.err << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

}  // namespace fusion::cli
