// The one place where a path to each server is chosen: shared memory, RDMA, …, else TCP. Addresses are those
// of the TCP transport ("host:port", "unix:/path"); a server there also serves the better paths and says so
// in its hello (path_candidate.h).
//
// A peer chooses at its first call and anew after each loss, so a call that fails with UNAVAILABLE has not
// been tried over another path: whoever repeats it (rpc/object_stub.h) gets the next choice. While it makes
// do with less than the best it looks again every `retry_interval`, beside the calls. Peer::path() says what
// is used and why nothing better. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/task.h"
#include "transport/select/path_candidate.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace nacre {

struct SelectOptions {
  std::vector<std::shared_ptr<PathCandidate>> candidates;  // best first
  // False: only the candidates may be used (TCP for the greeting alone); a server that cannot serve one of
  // them does not start, and calls to a server with which none works fail, with UNAVAILABLE if that may
  // change by itself, else with ENOTSUP.
  bool fall_back = true;
  std::string reason;  // why there are no more candidates, for PathInfo; may be empty
  Duration retry_interval = std::chrono::seconds(30);
  TcpOptions tcp;
};

// The clock must outlive the transport and what it has made.
std::unique_ptr<Transport> MakeSelectTransport(Executor executor, Clock& clock, SelectOptions options);

}  // namespace nacre
