// The data plane of a process that holds clients and servers (nacre local, the tests): what listens in this
// process is reached without a socket, everything else over the best path that works
// (transport/data_plane.h). Thread-safe.
#pragma once

#include <memory>

#include "common/clock.h"
#include "common/task.h"
#include "transport/transport.h"

namespace nacre {

// A listener at "unix:/path" or "host:port" serves other processes there and this one directly. The clock
// must outlive the transport and what it has made.
std::unique_ptr<Transport> MakeProcessTransport(Executor executor, Clock& clock);

}  // namespace nacre
