#include "worker/pipeline/trace.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/durable_file.h"

namespace fusion::worker {
namespace {

using nlohmann::json;

constexpr const char* kRowNames[] = {"compute", "encode", "decode", "links"};

double Microseconds(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

}  // namespace

void Trace::Add(int64_t step, Row row, std::string name, int64_t begin_ns, int64_t end_ns) {
  if (Wants(step)) {
    absl::MutexLock lock(&mutex_);
    events_.push_back({row, std::move(name), begin_ns, end_ns});
  }
}

void Trace::AddLink(int64_t step, int to_stage, int64_t bytes, double busy_seconds, int64_t end_ns) {
  if (Wants(step)) {
    absl::MutexLock lock(&mutex_);
    links_.push_back({to_stage, bytes, busy_seconds, end_ns});
  }
}

absl::Status Trace::Write() const {
  json events = json::array();
  events.push_back({{"ph", "M"},
                    {"pid", stage_},
                    {"name", "process_name"},
                    {"args", {{"name", absl::StrCat("stage ", stage_)}}}});
  for (int row = 0; row < 4; ++row) {
    events.push_back({{"ph", "M"},
                      {"pid", stage_},
                      {"tid", row},
                      {"name", "thread_name"},
                      {"args", {{"name", kRowNames[row]}}}});
  }
  {
    absl::MutexLock lock(&mutex_);
    for (const Event& event : events_) {
      events.push_back({{"ph", "X"},
                        {"pid", stage_},
                        {"tid", static_cast<int>(event.row)},
                        {"name", event.name},
                        {"ts", Microseconds(event.begin_ns)},
                        {"dur", Microseconds(event.end_ns - event.begin_ns)}});
    }
    for (const LinkUse& link : links_) {
      events.push_back({{"ph", "i"},
                        {"s", "t"},
                        {"pid", stage_},
                        {"tid", static_cast<int>(Row::kLink)},
                        {"name", absl::StrCat("to stage ", link.to_stage)},
                        {"ts", Microseconds(link.end_ns)},
                        {"args", {{"bytes", link.bytes}, {"busySeconds", link.busy_seconds}}}});
    }
  }
  const std::string partial = path_ + ".partial";
  absl::Status status =
      WriteDurably(partial, json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump());
  if (status.ok() && std::rename(partial.c_str(), path_.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
  }
  return status;
}

}  // namespace fusion::worker
