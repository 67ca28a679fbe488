// Counters of shared-memory connections, and the size from which on bytes are shown rather than sent.
#pragma once

#include "transport/tcp/stream_counters.h"

namespace nacre::shm {

// transport.shm.*
StreamCounters& Counters();

// Smaller transfers go through the socket together with their call or reply: two short copies cost less than
// another message.
inline constexpr uint64_t kMinShared = 16 << 10;

}  // namespace nacre::shm
