// Grants leases of directories (proto/metadata.proto, Lease), and waits until holders whose leases conflict
// with a request have given them back.
//
// READ is granted to every session that looks at a directory, WRITE to one that changes it and is alone
// there. A request that reads what another session holds WRITE of waits until that is given back, and so does
// one that changes what others hold any lease of (change_guard.h). After a change that had to wait no leases
// of the directory are granted for a while (peace.h), after a read no WRITE: where several
// clients work, a request to the MDS costs each of them less than a revocation. Thread-safe.
#pragma once

#include <optional>

#include "server/metadata/change_guard.h"
#include "server/metadata/mds.h"

namespace nacre::mds {

// READ of the directories for which a request that changes nothing asks (`want_lease`), as far as they are
// granted now; WRITE for an open for writing. To be called before the request is carried out, so that what it
// answers is covered; and between the two NeedsWriters once more: somebody may have been granted WRITE of the
// file that it reads before the directory was granted.
std::vector<LeaseGrant> GrantForReading(Mds& mds, const SessionPtr& session,
                                        const proto::MetadataRequest& request);

// WRITE of the directory that a mutation is about to make, if it asks for that and says by which FID: from
// before anybody can find it, so that nobody changes it in between. EndBorn: it was not made.
std::optional<LeaseGrant> GrantBorn(Mds& mds, const SessionPtr& session,
                                    const proto::MetadataRequest& request);
void EndBorn(Mds& mds, const LeaseGrant& grant);
// A client that comes back says that it makes this directory and has not been told its lease: it holds it
// from now on, if it does not already and nobody else does. Its number.
std::optional<uint64_t> RestoreBorn(Mds& mds, const SessionPtr& session, const Fid& directory);

// WRITE of the directories that a mutation has changed, or has changed files in, and of the one that it has
// made, if it asks for that and nobody else has them, or has changed something there at the same time.
// `guard`: that of the change, which covers them still; so what the reply says is how things are.
std::vector<LeaseGrant> GrantForChanging(Mds& mds, const SessionPtr& session,
                                         const proto::MetadataRequest& request,
                                         const proto::MetadataReply& reply, const ChangeGuard& guard);

// WRITE of a directory is given back for somebody who only reads, with everything told: the session has READ
// in its place from now on. Nothing, and it has WRITE still: LeaseTable::TryKeepRead says when.
std::optional<LeaseGrant> KeepReading(Mds& mds, const SessionPtr& session, uint64_t lease);

// Says in the reply to a change of a file, or to an open for writing, under which lease the session is alone
// with the file (AttrReply.alone_under). After the leases have been granted: who opens the file for writing,
// or wants pages of it, after this look waits for the holder of the lease (AwaitWriters). And that no
// directory's lease covers a file to which others write beside the session, or wrote when this answer was
// made
// (`beside_others`): they may have changed it since, under their leases of the file alone. Its attributes
// have no parent then.
void SayWhetherAlone(Mds& mds, SessionId session, const proto::MetadataRequest& request, bool beside_others,
                     proto::MetadataReply* reply);

// Whether another session holds WRITE of the inode.
bool HasWriter(const Mds& mds, SessionId reader, const Fid& inode);

// Whether a request that changes nothing reads what another session may have changed without having told it.
bool NeedsWriters(Mds& mds, SessionId reader, const proto::MetadataRequest& request);
// Then, before it is carried out: returns when nothing of that is untold, in bounded time
// (revocation_deadline.h). `request` must outlive the task. Fails only when the server is stopping.
Task<Status> AwaitWriters(MdsPtr mds, SessionId reader, const proto::MetadataRequest& request);

// After a handle for writing has been noted: as AwaitWriters, of what covers the file. A session that was
// granted WRITE in the meantime may have been told before that it is alone with the file (SayWhetherAlone).
Task<Status> AwaitWritersOf(MdsPtr mds, SessionId opener, Fid file);

// For a request that was answered with ENOENT: whether it names an inode that another session may have made
// and not told. A client that asks by a FID need not have looked its name up (open_by_handle_at).
bool NamesUntold(Mds& mds, SessionId asker, const proto::MetadataRequest& request);
// Then, before it is carried out once more: returns when these sessions have told everything. As
// AwaitWriters.
Task<Status> AwaitMakers(MdsPtr mds, SessionId asker, const proto::MetadataRequest& request);

}  // namespace nacre::mds
