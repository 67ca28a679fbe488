// Moves a file's inline data out to objects: a change of two commits with an OST's work between them
// (new_objects.h). An OST that is away is waited for. It is withdrawn if the file was changed or removed
// meanwhile, or the OST refused, or the session that wanted it ended. Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// With the file's data lock held. OK: the file has objects now. ESTALE if the session ended while the OST was
// waited for, ABORTED if the file has been moved to where the operation's guard does not cover it (as of
// Op::Commit), UNAVAILABLE when the server stops, else the OST's error. `op` must outlive the task.
Task<Status> MoveOutLocked(const Op& op, Fid fid);

}  // namespace nacre::mds
