// Sessions: connect, disconnect, keep-alive, reclaim, and what ends a session from this side. Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// Sets *session when it succeeds.
Task<Reply> Connect(MdsPtr mds, std::shared_ptr<MetadataPeer> peer, proto::Connect request, SessionPtr* session);
Task<Reply> Disconnect(const Op& op);
Reply KeepAlive(const Op& op, const proto::KeepAlive& request);
Task<Reply> Reclaim(const Op& op, const proto::Reclaim& request);

// Drops what the session holds: opens, locks, leases, its record.
Task<Status> EndSession(MdsPtr mds, SessionPtr session);

}  // namespace nacre::mds
