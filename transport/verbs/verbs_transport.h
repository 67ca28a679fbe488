// The data plane over RDMA verbs: queue pairs that are set up and watched over TCP connections to the same
// addresses ("host:port", "unix:/path"), puts and gets as RDMA writes and reads. A call that arrives over
// such a TCP connection is served too, but peers of this transport never send any: without RDMA their calls
// fail with UNAVAILABLE and the reason. Nothing of libibverbs is touched before a connection is made.
//
// Devices and ports are found by what they can do (port.h). Memory is registered with a device at its first
// use there; the server's buffers that are not registered go through a copy. A call that times out ends its
// queue pair before it fails. Thread-safe; the executor may have several threads. Counters:
// transport.verbs.*.
#pragma once

#include <memory>

#include "common/clock.h"
#include "common/task.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"
#include "transport/verbs/rail_options.h"

namespace nacre {

struct VerbsOptions {
  TcpOptions control;  // of the TCP connections; its limits hold for the queue pairs too
  verbs::RailOptions rail;
};

// OK if this machine can use RDMA now; otherwise why not.
Status LookForRdma();

// The clock must outlive the transport and what it has made.
std::unique_ptr<Transport> MakeVerbsTransport(Executor executor, Clock& clock, VerbsOptions options = {});

}  // namespace nacre
