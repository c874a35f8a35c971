// What every transport needs to know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fusion/wire/v1/broker.pb.h"

namespace fusion::worker {

struct TransportOptions {
  std::string job;
  int64_t incarnation = 0;
  int stage = 0;  ///< ours

  /// Emulated ways out, as Assignment.links has them; a peer without one is reached at full speed.
  std::vector<wire::v1::EmulatedLink> links;
  std::string link_state_file;  ///< shared by the workers of a machine; needed where there are `links`

  double connect_timeout_seconds = 30;
  /// Bytes that tensors of one peer may take before they are whole.
  int64_t memory_limit_bytes = int64_t{8} << 30;
};

}  // namespace fusion::worker
