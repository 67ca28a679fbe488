// Moves a file's inline data out to objects: a change of two commits with an OST's work between them.
//
//   intended   a record says which new object is about to be written (Table::kMoveOut).
//   written    the OST has the bytes on stable storage. An OST that is away is waited for.
//   committed  one commit takes the record away and gives the file the layout with that object; or
//   withdrawn  one commit turns the record into one of the destroy queue: the file was changed or removed
//              meanwhile, or the OST refused, or the session that wanted it ended.
//
// A restart withdraws what it finds: the client repeats its request, or has no use for the objects.
// Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// With the file's data lock held. OK: the file has objects now. ESTALE if the session ended while the OST was
// waited for, ABORTED if the file has been moved to where the operation's guard does not cover it (as of
// Op::Commit), UNAVAILABLE when the server stops, else the OST's error. `op` must outlive the task.
Task<Status> MoveOutLocked(const Op& op, Fid fid);

// At the start, before any request: withdraws the move-outs that a crash has interrupted.
Task<Status> WithdrawMoveOuts(MdsPtr mds);

}  // namespace nacre::mds
