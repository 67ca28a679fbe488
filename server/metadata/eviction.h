// Ending a session from this side, and the fences that an OST missed while it was away. Thread-safe.
//
// An eviction ends in bounded time, whoever is dead. Before what the session held is given to others, two
// things must be so, and for each there is a bound in time:
//  - nothing of the session is carried out at an OST any more: each OST is told to refuse it, or its own
//    right to serve clients has run out (cluster::OstRegistry::FenceOrOutlive). A fence record in the store
//    says which OSTs have yet to be told: they are before they count as up again (CatchUpFences);
//  - its client does not answer out of caches any more: the client counts its leases from the moment at which
//    it sent the last keep-alive that was answered; they are taken for ended WithDrift(lease) after the last
//    message that has come of it (common/lease_time.h).
// The fence record is durable before any OST is told. So a session with a fence record is being evicted, and
// an MDS that restarts in between finishes that (ResumeEvictions): the OSTs refuse the session already.
// How far its files reach is found out next, as far as the OSTs answer (writer_recovery.h), and for a few
// seconds at most. Then its leases end.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

enum class Client {
  kMayLive,  // it may still believe that its leases are good
  kGone,     // its process is known to have ended
};

// Returns when the session is gone (also if somebody else is evicting it already).
Task<Status> Evict(MdsPtr mds, SessionPtr session, std::string reason, Client client = Client::kMayLive);

// At the start, before requests are served: goes on, in the background, with the evictions that the last run
// had begun.
Status ResumeEvictions(const MdsPtr& mds);

// When the leases of a session that is not heard of any more may be given to others, by Mds::listening.
Duration LeasesEnd(const Mds& mds, const Session& session);

// Drops opens, locks and leases of the session.
void DropHeld(Mds& mds, SessionId session);
// Drops these and the session's record; ends orphans that only it had open.
Task<Status> EndSession(MdsPtr mds, SessionPtr session);

// The sessions that the OST has yet to be told to refuse.
StatusOr<std::vector<SessionId>> MissedFences(Mds& mds, OstIndex ost);

// An OST that has been removed has to be told nothing any more. Waits for evictions that are under way, in
// bounded time.
Task<Status> ForgetFences(MdsPtr mds, OstIndex ost);

// Before an OST counts as up: the fences that it missed.
Task<Status> CatchUpFences(MdsPtr mds, OstIndex ost);

}  // namespace nacre::mds
