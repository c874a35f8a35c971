// The one parser and formatter each for quantities of bytes, durations and bandwidths, as files write them.
// Errors are INVALID_ARGUMENT and say what is expected.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fusion::api {

/// Bytes of a Kubernetes quantity: 10Gi, 512Mi, 1.5G, 1e9, 1024. Binary suffixes Ki…Ei, decimal n, u, m, k…E.
/// Exact; a fraction of a byte counts as one, as in Kubernetes. Not negative, below 2^63.
absl::StatusOr<int64_t> ParseQuantity(absl::string_view text);

/// Seconds of 30s, 1m30s, 40ms, 1.5h, 100us, 20ns. Not negative, at most ten years.
absl::StatusOr<double> ParseDuration(absl::string_view text);

/// Decimal bits per second of 8Mbps, 1.5Gbps; units bps, kbps, Mbps, Gbps, Tbps. More than 0, at most 1e15.
absl::StatusOr<double> ParseBandwidth(absl::string_view text);

/// "5.2 GiB", "373.0 MiB", "12 B": for people.
std::string FormatBytes(double bytes);

/// "1h2m", "2m5s", "5.76 s", "40 ms", "120 us": for people.
std::string FormatSeconds(double seconds);

/// "41.2", "0.35", "15200": three significant digits, without an exponent below a billion; for people.
std::string FormatRate(double rate);

/// "8Mbps", "1.5Gbps": what ParseBandwidth reads back, to six significant digits.
std::string FormatBandwidth(double bits_per_second);

}  // namespace fusion::api
