// The one place that knows gRPC's channel arguments, of both ends of a connection between workers. Why each
// value: a link may be slow and far, a peer may vanish without a word, and tensors are large.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/server_builder.h"

namespace fusion::worker {

/// A connection of its own to HOST:PORT: channels to one address do not share it. Connects at its first call.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

/// Limits and keepalive that match MakeChannel's: a server that does not allow a client's pings cuts it off.
void ConfigureServer(grpc::ServerBuilder& builder);

}  // namespace fusion::worker
