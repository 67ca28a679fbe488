// Ending a session from this side: fencing it at every OST, so that nothing of it arrives any more; finding
// out how far its files reach; dropping what it held. Also the fences that an OST missed while it was away.
// Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// Returns when the session is gone (also if somebody else is evicting it already). An OST that is down is not
// waited for: it is fenced before it counts as up again.
Task<Status> Evict(MdsPtr mds, SessionPtr session, std::string reason);

// Drops opens, locks, leases and the session's record; ends orphans that only it had open.
Task<Status> EndSession(MdsPtr mds, SessionPtr session);

// Before an OST counts as up: the fences that it missed.
Task<Status> CatchUpFences(MdsPtr mds, OstIndex ost);

// Makes the file as long as its objects say. For files whose writer is gone without having said how far it
// came.
Task<Status> RecoverSize(MdsPtr mds, Fid fid);

}  // namespace nacre::mds
