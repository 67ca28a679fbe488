// What the two sides of a shared-memory connection send before their first frame: the memory that they show
// (proto/FORMAT.md), and the rule of who may see it. Functions on a connected, non-blocking unix socket.
#pragma once

#include "common/status.h"
#include "common/task.h"
#include "transport/shm/pieces.h"
#include "transport/shm/shm_memory.h"
#include "transport/tcp/address.h"

namespace nacre::shm {

inline constexpr size_t kMaxRegions = 16;

// EACCES unless the process at the other end runs as the same user or as root. Whoever sees an object
// server's pool can read whatever any file holds, so it is the right of those who could read the server's
// disks and memory anyway (docs/decisions/0023-shared-memory.md).
Status CheckUser(int socket);

// UNAVAILABLE: the other side has gone.
Status SendSetup(int socket, const Shown& shown);

// Tells the other side that it is no user to show memory to.
Status SendRefusal(int socket);

// What the other side shows. EPROTO: malformed; ENOTSUP: it has refused; UNAVAILABLE: it has gone.
Task<StatusOr<Views>> ReceiveSetup(StreamSocket& socket, ShmMemory* memory);

}  // namespace nacre::shm
