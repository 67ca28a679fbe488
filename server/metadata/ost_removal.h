// Takes OSTs out of the cluster.
//
// An OST without files is removed in two steps. The first is one durable commit: its record says that it is
// gone (server/cluster/ost_record.h), and from then on nobody waits for it, tells it anything or asks it for
// anything. The second clears away what still names it in the store: evictions that it has yet to be told of,
// objects that were to be destroyed there, whether it has been asked for sizes. A start does the second step
// again for every OST that is gone, so that a crash in between leaves nothing.
//
// One that is lost goes the same way, with files on it. Their layouts go on naming it, and whoever reads
// there gets EIO at once. They are removed, or emptied, as any file.
//
// That no file comes to lie on an OST while it is found out whether there is one: it is made to take no new
// ones first, and then everybody is waited for who had chosen before that (OstRegistry::MayYetPlaceOn).
// Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// EBUSY: files have objects there, or somebody is placing some; ENODEV: there is no such OST. One that has
// been removed already is no error.
Task<Status> RemoveOst(MdsPtr mds, OstIndex ost);

// How many files lose data. EBUSY: it is up, and has to be drained; ENODEV as above.
Task<StatusOr<uint64_t>> RemoveLostOst(MdsPtr mds, OstIndex ost);

// At the start, before any request.
Task<Status> ForgetRemovedOsts(MdsPtr mds);

}  // namespace nacre::mds
