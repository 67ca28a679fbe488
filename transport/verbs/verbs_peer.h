// A peer over RDMA: its queue pair, and making it anew after a loss. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/task.h"
#include "transport/path_meter.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"
#include "transport/verbs/rail_set.h"

namespace nacre::verbs {

// INVALID_ARGUMENT for an address that the TCP transport does not know.
StatusOr<std::shared_ptr<Peer>> MakeVerbsPeer(Executor executor, Clock& clock, TcpOptions control,
                                              std::shared_ptr<RailSet> rails, const std::string& address);

// A peer that is connected now and counts its calls in `meters`.
Task<StatusOr<std::shared_ptr<Peer>>> ConnectVerbsPeer(Executor executor, Clock& clock, TcpOptions control,
                                                       std::shared_ptr<RailSet> rails, std::string address,
                                                       Duration timeout, std::shared_ptr<PathMeters> meters);

}  // namespace nacre::verbs
