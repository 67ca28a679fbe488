// The data plane between two processes on one machine: requests and replies over a unix socket ("unix:/path",
// "unix:@name"), bytes by one copy through shared memory. Each side shows the other, read-only, what it has
// registered with RegisterShared (the server's pool, the client's cache): the client copies what is put out
// of the server's memory, the server copies what it gets out of the client's. Memory that is only registered,
// and small transfers, go through the socket. docs/decisions/0023-shared-memory.md has the reasons, and what
// keeps late and hostile other sides harmless.
//
// Only processes of the same user and of root are let in, and none out of containers (peer_process.h). A
// client that takes longer than `taking_timeout` to copy what was put is cut off. Thread-safe. Counters:
// transport.shm.client.*, transport.shm.server.* and transport.shm.protocol_errors.
#pragma once

#include <memory>

#include "common/clock.h"
#include "common/task.h"
#include "transport/select/path_candidate.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace nacre {

struct ShmOptions {
  Duration taking_timeout = std::chrono::seconds(10);
  TcpOptions stream;  // of the unix socket
};

// The clock must outlive the transport and what it has made.
std::unique_ptr<Transport> MakeShmTransport(Executor executor, Clock& clock, ShmOptions options = {});

// "shm": offers an abstract socket together with the machine's boot id.
std::shared_ptr<PathCandidate> MakeShmCandidate(Executor executor, Clock& clock, ShmOptions options = {});

}  // namespace nacre
