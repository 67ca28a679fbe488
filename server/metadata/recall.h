// Revokes leases that conflict with a request, and evicts holders that do not release them in time
// (revocation_deadline.h). READ leases of files are granted here: a client whose kernel keeps pages of a file
// is told before another session's change of its data is answered (proto/metadata.proto, Lease). Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// Tells the holder of the lease `id` to give it back; `keep`: what it may keep of it.
void PushRevoke(Mds& mds, Session& holder, uint64_t id, const Fid& resource,
                proto::LeaseMode keep = proto::LEASE_NONE);

// Only says so to the holder. Nothing happens if there is no such lease any more.
void AskBack(Mds& mds, const LeaseGrant& grant, proto::LeaseMode keep = proto::LEASE_NONE);

// Asks for every lease on these resources that another session than `keeper` holds and that conflicts with
// `mode`, side by side. Returns when each is released or its holder evicted: in bounded time. For READ its
// holder may keep READ (LeaseTable::TryKeepRead).
Task<Status> RecallAll(MdsPtr mds, SessionId keeper, std::vector<Fid> resources,
                       proto::LeaseMode mode = proto::LEASE_WRITE);
// The same of these leases; `keeper`: the session whose request waits for them, 0: none. `keep`: what their
// holders may keep.
Task<Status> RecallGrants(MdsPtr mds, SessionId keeper, std::vector<LeaseGrant> grants,
                          proto::LeaseMode keep = proto::LEASE_NONE);

// Asks for one lease, and waits for so long. Whether it is released; nobody is evicted.
Task<bool> TryRecall(MdsPtr mds, LeaseGrant grant, Duration patience);

// EINVAL for what is no regular file. ABORTED: another session has WRITE of the file.
StatusOr<proto::Lease> GrantRead(Mds& mds, SessionId session, const Fid& fid);
// A client that comes back says that it held this lease of an inode.
void RestoreLease(Mds& mds, const SessionPtr& session, const proto::Lease& lease);

// Whether the request has changed data of a file that another session may have READ of.
bool NeedsRecall(const Mds& mds, SessionId changer, const proto::MetadataRequest& request,
                 const proto::MetadataReply& reply);
// Then, before the reply is sent: no other session has READ when this returns. The change must be visible
// already, so that whoever reads afterwards sees it. Both arguments must outlive the task. Fails only when
// the server is stopping.
Task<Status> RecallRead(MdsPtr mds, SessionId changer, const proto::MetadataRequest& request,
                        const proto::MetadataReply& reply);

}  // namespace nacre::mds
