// Changes of a file's size by the user: truncation and extension.
//
// To zero: a new object sequence, the old objects go to the destroy queue. To something smaller: the intent
// is recorded and made durable, the objects are cut, then size and layout generation change in one commit;
// after a crash in between it is done again. Nobody else changes the file's data meanwhile (Mds::data_locks),
// and who wrote under the old layout is told so by UpdateSize. Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// Waits until no truncation or move-out of the file is under way, then takes its lock.
Task<FidLocks::Guard> LockQuiet(Mds& mds, Fid fid);

// The file is empty afterwards, and inline again where files may be. Not committed.
void TruncateToZero(const Mds& mds, Transaction* transaction, Inode* inode, uint64_t object_sequence);

// Whether the objects have to be cut, which takes BeginCut and FinishCut.
bool NeedsCut(const Inode& inode, uint64_t size);

// With the data lock held: records the intent, makes it durable, cuts. Commit Finish's transaction
// afterwards.
Task<StatusOr<uint64_t>> Cut(MdsPtr mds, Fid fid, uint64_t size);  // the blocks that are left
void FinishCut(Transaction* transaction, Inode* inode, uint64_t size, uint64_t blocks);

// With the data lock held: moves inline data out to objects. Returns OK when the file has objects.
Task<Status> MoveOutLocked(MdsPtr mds, Fid fid);

// At the start, before any request: takes up the truncations that a crash has interrupted. They go on in the
// background.
Task<Status> ResumeTruncations(MdsPtr mds);

}  // namespace nacre::mds
