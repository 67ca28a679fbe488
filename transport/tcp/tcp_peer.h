// A peer over TCP or a unix socket: its connections, which call takes which, and making them anew after a
// loss. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/task.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace nacre {

// INVALID_ARGUMENT for an address of another form.
StatusOr<std::shared_ptr<Peer>> MakeTcpPeer(Executor executor, Clock& clock, TcpOptions options,
                                            std::string address);

// What the server says of itself, over a connection of its own. UNAVAILABLE: no such server answers.
Task<StatusOr<Hello>> AskForHello(Executor executor, Clock& clock, TcpOptions options, std::string address);

}  // namespace nacre
