// The client's side of the gRPC form: see grpc_server.h for an address. Both take a list of them, separated
// by commas, where several MDSes have copies of one MDT (several_servers.h). Thread-safe. Neither reads
// proxies from the environment.
#pragma once

#include <memory>
#include <string>

#include "rpc/cluster_channel.h"
#include "rpc/metadata_channel.h"

namespace nacre {

// INVALID_ARGUMENT: one of them is not an address. Connects at Connect.
StatusOr<std::shared_ptr<MetadataConnector>> NewGrpcConnector(const std::string& addresses);

// Connects at the first call and again after a loss; each call ends within the timeout.
StatusOr<std::shared_ptr<ClusterChannel>> NewGrpcClusterChannel(const std::string& addresses,
                                                                Duration timeout);

}  // namespace nacre
