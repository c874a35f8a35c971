// Transport between processes: one bidirectional gRPC stream per peer that we send to, on a connection of its
// own. Frames are byte buffers, whose payload slices are the tensor's own storage.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/transport/options.h"
#include "worker/transport/transport.h"

namespace fusion::worker {

inline constexpr char kTensorStreamMethod[] = "/fusion.wire.v1.Tensors/Stream";

/// Listens at once; UNAVAILABLE where it cannot. Port 0 takes a free one: see address().
absl::StatusOr<std::unique_ptr<Transport>> MakeGrpcTransport(TransportOptions options,
                                                             const std::string& listen = "127.0.0.1:0");

}  // namespace fusion::worker
