// Counters that the connections of one kind of stream share: "transport.tcp.…", "transport.shm.…".
// Thread-safe.
#pragma once

#include <string>

#include "common/metrics.h"

namespace nacre {

struct StreamCounters {
  explicit StreamCounters(const std::string& kind);

  // The one of TCP and plain unix sockets.
  static StreamCounters& Tcp();

  Counter& client_calls;
  Counter& client_bytes_put;
  Counter& client_bytes_got;
  Counter& client_timeouts;
  Counter& client_connections;
  Counter& client_lost;
  Counter& server_calls;
  Counter& server_bytes_put;
  Counter& server_bytes_got;
  Counter& server_connections;
  Counter& server_refused;
  Counter& server_stalled;
  Counter& protocol_errors;
};

}  // namespace nacre
