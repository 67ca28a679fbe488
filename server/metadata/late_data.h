// WRITE leases of files whose data comes late.
//
// A session that gives back WRITE of a directory sends the data first that it holds back of the files in it.
// Where an OST is away that may take for ever, and others want the rest of the directory meanwhile. So it
// gets WRITE of these files themselves, before the directory's lease goes, and gives it back when the data
// has arrived. The same where it gives back WRITE of one file (file_leases.h) that others want to remove. A
// session that reads, changes or moves such a file waits for that, as for the OST; one that removes it does
// not. So nobody knows the file's attributes meanwhile, and whoever holds the directory by then answers no
// change of the file early: its queue would wait for the holder, and the holder, for its size, for the queue.
//
// While an OST of the file is down the holder is not evicted for it (recall.cc); nor is a holder of READ of a
// file, whose kernel may have pages locked until the OST is back. Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// ESTALE if the session holds WRITE neither of the file nor of its directory; EINVAL for what is no regular
// file.
StatusOr<proto::Lease> GrantLateData(Mds& mds, SessionId session, const Fid& fid);

// Whether the lease is of a file with an OST that is down.
bool WaitsForOst(Mds& mds, const LeaseGrant& grant);

}  // namespace nacre::mds
