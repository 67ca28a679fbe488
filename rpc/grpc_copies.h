// The side that tells of the copies of an MDT, over gRPC: see copy_channel.h. Thread-safe.
#pragma once

#include <memory>

#include "rpc/copy_channel.h"

namespace nacre {

// Addresses as in grpc_server.h. Its channels connect at the first call and again after a loss: a server that
// comes back is reached within half a second. Until then calls fail at once. A request of more than 32 MiB is
// refused with EMSGSIZE (grpc_common.h, kMaxGrpcMessage).
std::shared_ptr<CopyConnector> NewGrpcCopyConnector();

}  // namespace nacre
