// The data plane inside one process: addresses are "inproc:name", puts and gets are memcpy, a call starts its
// handler on the executor of the transport that listens. Everything that knows the same InprocNetwork can
// reach each other. No threads, no effects but the clock's timers, so it is deterministic on one thread.
// Thread-safe.
#pragma once

#include <memory>

#include "common/clock.h"
#include "common/task.h"
#include "transport/transport.h"

namespace nacre {

// The listeners by name; shared by the transports that use it.
class InprocNetwork;
std::shared_ptr<InprocNetwork> MakeInprocNetwork();

// The clock must outlive the transport and what it has made.
std::unique_ptr<Transport> MakeInprocTransport(std::shared_ptr<InprocNetwork> network, Executor executor,
                                               Clock& clock);

}  // namespace nacre
