// Options of each RDMA port in use.
#pragma once

#include <cstdint>

#include "common/clock.h"

namespace nacre::verbs {

struct RailOptions {
  // Bytes of each receive, kMinReceive (message.h) at least: that of a client has room for a block and what
  // is said about it. A server, which keeps some for each of its clients, needs no room for data.
  uint16_t receive = 5 << 10;
  Duration spin = std::chrono::microseconds(50);  // polling goes on so long after the last completion
  uint64_t put_budget = 32 << 20;       // bytes that all servers together may be asked to put through it
  uint64_t transfer_budget = 16 << 20;  // bytes under way to and from all clients together
  // A connection whose device has ended none of its work for so long is given up: longer than it may repeat a
  // packet that nobody answers (queue_pair.cc). Some drivers lose work when they repeat.
  Duration lost_after = std::chrono::seconds(15);
};

}  // namespace nacre::verbs
