// WRITE leases of single files (proto/metadata.proto, Lease; docs/decisions/0075-write-leases-of-files.md).
//
// Where several sessions change a directory nobody has its lease, and who writes a file of his own there
// would tell the MDS of each write. He gets WRITE of the file instead, with the reply to a change of its data
// (`want_file_lease`).
//
// While a session has WRITE of a file, nobody else knows the file's attributes, layout or content, not by
// READ or WRITE of the directory either:
//  - it is granted while the change is still covered (change_guard.h), so nobody else has a lease of the
//    directory then;
//  - who is granted one of the directory later looks once more for a writer of what it reads, after the grant
//    and before it reads (metadata_server.cc), and waits for him; a listing leaves the file's attributes out.
// So whoever has the directory by then answers no change of the file early, and a change of the file by its
// holder need not wait for him (change_guard.h). Else two clients of which each has WRITE of a directory and
// of a file in the other's could wait for each other, each with its queue of changes.
//
// SHARED is for those who write to one file beside each other: nobody else knows the file's attributes then,
// nor do they. The same two rules hold, so whoever has the directory's lease knows nothing of the file; and
// the reply to who writes beside them, which asks them for nothing, is covered by none (SayWhetherAlone).
//
// Thread-safe.
#pragma once

#include <optional>

#include "server/metadata/change_guard.h"
#include "server/metadata/mds.h"

namespace nacre::mds {

// WRITE of the file that the mutation has changed, if it asks for that, the session does not have WRITE of
// the directory (so that is granted first), and nobody else has a lease of the file or has it open for
// writing. SHARED, if others have it open and that will do. The one that it has, if it has one: what told it
// of that may have been lost. `guard`: as in GrantForChanging.
std::optional<LeaseGrant> GrantFileForChanging(Mds& mds, const SessionPtr& session,
                                               const proto::MetadataRequest& request,
                                               const proto::MetadataReply& reply, const ChangeGuard& guard);

}  // namespace nacre::mds
