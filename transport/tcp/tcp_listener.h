// A listening socket and the connections that came over it. See Listener.
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/task.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace nacre {

StatusOr<std::unique_ptr<Listener>> MakeTcpListener(Executor executor, Clock& clock, TcpOptions options,
                                                    std::string address, CallHandler handler);

}  // namespace nacre
