// The data plane over TCP ("host:port") and unix sockets ("unix:/path"). A peer is a few connections to one
// server: small calls have some of their own, so that they do not queue behind large transfers. Payloads go
// from registered memory to the socket and from the socket into place without a copy in between; small ones
// share a system call with their call or reply. proto/FORMAT.md has the frames.
//
// A call that times out closes the connection it used before it fails, since the server could otherwise still
// write into its memory; the other calls of that connection fail with UNAVAILABLE. Thread-safe; the executor
// may have several threads. Counters: transport.tcp.client.*, transport.tcp.server.* and
// transport.tcp.protocol_errors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/task.h"
#include "transport/tcp/attachment.h"
#include "transport/tcp/hello.h"
#include "transport/transport.h"

namespace nacre {

struct TcpOptions {
  // Per peer; 0: as many as let this machine's CPUs copy side by side.
  int connections = 0;
  // Of these, for calls that are small (StreamKind); at least one is for larger ones.
  int small_connections = 2;
  Duration connect_timeout = std::chrono::seconds(5);
  std::string identity;  // for the other side's log; empty: host name and process id
  std::string path_reason = "the server's address is a TCP or unix socket";  // see PathInfo

  // Of a listener.
  int calls_per_connection = 256;  // at once; clients are told and keep to it
  int max_connections = 16384;
  // A client from which bytes are wanted, or for which some are waiting, and that moves none for so long
  // loses its connection: it keeps memory and locks of the server's.
  Duration transfer_timeout = std::chrono::seconds(10);
  std::function<std::vector<PathOffer>()> offers;  // what the hello says about other paths; may be null
  AttachHandler attach;                            // may be null
};

// With an identity and a number of connections, and everything within bounds.
TcpOptions Complete(TcpOptions options);

// The clock must outlive the transport and what it has made.
std::unique_ptr<Transport> MakeTcpTransport(Executor executor, Clock& clock, TcpOptions options = {});

}  // namespace nacre
