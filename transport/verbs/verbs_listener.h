// Serves calls over queue pairs that clients set up over TCP connections to an address. See Listener.
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/task.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"
#include "transport/verbs/rail_set.h"

namespace nacre::verbs {

StatusOr<std::unique_ptr<Listener>> MakeVerbsListener(Executor executor, Clock& clock, TcpOptions control,
                                                      std::shared_ptr<RailSet> rails,
                                                      const std::string& address, CallHandler handler);

}  // namespace nacre::verbs
