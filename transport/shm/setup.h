// The exchange of the two sides of a shared-memory connection before their first frame: each sends the memory
// that it shows (proto/FORMAT.md); peer_process.h says who may see it. Functions on a connected, non-blocking
// unix socket.
#pragma once

#include "common/status.h"
#include "common/task.h"
#include "transport/shm/pieces.h"
#include "transport/shm/shm_memory.h"
#include "transport/tcp/address.h"

namespace nacre::shm {

inline constexpr size_t kMaxRegions = 16;

// UNAVAILABLE: the other side has gone.
Status SendSetup(int socket, const Shown& shown);

// Tells the other side that it is no user to show memory to.
Status SendRefusal(int socket);

// Receives what the other side shows. EPROTO: malformed; ENOTSUP: it has refused; UNAVAILABLE: it has gone.
Task<StatusOr<Views>> ReceiveSetup(StreamSocket& socket, ShmMemory* memory);

}  // namespace nacre::shm
