// The Coordinator over etcd's v3 API: for 3.4 to 3.6, with several members, TLS, and a user and
// password. Thread-safe.
#pragma once

#include <memory>

#include "server/coordination/coordinator.h"
#include "server/coordination/etcd_options.h"

namespace nacre::coordination {

// Connects at the first request, and again after a loss. Readings are tried at one member after another. A
// transaction is sent once, to a member that has just answered. Errors are those of CheckEtcdOptions; nobody
// needs to be there.
StatusOr<std::unique_ptr<Coordinator>> NewEtcdCoordinator(const EtcdOptions& options);

}  // namespace nacre::coordination
