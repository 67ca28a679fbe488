// Objects that a file has left by a move (migration.h). They keep the file's bytes for clients that still
// read by the old layout.
//
// A client that holds READ of the file reads by its old layout until it has given that back. A client without
// a lease asks for the layout before it reads, and once more when the answer comes later than a lease's time
// after that (Session::ObjectsKeptSince). So a record (Table::kMoved) keeps the objects until READ is back
// and that time is over; then it becomes an entry of the destroy queue.
//
// A write that is under way for as long may create objects anew that are destroyed already. Its client learns
// that the file is elsewhere, and says so (DropObjects): they are left once more. Thread-safe.
#pragma once

#include "server/metadata/mds.h"

namespace nacre::mds {

// For the batch by which the file leaves them, with the file locked. Then DestroyLeft.
void AddLeft(const Fid& fid, const Layout& old, KvBatch* batch);
bool IsLeft(Mds& mds, uint64_t object_sequence);

// In the background.
Task<void> DestroyLeft(MdsPtr mds, Fid fid, Layout old);

// At the start: the same of all records that are there.
Status ResumeLeaving(const MdsPtr& mds);

}  // namespace nacre::mds
