// A listening socket and the connections that came over it. See Listener.
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/task.h"
#include "transport/tcp/server_connection.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace nacre {

// `make`: for connections of another kind.
StatusOr<std::unique_ptr<Listener>> MakeTcpListener(Executor executor, Clock& clock, TcpOptions options,
                                                    std::string address, CallHandler handler,
                                                    ServerConnectionMaker make = nullptr);

}  // namespace nacre
