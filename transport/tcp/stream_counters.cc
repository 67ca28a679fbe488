#include "transport/tcp/stream_counters.h"

namespace nacre {

StreamCounters::StreamCounters(const std::string& kind)
    : client_calls(GetCounter(kind + ".client.calls")),
      client_bytes_put(GetCounter(kind + ".client.bytes_put")),
      client_bytes_got(GetCounter(kind + ".client.bytes_got")),
      client_timeouts(GetCounter(kind + ".client.timeouts")),
      client_connections(GetCounter(kind + ".client.connections")),
      client_lost(GetCounter(kind + ".client.connections_lost")),
      server_calls(GetCounter(kind + ".server.calls")),
      server_bytes_put(GetCounter(kind + ".server.bytes_put")),
      server_bytes_got(GetCounter(kind + ".server.bytes_got")),
      server_connections(GetCounter(kind + ".server.connections")),
      server_refused(GetCounter(kind + ".server.connections_refused")),
      server_stalled(GetCounter(kind + ".server.connections_stalled")),
      protocol_errors(GetCounter(kind + ".protocol_errors")) {}

StreamCounters& StreamCounters::Tcp() {
  static StreamCounters counters("transport.tcp");
  return counters;
}

}  // namespace nacre
