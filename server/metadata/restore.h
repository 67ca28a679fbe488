// An MDT made from a backup (nacre mdt restore), and what is done so that going back in time does no harm.
//
// The restored MDT knows nothing of what the OSTs and the clients have seen since the backup was made:
//  - Numbers that were handed out since (FIDs, object sequences, sessions, runs of the MDS) are not handed
//    out again: the counters go on where FirstAfterRestore puts them (id_allocator.h). So no new file gets
//    the objects of an old one, and an OST takes no request for a repeat.
//  - No session goes on, neither those that the backup has, nor later ones, which nobody can list. All
//    sessions below the counter count as one that is being evicted (eviction.h): its fence (rpc/fence.h)
//    stands in the store, so the first start tells it to every OST, those that are away before they count as
//    up again, and lets nobody in until old leases have run out. A client that comes back is told that its
//    session has ended.
//  - It counts as a loss of power of the MDT (kv/losses.h): nobody sees a file that was being written then
//    before the OSTs' notes of growth have given it its size (writer_recovery.h), and layouts get other
//    generations than they had since the backup.
//  - OSSes that have heard of an epoch of several MDSes (docs/decisions/0066) obey nobody of a lower one: the
//    restored MDT is in an epoch made of the time, which is higher (server/replication/alone.h).
//  - Objects that were made since belong to no file, and files that were removed or emptied since have lost
//    theirs. Only a comparison finds these: nacre doctor (check.h).
//
// Work that was queued in the backup (objects to be destroyed, truncations, moves of inline data) is carried
// out now: it was decided before the backup, and the objects it names belong to no other file.
#pragma once

#include "common/clock.h"
#include "common/status.h"
#include "common/task.h"
#include "server/kv/kv_store.h"
#include "server/metadata/backup_format.h"

namespace nacre::mds {

struct Restored {
  BackupHeader header;
  uint64_t entries = 0;
};

// Reads the whole backup and keeps nothing: whether it is whole and undamaged, and an MDT that this program
// knows. Errors: BackupReader's; FAILED_PRECONDITION: the MDT's format, or `now` lies before the backup was
// made.
StatusOr<Restored> VerifyBackup(BackupReader& backup, const WallTime& now);

// Into an empty store, which is synced then. `backup` has been verified and is read from its beginning again.
// A store in which this was interrupted is refused by every start and by the doctor. EEXIST: the store is not
// empty.
Task<StatusOr<Restored>> RestoreMdt(KvStore& store, BackupReader& backup, WallTime now);

}  // namespace nacre::mds
